"""The report as text: a table of all stacks within 80 columns, then details of each."""

import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from contracts.alerts import RUNBOOK
from contracts.capacity_states import IN_QUEUE
from contracts.guest_attributes import WITH_REASON
from contracts.service_traffic import shares_text
from planning.units import HOUR_S, duration
from scripts.cli.tables import FittedTable, table
from scripts.status.judge import container_of, document_that_serves, end_warning, run_end, short
from scripts.status.report import CloudFacts, StackStatus, StatusReport

_HEADINGS: Final = ("stack", "state", "phase", "left", "requests", "KV", "USD/h", "USD")
_NUMBERS: Final = ("left", "KV", "USD/h", "USD")
_LEAST: Final = ("KV", "requests")
"""Columns that a narrow terminal loses, the least important first. The lines below the table have both."""
_STATES: Final[Mapping[str, str]] = {"WAITING_FOR_RESOURCES": "WAITING"}
"""Short forms of states for the table. The lines below it have the full names."""
_DETAIL_CHARACTERS: Final = 200
_COMMANDS: Final = frozenset({"next", "reboot"})
"""Keys of lines with a command, which are never wrapped."""


Stamp = Callable[[float], str]
"""Formats a time in seconds since 1970."""


class ReportView:
    """A report that rich can render."""

    def __init__(self, report: StatusReport, *, zone_is_utc: bool = False) -> None:
        self._report = report
        self._utc = zone_is_utc

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table and the lines below it. Without a terminal, lines are not wrapped."""
        simulated = " (local cloud, simulated)" if self._report.simulated else ""
        yield _table(self._report, f"{self._stamp(self._report.at_s)}{simulated}")
        width = options.max_width if console.is_terminal else None
        alone = len(self._report.stacks) == 1
        for status in self._report.stacks:
            notes = list(_notes(status, self._stamp, now_s=self._report.at_s, alone=alone))
            if notes:
                lines = ["", *_wrapped("", _heading(status), width)]
                lines += [
                    line for key, words in notes for line in _wrapped(f"  {key:<8} ", words, width, key in _COMMANDS)
                ]
                yield Text("\n".join(lines), no_wrap=True, overflow="ignore")

    def _stamp(self, at_s: float) -> str:
        moment = datetime.fromtimestamp(at_s, UTC).astimezone(UTC if self._utc else None)
        return f"{moment:%Y-%m-%d %H:%M:%S} {moment.tzname()}"


def _wrapped(prefix: str, text: str, width: int | None, whole: bool = False) -> Sequence[str]:
    """Return a line, wrapped at spaces if there is a width. A `whole` line is not wrapped so that a command can be pasted."""
    if width is None or whole:
        return [prefix + text]
    return textwrap.wrap(
        prefix + text,
        width,
        subsequent_indent=" " * len(prefix),
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def figures(status: StackStatus) -> Mapping[str, str]:
    """Return the values of a stack whose changes are reported, without those that change every second."""
    cloud, server = status.cloud, status.server
    found = {
        "deployed": "yes" if status.deployed else "no",
        "state": cloud.state if cloud else "",
        "place": cloud.place or "" if cloud else "",
        "phase": cloud.phase or "" if cloud else "",
        "deadline": cloud.deadline or "" if cloud else "",
        "running": short(cloud.running or "") if cloud else "",
        "traffic": shares_text(cloud.traffic) if cloud and cloud.traffic else "",
        "rollout": cloud.rollout_phase or "" if cloud else "",
        "health": status.health or "",
        "alerts": _alerts(status),
        "drift": " ".join(status.drift),
        "unanswered": " ".join(f"{item.source}: {item.why}" for item in status.unanswered),
        "next": status.next_command,
    }
    if server is not None and server.running_requests is not None:
        found["requests"] = _requests(status)
    return found


def _table(report: StatusReport, title: str) -> FittedTable:
    shown = table(title, _HEADINGS, whole=("stack",), numbers=_NUMBERS, least=_LEAST)
    for status in report.stacks:
        shown.add_row(*_row(status, report.at_s))
    return shown


def _row(status: StackStatus, now_s: float) -> Sequence[str]:
    cloud, server = status.cloud, status.server
    if cloud is None:
        state = (
            "network only"
            if status.target == "gateway"
            else "not deployed"
            if not status.deployed and not status.unanswered
            else "unknown"
        )
        return (status.stack, state, "", "", "", "", "", "")
    left_s = status.left_s(now_s)
    phase = cloud.phase or (status.health if cloud.state == "READY" else "") or ""
    return (
        status.stack,
        _STATES.get(cloud.state, cloud.state),
        phase,
        "" if left_s is None else _left(left_s),
        _requests(status),
        "" if server is None or server.kv_use_share is None else f"{server.kv_use_share:.0%}",
        "" if cloud.usd_per_hour is None else f"{cloud.usd_per_hour:.2f}",
        "" if cloud.usd is None else f"{cloud.usd:.2f}",
    )


def _requests(status: StackStatus) -> str:
    server = status.server
    if server is None or server.running_requests is None:
        return ""
    return f"{server.running_requests:.0f} + {server.waiting_requests or 0:.0f}"


def _left(seconds: float) -> str:
    hours, rest = divmod(int(seconds), HOUR_S)
    return f"{hours}h{rest // 60:02}m" if hours else f"{rest // 60}m{rest % 60:02}s"


def _heading(status: StackStatus) -> str:
    place = status.cloud.place if status.cloud else None
    parts = [status.target, status.accelerator, place, status.model]
    return f"{status.stack}: {', '.join(part for part in parts if part)}".rstrip(": ")


def _notes(status: StackStatus, stamp: Stamp, *, now_s: float, alone: bool) -> Iterator[tuple[str, str]]:
    """Yield the details of a stack. Of several stacks, skip those without a deployment and pending operations."""
    cloud = status.cloud
    if not alone and cloud is None and not status.deployed and not status.waits and not status.unanswered:
        return
    for wait in status.waits:
        yield "waits", wait
    if cloud is not None:
        yield from _running(status, stamp, now_s)
    if status.server is not None:
        yield "health", f"{status.server.health}, {_load(status)}" if _load(status) else status.server.health
    elif status.server_not_asked and cloud is not None:
        yield "health", status.server_not_asked
    yield from _rate(status)
    if cloud is not None and cloud.usd_per_hour is not None:
        yield "limits", _enforced(status)
    if cloud is not None and (idle := _idle(cloud, stamp, now_s)):
        yield "idle", idle
    yield from _judged(status)
    for item in status.unanswered:
        yield "unknown", f"{item.source}: {item.why}"
    yield "next", status.next_command


def _judged(status: StackStatus) -> Iterator[tuple[str, str]]:
    """Yield the alerts and the drift."""
    if (alerts := _alerts(status)) and status.cloud is not None:
        yield "alerts", alerts
    for difference in status.drift:
        yield "drift", difference
    if status.refreshed and not status.drift:
        yield "drift", "none (all resources compared)"


def _alerts(status: StackStatus) -> str:
    """Return the alerts in one line; empty if they were not read."""
    found = status.alerts
    if found is None:
        return ""
    more = f"run gemma alerts {status.stack}"
    if found.firing:
        return f"{', '.join(dict.fromkeys(alert.title for alert in found.firing))}: {more}"
    if found.verdict == "silent":
        return f"none of {found.policies} fires"
    return f"unknown: {more}" if found.policies != 0 else f"nothing watches this stack ({RUNBOOK})"


def _running(status: StackStatus, stamp: Stamp, now_s: float) -> Iterator[tuple[str, str]]:
    cloud = status.cloud
    if cloud is None:
        return
    if status.target == "tpu":
        serves = document_that_serves(cloud)
        yield from [("serves", serves)] if serves else []
        container = container_of(cloud)
        yield from [("container", container)] if container else []
    elif len(cloud.traffic or {}) > 1:
        yield "serves", shares_text(cloud.traffic)
    elif cloud.running:
        same = cloud.running == cloud.stored == cloud.declared
        yield "serves", f"revision {short(cloud.running)}{', as declared' if same else ''}"
    if cloud.rollout:
        yield "rollout", cloud.rollout
    if cloud.phase in WITH_REASON or (cloud.phase_detail and cloud.state == "FAILED"):
        yield "reason", " ".join((cloud.phase_detail or "").split())[-_DETAIL_CHARACTERS:]
    yield from _run_end(status, cloud, stamp, now_s)
    if cloud.archives:
        yield "archives", cloud.archives


def _run_end(status: StackStatus, cloud: CloudFacts, stamp: Stamp, now_s: float) -> Iterator[tuple[str, str]]:
    """Yield the end of the run, past or planned."""
    if ended := run_end(cloud, stamp):
        yield "ended", ended
    if cloud.deadline:
        yield "ends", stamp(datetime.fromisoformat(cloud.deadline).timestamp())
        if warning := end_warning(status, now_s):
            yield "warning", f"Google will delete the machine {warning}"


def _enforced(status: StackStatus) -> str:
    """Return what stops the stack automatically."""
    cloud = status.cloud
    limits, deadline, state = (cloud.limits, cloud.deadline, cloud.state) if cloud else ("", None, "")
    ours = f"{limits}, enforced only by a scheduled `teardown --over-limit`" if limits else "none set"
    if state in IN_QUEUE:
        google = "deletes the capacity request if it waits too long"
    else:
        google = "deletes this machine at its run limit" if deadline else "stops nothing automatically"
    return f"{ours}; Google {google}."


def _idle(cloud: CloudFacts, stamp: Stamp, now_s: float) -> str:
    """Return the idle time of a machine beside its limit; empty for a busy machine, and for an unknown time without a limit."""
    limit = "" if cloud.idle_after_s is None else f"tpu.idleAfter is {duration(cloud.idle_after_s)}"
    if cloud.idle_since is not None:
        since_s = datetime.fromisoformat(cloud.idle_since).timestamp()
        return f"no request for {duration(max(0.0, now_s - since_s))}, since {stamp(since_s)}; {limit or 'tpu.idleAfter is not set'}"
    return f"unknown: the machine {cloud.idle_unknown}; {limit}" if limit and cloud.idle_unknown else ""


def _load(status: StackStatus) -> str:
    server = status.server
    if server is None or server.running_requests is None:
        return ""
    kv = "" if server.kv_use_share is None else f", {server.kv_use_share:.1%} of the KV cache in use"
    return f"{server.running_requests:.0f} requests running, {server.waiting_requests or 0:.0f} waiting{kv}"


def _rate(status: StackStatus) -> Iterator[tuple[str, str]]:
    rate = status.rate
    if rate is None or rate.planned_low_tok_per_s is None or rate.planned_high_tok_per_s is None:
        return
    low, high = rate.planned_low_tok_per_s, rate.planned_high_tok_per_s
    planned = f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
    if rate.measured_tok_per_s is None:
        yield "rate", f"planned {planned} tok/s for one request; not measured (run gemma smoke)"
        return
    old = " with other settings or another image" if rate.measured_is_old else ""
    day = (rate.measured_at or "")[:10]
    yield "rate", f"planned {planned} tok/s for one request, measured {rate.measured_tok_per_s:.0f} on {day}{old}"


def clock_time() -> str:
    """Return the local time for a log line."""
    return time.strftime("%H:%M:%S")
