"""Alerts as text within 80 columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from rich.console import Console

from cloud.alerts import AlertReport, StackAlert
from planning.units import duration
from scripts.cli.tables import FittedTable, paragraph


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTimes:
    """Formats the times of alerts. `zone` None: this machine's time zone."""

    now: datetime
    zone: tzinfo | None

    def stamp(self, text: str) -> str:
        """Return an RFC 3339 time in the zone."""
        at = _moment(text)
        return "unknown" if at is None else f"{at.astimezone(self.zone):%Y-%m-%d %H:%M:%S %Z}"

    def lasted(self, alert: StackAlert) -> str:
        """Return for how long an alert fires, or fired."""
        start = _moment(alert.opened)
        end = _moment(alert.closed) if alert.closed else self.now
        return "unknown" if start is None or end is None else duration(max(0.0, (end - start).total_seconds()))


def print_alerts(out: Console, report: AlertReport, times: AlertTimes, *, simulated: bool) -> None:
    """Print a report on a console."""
    count = f"{report.policies} alert{'' if report.policies == 1 else 's'}"
    titles = {alert.title: alert for alert in report.firing}
    silent = f"none of {count} fires" if report.verdict == "silent" else "unknown whether an alert fires"
    mark = " (local cloud, simulated)" if simulated else ""
    paragraph(out, f"{report.stack}: {f'{len(titles)} of {count} fire' if titles else silent}{mark}")
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
    for text in report.notes:
        paragraph(out, text, prefix="  note     ")


def _table(title: str, alerts: Sequence[StackAlert], times: AlertTimes) -> FittedTable:
    headings = ("alert", "severity", "since", "for")
    shown = FittedTable(title, headings, whole=headings)
    for alert in alerts:
        shown.add_row(alert.title, alert.severity or "", times.stamp(alert.opened), times.lasted(alert))
    return shown


def _moment(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text or "").astimezone(UTC)
    except ValueError:
        return None
