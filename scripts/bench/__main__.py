"""Measure a deployed server, or any OpenAI-compatible one, under load.

  python -m scripts.bench --stack NAME --out DIR
  python -m scripts.bench --url URL --model ID --concurrency 1,8,64 --out DIR
  python -m scripts.bench compare DIR DIR
  python -m scripts.bench compare --live URL URL --concurrency 8 --folder DIR
  python -m scripts.bench report DIR
  python -m scripts.bench export DIR --form vllm --out DIR
  python -m scripts.bench --stack NAME --find slo --slo ttft=1,tpot=0.05 --input-tokens 1024 --out DIR

Loads are closed loops (--concurrency), open loops (--request-rate), or both, over a grid of prompt and answer lengths. Every point
is stored when it ends, and --resume continues a sweep. docs/benchmarking.md describes loads, results and validity.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from contracts.exit_codes import ExitCode
from scripts.bench.options import BenchOptions, LiveOptions
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch, Option

if TYPE_CHECKING:
    from scripts.bench.compare import Comparison


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `compare`."""

    before: Annotated[
        str,
        Option(
            "Folder of the sweep to compare with, or results of vllm bench serve or GuideLLM; with --live a URL or a stack.",
            positional=True,
        ),
    ]
    after: Annotated[
        str,
        Option(
            "Folder of the sweep to judge, or results of another tool; with --live a URL or a stack.", positional=True
        ),
    ]
    live: LiveOptions
    threshold: Annotated[float, Option("Share by which a figure may get worse.", least=0, most=1)] = 0.05
    confidence: Annotated[float, Option("Confidence of the intervals.", least=0.5, most=0.9999)] = 0.95
    out: Annotated[
        Path | None, Option("Also write the Markdown to this file; FILE.html gets a page with charts.", metavar="FILE")
    ] = None
    as_json: JsonSwitch = False


def _keys(text: str) -> tuple[str, ...]:
    """Read `closed-c8-i128-o128-n0,closed-c64-i128-o128-n0`."""
    keys = tuple(part.strip() for part in text.split(","))
    if not all(keys):
        raise ValueError("keys of points, such as closed-c8-i128-o128-n0")
    return keys


def _form(text: str) -> str:
    if text not in {"vllm", "guidellm"}:
        raise ValueError("vllm or guidellm")
    return text


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of `export`."""

    folder: Annotated[Path, Option("Folder of a sweep.", positional=True)]
    form: Annotated[str, Option("vllm or guidellm.", parse=_form, metavar="TOOL")]
    out: Annotated[Path, Option("Folder for the files.", metavar="DIR")]
    as_json: JsonSwitch = False


@dataclass(frozen=True, kw_only=True)
class ReportFolder:
    """Options of `report`."""

    folder: Annotated[Path, Option("Folder of a sweep.", positional=True)]
    points: Annotated[
        tuple[str, ...],
        Option(
            "Points to draw over time, by their keys (default: the highest loads, and points that are not valid).",
            parse=_keys,
            metavar="KEYS",
        ),
    ] = ()


def _bench(options: BenchOptions) -> ExitCode:
    from scripts.bench.run import run_benchmark

    return run_benchmark(options)


def _compare(options: CompareOptions) -> ExitCode:
    """Compare two sweeps point by point, as Markdown for a pull request.

    With --live, measure two running servers in turns until every figure is decided. Exit code 1 if a figure got worse beyond the
    threshold.
    """
    from scripts.bench.compare import compare_folders, comparison_json, comparison_markdown
    from scripts.bench.compare_page import comparison_page

    if options.live.live:
        comparison = _compare_live(options)
    else:
        comparison = compare_folders(
            Path(options.before), Path(options.after), threshold=options.threshold, confidence=options.confidence
        )
    text = comparison_markdown(comparison)
    if options.out is not None:
        written = comparison_page(comparison) if options.out.suffix == ".html" else text
        options.out.write_text(written, encoding="utf-8")
    print(json.dumps(comparison_json(comparison)) if options.as_json else text)
    return ExitCode.FAILED if comparison.worse else ExitCode.DONE


def _compare_live(options: CompareOptions) -> "Comparison":
    from scripts.bench.live import LivePlan, check_folder, compare_live
    from scripts.bench.progress import reporter_for_stderr

    live = options.live
    plan = LivePlan(
        before=options.before,
        after=options.after,
        model=live.model,
        sweep=live.sweep(),
        folder=check_folder(live.folder),
        threshold=options.threshold,
        confidence=options.confidence,
        most_rounds=live.rounds,
    )
    return compare_live(plan, reporter_for_stderr())


def _report(options: ReportFolder) -> ExitCode:
    """Write the reports of a folder again from its results.jsonl."""
    from scripts.bench.report import write_reports

    for path in write_reports(options.folder, options.points):
        print(path)
    return ExitCode.DONE


def _export(options: ExportOptions) -> ExitCode:
    """Write the points of a folder as result files of vllm bench serve or GuideLLM."""
    from scripts.bench.foreign import export_folder
    from scripts.bench.store import read_results

    paths = export_folder(read_results(options.folder), options.form, options.out)
    print(
        json.dumps({"schema_version": 1, "files": [str(path) for path in paths]})
        if options.as_json
        else "\n".join(map(str, paths))
    )
    return ExitCode.DONE


COMMAND: Final = Command(
    name="bench",
    help=__doc__,
    options=BenchOptions,
    run=_bench,
    subcommands=(
        Command(name="compare", help=_compare.__doc__, options=CompareOptions, run=_compare),
        Command(name="export", help=_export.__doc__, options=ExportOptions, run=_export),
        Command(name="report", help=_report.__doc__, options=ReportFolder, run=_report),
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
