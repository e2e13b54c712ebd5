"""Render a report as a table for the terminal, and as JSON for programs."""

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from gemma_serving.scripts.cli.check_result import State
from gemma_serving.scripts.cli.command import print_text
from gemma_serving.scripts.cli.tables import FittedTable, console, paragraph
from gemma_serving.scripts.logs.api import start_json
from gemma_serving.scripts.smoke.results import SCHEMA_VERSION, SmokeReport

_COLORS: Final[Mapping[State, str]] = {
    "passed": "green",
    "failed": "bold red",
    "unknown": "bold yellow",
    "warned": "yellow",
    "skipped": "dim",
    "not run": "dim",
}
_HEADS: Final = {
    "passed": "smoke passed",
    "failed": "smoke FAILED",
    "unreachable": "smoke: cannot reach the server; its health is unknown",
    "interrupted": "interrupted",
}
SIMULATED_NOTE: Final = "The server is SIMULATED. Results do not reflect real hardware."


def summary(report: SmokeReport) -> str:
    """Return the result as one line."""
    counts = {state: len(report.of_state(state)) for state in _COLORS}
    parts = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{_HEADS[report.verdict]}: {parts}, {report.elapsed_s:.1f} s"


def publish(report: SmokeReport, *, as_json: bool) -> None:
    """Print the report on stdout. With JSON there, the table is on stderr."""
    if as_json:
        print_text(json.dumps(to_json(report)))
    print_table(report, console(sys.stderr if as_json else sys.stdout))


def print_table(report: SmokeReport, target: Console) -> None:
    """Print the table, the notes of its checks, and the summary."""
    headings = ("check", "result", "measured", "expected", "s")
    shown = FittedTable(
        f"{report.model or 'server'} at {report.url}",
        headings,
        whole=("check", "result"),
        numbers=("s",),
        least=("s", "expected"),
    )
    for check in report.checks:
        outcome = check.outcome
        if outcome.state == "not run":
            continue  # their number and the reason are below the table
        verdict = Text(outcome.state, style=_COLORS[outcome.state])
        shown.add_row(check.name, verdict, outcome.measured, outcome.wanted, f"{check.elapsed_s:.1f}")
    target.print(shown)
    notes: dict[tuple[str, State], list[str]] = {}
    for check in report.checks:
        notes.setdefault((check.outcome.detail, check.outcome.state), []).append(check.name)
    for (detail, state), names in notes.items():
        if detail:
            named = ["not run"] if state == "not run" else names
            paragraph(target, Text.assemble((f"{', '.join(named)}: ", _COLORS[state]), detail))
    if report.simulated is not None:
        paragraph(target, Text(SIMULATED_NOTE, style="yellow"))
    paragraph(target, Text(summary(report), style="green" if report.passed else "red"))


def to_json(report: SmokeReport) -> dict[str, Any]:
    """Return the report as JSON types, as docs/smoke.md describes."""
    return {
        "schema_version": SCHEMA_VERSION,
        "stack": report.stack,
        "url": report.url,
        "model": report.model,
        "simulated": report.simulated,
        "verdict": report.verdict,
        "passed": report.passed,
        "interrupted": report.interrupted,
        "elapsed_s": round(report.elapsed_s, 3),
        "start": start_json(report.start),
        "checks": [
            {
                "name": check.name,
                "verdict": check.outcome.state,
                "measured": check.outcome.measured,
                "wanted": check.outcome.wanted,
                "detail": check.outcome.detail,
                "values": dict(check.outcome.values),
                "elapsed_s": round(check.elapsed_s, 3),
            }
            for check in report.checks
        ],
    }
