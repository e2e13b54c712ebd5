"""Render a report as a table for the terminal, JSON for programs, and JUnit XML for CI."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.text import Text

from contracts.errors import CommandRefusedError
from scripts.cli.tables import console, paragraph, table
from scripts.smoke.results import SCHEMA_VERSION, CheckResult, SmokeReport

_COLORS: Final = {
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
    counts = {verdict: sum(check.outcome.verdict == verdict for check in report.checks) for verdict in _COLORS}
    parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return f"{_HEADS[report.verdict]}: {parts}, {report.elapsed_s:.1f} s"


def publish(report: SmokeReport, *, as_json: bool, junit: Path | None) -> None:
    """Print the report on stdout and, if `junit` is set, write JUnit XML. Raises CommandRefusedError if the file cannot be written."""
    if junit is not None:
        try:
            junit.parent.mkdir(parents=True, exist_ok=True)
            junit.write_text(to_junit(report), encoding="utf-8")
        except OSError as error:
            raise CommandRefusedError(f"Cannot write --junit {junit}: {error.strerror}.") from None
    if as_json:
        print(json.dumps(to_json(report)))
    print_table(report, console(sys.stderr if as_json else sys.stdout))


def print_table(report: SmokeReport, target: Console) -> None:
    """Print the table, the notes of its checks, a note if the server is simulated, and the summary."""
    headings = ("check", "result", "measured", "expected", "s")
    shown = table(
        f"{report.model} at {report.url}", headings, whole=("check", "result"), numbers=("s",), least=("s", "expected")
    )
    for check in report.checks:
        outcome = check.outcome
        verdict = Text(outcome.verdict, style=_COLORS[outcome.verdict])
        shown.add_row(check.name, verdict, outcome.measured, outcome.wanted, f"{check.elapsed_s:.1f}")
    target.print(shown)
    for (detail, verdict), names in _notes(report).items():
        paragraph(target, detail, prefix=Text(f"{', '.join(names)}: ", _COLORS[verdict]))
    if report.simulated is not None:
        paragraph(target, Text(SIMULATED_NOTE, style="yellow"))
    paragraph(target, Text(summary(report), style="green" if report.passed else "red"))


def _notes(report: SmokeReport) -> dict[tuple[str, str], list[str]]:
    """Return the names of the checks by their note and verdict, in the order of the first of them."""
    found: dict[tuple[str, str], list[str]] = {}
    for check in report.checks:
        if check.outcome.detail:
            found.setdefault((check.outcome.detail, check.outcome.verdict), []).append(check.name)
    return found


def to_json(report: SmokeReport) -> dict[str, Any]:
    """Return the report as JSON types, as docs/smoke.md describes."""
    checks = [
        {"name": check.name, **asdict(check.outcome), "elapsed_s": round(check.elapsed_s, 3)} for check in report.checks
    ]
    figures = {
        "verdict": report.verdict,
        "passed": report.passed,
        "elapsed_s": round(report.elapsed_s, 3),
        "checks": checks,
    }
    return {"schema_version": SCHEMA_VERSION, **asdict(report), **figures}


def to_junit(report: SmokeReport) -> str:
    """Return JUnit XML: one test case per check, with warnings in the test case's output."""
    counts = {verdict: sum(check.outcome.verdict == verdict for check in report.checks) for verdict in _COLORS}
    suite = ET.Element(
        "testsuite",
        name=f"smoke {report.stack or report.url}",
        tests=str(len(report.checks)),
        failures=str(counts["failed"]),
        errors=str(counts["unknown"]),
        skipped=str(counts["skipped"] + counts["not run"]),
        time=f"{report.elapsed_s:.3f}",
    )
    if report.simulated is not None:
        properties = ET.SubElement(suite, "properties")
        ET.SubElement(properties, "property", name="simulated", value=report.simulated)
    for check in report.checks:
        _case(suite, report, check)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, report: SmokeReport, check: CheckResult) -> None:
    case = ET.SubElement(
        suite, "testcase", classname=f"smoke.{report.stack or 'url'}", name=check.name, time=f"{check.elapsed_s:.3f}"
    )
    outcome = check.outcome
    message = _printable(f"measured {outcome.measured}; expected {outcome.wanted}; {outcome.detail}")
    if outcome.verdict == "failed":
        ET.SubElement(case, "failure", message=message)
    elif outcome.verdict == "unknown":
        ET.SubElement(case, "error", message=message)
    elif outcome.verdict in {"skipped", "not run"}:
        ET.SubElement(case, "skipped", message=_printable(outcome.detail))
    else:
        ET.SubElement(case, "system-out").text = f"{outcome.verdict}: {message}"


def _printable(text: str) -> str:
    """Return the text without the control characters that XML forbids."""
    return "".join(char for char in text if char >= " " or char in "\t\n")
