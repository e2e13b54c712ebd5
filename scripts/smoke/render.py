"""The report as a table for people, as JSON for programs, and as JUnit XML for CI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from rich.table import Table
from rich.text import Text

from scripts.smoke.results import SCHEMA_VERSION, CheckResult, SmokeReport

if TYPE_CHECKING:
    from rich.console import Console

_COLOURS: Final = {"passed": "green", "failed": "bold red", "warned": "yellow", "skipped": "dim", "not run": "dim"}
SIMULATED_NOTE: Final = (
    "The server is SIMULATED: its answers prove the plumbing and its speed proves nothing about real hardware."
)


def summary(report: SmokeReport) -> str:
    """One line that says how it went."""
    counts = {verdict: sum(check.outcome.verdict == verdict for check in report.checks) for verdict in _COLOURS}
    parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    head = "interrupted" if report.interrupted else ("smoke passed" if report.passed else "smoke FAILED")
    return f"{head}: {parts}, {report.elapsed_s:.1f} s"


def print_table(report: SmokeReport, console: Console) -> None:
    """The table, the simulation note where it applies, and the summary."""
    table = Table(title=f"{report.model} at {report.url}", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for name in ("measured", "wanted", "note"):
        table.add_column(name, overflow="fold")
    table.add_column("s", justify="right", no_wrap=True)
    for check in report.checks:
        outcome = check.outcome
        table.add_row(
            check.name,
            Text(outcome.verdict, style=_COLOURS[outcome.verdict]),
            Text(outcome.measured),
            Text(outcome.wanted),
            Text(outcome.detail),
            f"{check.elapsed_s:.1f}",
        )
    console.print(table)
    if report.simulated is not None:
        console.print(Text(SIMULATED_NOTE, style="yellow"))
    console.print(Text(summary(report), style="green" if report.passed else "red"))


def to_json(report: SmokeReport) -> dict[str, Any]:
    """JSON types only; the schema is docs/smoke.md's."""
    return {
        "schema_version": SCHEMA_VERSION,
        "stack": report.stack,
        "url": report.url,
        "model": report.model,
        "simulated": report.simulated,
        "passed": report.passed,
        "interrupted": report.interrupted,
        "elapsed_s": round(report.elapsed_s, 3),
        "checks": [
            {
                "name": check.name,
                "verdict": check.outcome.verdict,
                "measured": check.outcome.measured,
                "wanted": check.outcome.wanted,
                "detail": check.outcome.detail,
                "values": dict(check.outcome.values),
                "elapsed_s": round(check.elapsed_s, 3),
            }
            for check in report.checks
        ],
    }


def to_junit(report: SmokeReport) -> str:
    """JUnit XML: one case a check; warnings stand in the case's output."""
    counts = {verdict: sum(check.outcome.verdict == verdict for check in report.checks) for verdict in _COLOURS}
    suite = ET.Element(
        "testsuite",
        name=f"smoke {report.stack or report.url}",
        tests=str(len(report.checks)),
        failures=str(counts["failed"]),
        errors="0",
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
    message = _printable(f"measured {outcome.measured}; wanted {outcome.wanted}; {outcome.detail}")
    if outcome.verdict == "failed":
        ET.SubElement(case, "failure", message=message)
    elif outcome.verdict in {"skipped", "not run"}:
        ET.SubElement(case, "skipped", message=_printable(outcome.detail))
    else:
        ET.SubElement(case, "system-out").text = f"{outcome.verdict}: {message}"


def _printable(text: str) -> str:
    """XML cannot hold control characters; a server's words may."""
    return "".join(char for char in text if char >= " " or char in "\t\n")
