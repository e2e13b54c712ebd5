"""Predicted against measured: `python -m benchmarks.accuracy` writes docs/accuracy.md; `--check` says whether it is up to date.

Exit codes: 0 written or up to date, 1 out of date or a figure outside its tolerance.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.accuracy.measured import Case, Figure, Measurements, ObservedRun, load, subject_of
from planning.planner import plan

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "accuracy.md"
_PRECISE_BELOW: Final = 100

_HEAD: Final = """# How right the planner is

Written by `python -m benchmarks.accuracy`; a test fails when this page is out of date or a figure leaves its tolerance.
No figure of a deployment enters a formula: the planner computes from dimensions and from the constants in `planning/overheads.py`.

How much each row proves differs. Weights and KV cache follow from dimensions and from vLLM's rules alone. The rates had to be read off
logs: the FUSE rate, the compile time a layer on Cloud Run and the speed of offloaded weights off reports 002 and 003 (their rows
"loading" of 26B-A4B, "compile and warm-up" on the L4 and "decoding" with 14 GiB of offload are therefore no independent check), the XLA
time a program and the cost of a TPU step off the E2B and 31B logs. Independent checks of those rates are: decoding of E2B on v6e-4, of
E4B and 12B on v6e-1, the cold start of 26B-A4B on v6e-4, of E4B and 12B on v6e-1, loading of 31B (400 s), and decoding with 5 GiB of
offload.

Tolerances: weights 3 %, KV cache 5 %, start-up 20 %, decoding of one request 30 %, of 64 requests 50 % (their length differs).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description="Predicted against measured.")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if docs/accuracy.md is out of date"
    )
    args = parser.parse_args(argv)
    measurements = load()
    text = page(measurements)
    if args.check:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print("accuracy: docs/accuracy.md is out of date; run python -m benchmarks.accuracy", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    wrong = misses(measurements)
    for line in wrong:
        print(f"accuracy: {line}", file=sys.stderr)
    return 1 if wrong else 0


def page(measurements: Measurements) -> str:
    """Return the page as Markdown."""
    parts = [
        _HEAD,
        "## Field reports\n",
        *_table(measurements.field_reports),
        "\n## Will it run?\n",
        "| deployment | seen | planned | report |",
        "| --- | --- | --- | --- |",
        *(_outcome_row(outcome) for outcome in measurements.outcomes),
        "\n## Boot logs that others published\n",
        *_table(measurements.boot_logs),
        "\n## Where reports contradict themselves or each other\n",
        "| the report says | the planner says | why |",
        "| --- | --- | --- |",
        *(f"| {row.report} | {row.planner} | {row.why} |" for row in measurements.contradictions),
    ]
    return "\n".join(parts) + "\n"


def misses(measurements: Measurements) -> list[str]:
    """Return the figures outside their tolerance, one sentence each."""
    return [
        f"{case.title}: {figure.kind.name} predicted {predicted:.4g}, measured {figure.measured:.4g}, off by {error:+.1%}"
        for case, figure, predicted, error in compared(measurements.cases)
        if abs(error) > figure.kind.tolerance
    ]


def compared(cases: Iterable[Case]) -> Iterator[tuple[Case, Figure, float, float]]:
    """Yield each figure with the prediction and its relative error."""
    for case in cases:
        subject = subject_of(case)
        for figure in case.figures:
            predicted = figure.kind.read(subject)
            yield case, figure, predicted, predicted / figure.measured - 1


def _table(cases: Iterable[Case]) -> list[str]:
    lines = [
        "| deployment | figure | predicted | measured | error | source |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for case, figure, predicted, error in compared(cases):
        unit = f" {figure.kind.unit}" if figure.kind.unit else ""
        numbers = f"{_number(predicted)}{unit} | {_number(figure.measured)}{unit} | {error:+.1%}"
        lines.append(f"| {case.title} | {figure.kind.name} | {numbers} | {case.source.citation} |")
    return lines


def _outcome_row(run: ObservedRun) -> str:
    seen = "runs" if run.runs else "out of memory"
    reports = ", ".join(source.citation.removeprefix("field report ") for source in run.sources)
    return f"| {run.title} | {seen} | {plan(run.deployment).verdict} | {reports} |"


def _number(value: float) -> str:
    return f"{value:,.2f}" if value < _PRECISE_BELOW else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
