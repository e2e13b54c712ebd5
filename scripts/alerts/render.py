"""Alerts as text within 80 columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from rich.console import Console

from gemma_serving.cloud.alerts import NOT_EVALUATED, AlertReport, StackAlert
from gemma_serving.planning.units import duration
from gemma_serving.scripts.cli.tables import FittedTable, paragraph


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTimes:
    """Formats the times of alerts. `zone` None: this machine's time zone."""

    now: datetime
    zone: tzinfo | None

    def of(self, alert: StackAlert) -> tuple[str, str]:
        """Return since when an alert fires, in the zone, and for how long it fires or fired."""
        start = _moment(alert.opened)
        end = _moment(alert.closed) if alert.closed else self.now
        since = "unknown" if start is None else f"{start.astimezone(self.zone):%Y-%m-%d %H:%M:%S %Z}"
        return since, "unknown" if start is None or end is None else duration(max(0.0, (end - start).total_seconds()))


def print_alerts(out: Console, report: AlertReport, times: AlertTimes, *, simulated: bool) -> None:
    """Print a report."""
    count = f"{report.policies} alert{'' if report.policies == 1 else 's'}"
    titles = {alert.title: alert for alert in report.firing}
    words = {"silent": f"none of {count} fires", "fires": f"{len(titles)} of {count} fire"}
    verdict = words.get(report.verdict, "unknown whether an alert fires")
    paragraph(out, f"{report.stack}: {verdict}{' (local cloud, simulated)' if simulated else ''}")
    if report.firing:
        out.print(_table("", report.firing, times), crop=False)
    for alert in titles.values():
        out.print()
        paragraph(out, f"{alert.title}: {alert.meaning}")
        paragraph(out, alert.command, prefix="  first    ")
        paragraph(out, alert.runbook, prefix="  ")
    if report.closed:
        out.print()
        out.print(_table("No longer firing", report.closed, times), crop=False)
    for text in (*report.unread, *report.unwatched):
        paragraph(out, text, prefix="  unknown  ")
    said = any("local cloud does not evaluate" in text for text in report.unwatched)
    for text in report.notes:
        if not (said and text == NOT_EVALUATED):
            paragraph(out, text, prefix="  note     ")


def _table(title: str, alerts: Sequence[StackAlert], times: AlertTimes) -> FittedTable:
    headings = ("alert", "severity", "since", "for")
    shown = FittedTable(title, headings, whole=headings)
    for alert in alerts:
        shown.add_row(alert.title, alert.severity or "", *times.of(alert))
    return shown


def _moment(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text or "").astimezone(UTC)
    except ValueError:
        return None
