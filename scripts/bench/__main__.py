r"""Measure a deployed server or any OpenAI-compatible one under load.

  gemma bench STACK
  gemma bench --url URL --model ID --concurrency 1,8,64 --out DIR
  gemma bench compare DIR DIR
  gemma bench report DIR
  gemma bench report DIR DIR DIR
  gemma bench STACK --request-rate 1,2,4,8 \
      --slo ttft=1,tpot=0.05 --out DIR
  gemma bench STACK --images 1 --adapters all

Loads are closed loops (--concurrency), open loops (--request-rate), or both,
over a grid of prompt and output lengths. `--adapters all` names the stack's
adapters in turn. Each point is stored when it finishes,
and --resume continues a sweep. Without --out, the results are in
results/STACK/TIME, or in results/HOST/TIME with --url. docs/benchmarking.md describes loads, results and
validity.

The verdict comes first: saturated or not, the limit, the best load within --slo, the
price, and the plan's forecast. The exit code is 1 if a point is invalid or has no
complete response, with one sentence for each reason, unless --allow-invalid is given.
"""

import sys
from typing import Final

from contracts.exit_codes import ExitCode
from loadtest.options import CompareOptions, ReportFolders
from scripts.bench.options import BenchOptions
from scripts.cli.command import Command, run_command


def _bench(options: BenchOptions) -> ExitCode:
    from scripts.bench.run import run_benchmark

    return run_benchmark(options)


def _compare(options: CompareOptions) -> ExitCode:
    """Compare two sweeps point by point, as Markdown for a pull request.

    A metric is "same" only if its whole interval is within the threshold. The exit
    code is 1 if a metric got worse beyond the threshold, or if nothing was compared.
    With --gate it is 0 if every point is better or same, 1 if one is worse, and 2 if
    the comparison is inconclusive. A point of BEFORE that AFTER lacks is named.
    """
    from loadtest.run import compare

    return ExitCode(compare(options))


def _report(options: ReportFolders) -> ExitCode:
    """Regenerate the reports of a folder from its results.jsonl.

    With several folders, print a table of the best load of each, as Markdown to paste.
    """
    from loadtest.run import report

    return ExitCode(report(options))


COMMAND: Final = Command(
    name="bench",
    help=__doc__,
    options=BenchOptions,
    run=_bench,
    subcommands=(
        Command(name="compare", help=_compare.__doc__, options=CompareOptions, run=_compare),
        Command(name="report", help=_report.__doc__, options=ReportFolders, run=_report),
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
