"""Measure a deployed server, or any OpenAI-compatible one, under load.

  python -m scripts.bench --stack NAME --out DIR
  python -m scripts.bench --url URL --model ID --concurrency 1,8,64 --out DIR
  python -m scripts.bench compare DIR DIR
  python -m scripts.bench report DIR

Loads are closed loops (--concurrency), open loops (--request-rate), or both, over a grid of prompt and answer lengths. Every point
is stored when it ends, and --resume continues a sweep. docs/benchmarking.md describes loads, results and validity.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from contracts.exit_codes import ExitCode
from scripts.bench.options import BenchOptions
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch, Option


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `compare`."""

    before: Annotated[Path, Option("Folder of the sweep to compare with.", positional=True)]
    after: Annotated[Path, Option("Folder of the sweep to judge.", positional=True)]
    threshold: Annotated[float, Option("Share by which a figure may get worse.", least=0, most=1)] = 0.05
    confidence: Annotated[float, Option("Confidence of the intervals.", least=0.5, most=0.9999)] = 0.95
    out: Annotated[Path | None, Option("Also write the Markdown to this file.", metavar="FILE")] = None
    as_json: JsonSwitch = False


@dataclass(frozen=True, kw_only=True)
class ReportFolder:
    """Options of `report`."""

    folder: Annotated[Path, Option("Folder of a sweep.", positional=True)]


def _bench(options: BenchOptions) -> ExitCode:
    from scripts.bench.run import run_benchmark

    return run_benchmark(options)


def _compare(options: CompareOptions) -> ExitCode:
    """Compare two sweeps point by point, as Markdown for a pull request.

    Exit code 1 if a figure got worse beyond the threshold.
    """
    from scripts.bench.compare import compare_folders, comparison_json, comparison_markdown

    comparison = compare_folders(
        options.before, options.after, threshold=options.threshold, confidence=options.confidence
    )
    text = comparison_markdown(comparison)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    print(json.dumps(comparison_json(comparison)) if options.as_json else text)
    return ExitCode.FAILED if comparison.worse else ExitCode.DONE


def _report(options: ReportFolder) -> ExitCode:
    """Write the reports of a folder again from its results.jsonl."""
    from scripts.bench.report import write_reports

    for path in write_reports(options.folder):
        print(path)
    return ExitCode.DONE


COMMAND: Final = Command(
    name="bench",
    help=__doc__,
    options=BenchOptions,
    run=_bench,
    subcommands=(
        Command(name="compare", help=_compare.__doc__, options=CompareOptions, run=_compare),
        Command(name="report", help=_report.__doc__, options=ReportFolder, run=_report),
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
