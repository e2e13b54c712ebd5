r"""Measure how many of a fixed set of questions a server answers right.

  python -m scripts.quality --stack NAME
  python -m scripts.quality --url URL --model ID --kind exact
  python -m scripts.quality compare STACK STACK
  python -m scripts.quality compare DIR DIR DIR

Asks up to 170 short questions, at temperature 0 and one at a time: exact answers, JSON by schema, tool
calls, and facts in long texts up to max-model-len. Compare deployments with it before you choose
weights, a KV cache type or a model size. It is too small to rank models in general. Wrong answers are
a result, with exit code 0; missing answers are a failure. docs/quality.md describes the questions.
"""

import sys
from typing import Final

from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command
from scripts.quality.options import QualityCompareOptions, QualityOptions


def _quality(options: QualityOptions) -> ExitCode:
    from scripts.quality.command import ask

    return ask(options)


def _compare(options: QualityCompareOptions) -> ExitCode:
    """Compare runs question by question, beside speed and price.

    Exit code 1 if a run is worse than the first by more than chance.
    """
    from scripts.quality.command import compare_runs

    return compare_runs(options)


COMMAND: Final = Command(
    name="quality",
    help=__doc__,
    options=QualityOptions,
    run=_quality,
    after_interrupt="No question was asked.",
    subcommands=(Command(name="compare", help=_compare.__doc__, options=QualityCompareOptions, run=_compare),),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
