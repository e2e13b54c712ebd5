r"""Measure a deployed server or any OpenAI-compatible one under load.

  gemma bench tpu-v6e1
  gemma bench --url URL --model ID --concurrency 1,8,64 --out DIR
  gemma bench tpu-v6e1 --request-rate 1,2,4,8 \
      --slo ttft=1,tpot=0.05 --out DIR
  gemma bench l4-qat --adapters all

Loads are closed loops (--concurrency), open loops (--request-rate), or both,
over a grid of prompt and output lengths. `--adapters all` names the stack's
adapters in turn. Each point is stored when it finishes,
and --resume continues a sweep. Without --out, the results are in
results/STACK/TIME, or in results/HOST/TIME with --url. docs/benchmarking.md describes loads, results and validity.

With a stack, a line has the planned output rate, the measured one and their ratio,
at the valid load of the highest output rate. The first reasons why points are invalid follow; the report has all.
"""

import sys
from typing import Final

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.bench.bench_options import BenchOptions
from gemma_serving.scripts.cli.command import Command, Effect, run_command
from loadtest.errors import SweepError
from loadtest.load_options import CompareOptions, ReportFolder


def _bench(options: BenchOptions) -> ExitCode:
    from gemma_serving.scripts.bench.measuring import run_benchmark

    return run_benchmark(options)


def _compare(options: CompareOptions) -> ExitCode:
    """Compare two sweeps point by point, as Markdown for a pull request.

      gemma bench compare results/before results/after --gate

    Each metric is the mean of a point's repeats. A point of BEFORE that AFTER lacks is named.
    """
    from loadtest.subcommands import compare

    return ExitCode(compare(options))


def _report(options: ReportFolder) -> ExitCode:
    """Regenerate the report, the charts and summary.csv of a folder from its results.jsonl.

      gemma bench report DIR

    It reads run.json too, and measures nothing.
    """
    from loadtest.subcommands import report

    return ExitCode(report(options))


COMMAND: Final = Command(
    name="bench",
    effect=Effect.SENDS,
    help=__doc__,
    options=BenchOptions,
    run=_bench,
    needs="state",
    refusals=(SweepError,),
    exit_codes={
        ExitCode.DONE: "every point is valid; with --allow-invalid, points may be invalid",
        ExitCode.FAILED: "a point is invalid, has no complete response or more failures than --max-failed, or the sweep ended early",
        ExitCode.REFUSED: "refused, or the connection to the server was lost",
    },
    subcommands=(
        Command(
            name="compare",
            help=_compare.__doc__,
            options=CompareOptions,
            run=_compare,
            refusals=(SweepError,),
            exit_codes={
                ExitCode.DONE: "no metric got worse; with --gate, every point is better or same",
                ExitCode.FAILED: "a metric got worse beyond the threshold, or nothing was compared; with --gate, a point is worse",
                ExitCode.REFUSED: "with --gate, the comparison is inconclusive, or nothing was compared",
            },
        ),
        Command(name="report", help=_report.__doc__, options=ReportFolder, run=_report, refusals=(SweepError,)),
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
