"""The report as text: a table of all stacks within 80 columns, then details of each."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gemma_serving.cloud.service_traffic import shares_text
from gemma_serving.contracts.capacity_states import IN_QUEUE
from gemma_serving.contracts.guest_attributes import FAILED, WITH_REASON, reason_of
from gemma_serving.contracts.stack_facts import INCOMPLETE, CloudFacts
from gemma_serving.contracts.three_answers import Present, Unknown
from gemma_serving.planning.units import HOUR_S, duration
from gemma_serving.scripts.cli.lines import wrapped
from gemma_serving.scripts.cli.tables import FittedTable
from gemma_serving.scripts.logs.api import start_text
from gemma_serving.scripts.stack.costs import cost_columns
from gemma_serving.scripts.stack.serves import Stamp, run_end, short_identity
from gemma_serving.scripts.status.judge import document_that_serves
from gemma_serving.scripts.status.price import TokenPrice
from gemma_serving.scripts.status.report import StackStatus, StatusReport

_HEADINGS: Final = ("stack", "state", "phase", "left", "requests", "KV", "USD/h", "USD")
Shown = Literal["deployed", "all"]
_NUMBERS: Final = ("left", "KV", "USD/h", "USD")
_LEAST: Final = ("KV", "requests", "USD", "left")
"""Columns that a narrow terminal loses, the least important first. The lines below the table have the load and the end."""
_STATES: Final[Mapping[str, str]] = {"WAITING_FOR_RESOURCES": "WAITING"}
"""Short forms of states for the table. The lines below it have the full names."""
_DETAIL_CHARACTERS: Final = 200
"""Length from which no more log lines are shown before a reason. The reason itself is never cut."""
_COMMAND: Final = "next"
"""Key of the line with a command, which is never wrapped."""


class ReportView:
    """A report that rich can render."""

    def __init__(self, report: StatusReport, *, zone_is_utc: bool = False, stacks: Shown = "deployed") -> None:
        """`stacks`: whether stacks that are not deployed are shown too."""
        self._report = report
        self._utc = zone_is_utc
        self._shown = [status for status in report.stacks if stacks == "all" or status.is_shown]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table and the lines below it. Without a terminal, lines are not wrapped."""
        simulated = " (local cloud, simulated)" if self._report.simulated else ""
        title = f"{self._stamp(self._report.at_s)}{simulated}"
        if not self._shown:
            yield Text(title, style="italic")
            yield Text("No stack of this Pulumi backend is deployed.")
            yield Text("`gemma teardown --all --dry-run` searches the project for billed resources.")
            yield Text(f"`gemma status --all` lists all {len(self._report.stacks)} stacks.")
            return
        shown = FittedTable(title, _HEADINGS, whole=("stack", "state", "phase"), numbers=_NUMBERS, least=_LEAST)
        for status in self._shown:
            shown.add_row(*_row(status, self._report.at_s))
        yield shown
        width = options.max_width if console.is_terminal else None
        alone = len(self._report.stacks) == 1
        times = Counter(item.why for status in self._shown for item in status.unanswered)
        shared = [why for why, count in times.items() if count > 1]
        for status in self._shown:
            found = _notes(status, self._stamp, now_s=self._report.at_s, alone=alone, shared=shared)
            notes = [(key, words) for key, words in found if words]
            if notes:
                lines = ["", *_wrapped("", _heading(status), width)]
                lines += [
                    line for key, words in notes for line in _wrapped(f"  {key:<8} ", words, width, key == _COMMAND)
                ]
                yield Text("\n".join(lines), no_wrap=True, overflow="ignore")
        for why in shared:
            stacks = [status.stack for status in self._shown if any(item.why == why for item in status.unanswered)]
            lines = ["", *_wrapped("", f"Unknown for {', '.join(stacks)}: {why}", width)]
            yield Text("\n".join(lines), no_wrap=True, overflow="ignore")

    def _stamp(self, at_s: float) -> str:
        moment = datetime.fromtimestamp(at_s, UTC).astimezone(UTC if self._utc else None)
        return f"{moment:%Y-%m-%d %H:%M:%S} {moment.tzname()}"


def _wrapped(prefix: str, text: str, width: int | None, whole: bool = False) -> Sequence[str]:
    """Return a line, wrapped if `width` is set. A command is `whole`, so it can be pasted."""
    if width is None or whole:
        return [prefix + text]
    return wrapped(prefix + text, width, " " * len(prefix))


def _row(status: StackStatus, now_s: float) -> Sequence[str]:
    cloud, server = status.cloud, status.server
    if cloud is None:
        word = status.serves.shown
        word = INCOMPLETE if word == "not deployed" and status.waits else word
        return (status.stack, word, *[""] * 6)
    left_s, requests = status.left_s(now_s), ""
    if server is not None and server.running_requests is not None:
        requests = f"{server.running_requests:.0f} + {server.waiting_requests or 0:.0f}"
    rolled_back = cloud.phase_now == FAILED and cloud.running not in {None, cloud.reported}
    phase = "rolled back" if rolled_back else cloud.phase_now or (status.health if cloud.state == "READY" else "") or ""
    phase = "unknown" if isinstance(cloud.phase, Unknown) else phase
    return (
        status.stack,
        _STATES.get(cloud.state, cloud.state),
        phase,
        "" if left_s is None else _left(left_s),
        requests,
        "" if server is None or server.kv_use_share is None else f"{server.kv_use_share:.0%}",
        *(("", "") if cloud.usd is None else cost_columns(cloud.usd_per_hour, cloud.usd, is_least=cloud.usd_is_least)),
    )


def _left(seconds: float) -> str:
    hours, rest = divmod(int(seconds), HOUR_S)
    return f"{hours}h{rest // 60:02}m" if hours else f"{rest // 60}m{rest % 60:02}s"


def _heading(status: StackStatus) -> str:
    place = status.cloud.place if status.cloud else None
    parts = [status.target, status.accelerator, place, status.model]
    return f"{status.stack}: {', '.join(part for part in parts if part)}".rstrip(": ")


def _notes(
    status: StackStatus, stamp: Stamp, *, now_s: float, alone: bool, shared: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the details of a stack, each with its key. Of several stacks, skip those without a deployment.

    `shared`: causes of several failed reads, which are shown once below all stacks.
    """
    cloud = status.cloud
    if not alone and cloud is None and status.serves.word == "not deployed" and not status.waits:
        return
    yield from (("pending", wait) for wait in status.waits)
    if cloud is None and status.serves.word == "no server" and not status.waits:
        yield "serves", status.serves.why
        yield "cause", status.serves.cause
    if cloud is not None:
        yield "serves", _serves(status, cloud)
        yield "container", cloud.container or ""
        has_reason = cloud.phase_now in WITH_REASON or cloud.state == "FAILED"
        yield "reason", _reason(cloud.phase_detail or "") if has_reason else ""
        yield "cause", cloud.shortage.sentence if cloud.shortage else status.serves.cause
        why = run_end(cloud, stamp) if cloud.planned_end else status.serves.why
        yield "ended", why if status.serves.word == "ended" else ""
        yield "ends", stamp(datetime.fromisoformat(cloud.deadline).timestamp()) if cloud.deadline else ""
    yield "start", start_text(status.start)
    yield "health", _health(status)
    if cloud is not None:
        yield "limits", _enforced(cloud)
        yield "idle", _idle(cloud, stamp, now_s)
    if (price := status.price) is not None:
        yield "price", _price(price, stamp)
        yield "api", price.api_text
    yield from (("drift", difference) for difference in status.drift)
    yield "drift", "none (all resources compared)" if status.refreshed and not status.drift else ""
    yield from (("unknown", f"{item.source}: {item.why}") for item in status.unanswered if item.why not in shared)
    yield "next", status.next_command


def _reason(detail: str) -> str:
    """Return the reason of a phase, after the log lines before it that are within the limit."""
    lines = [" ".join(line.split()) for line in detail.splitlines()]
    words = " ".join(reason_of(detail).split())
    before = lines[: lines.index(words)] if words else ()
    for line in reversed([line for line in before if line not in words]):
        text = f"{line} {words}".strip()
        if len(text) > _DETAIL_CHARACTERS:
            break
        words = text
    return words


def _serves(status: StackStatus, cloud: CloudFacts) -> str:
    if status.target == "tpu":
        return document_that_serves(cloud, cloud.phase) if isinstance(cloud.phase, Present) else ""
    if cloud.traffic is not None and len(cloud.traffic) > 1:
        return shares_text(cloud.traffic)
    same = ", as declared" if cloud.running == cloud.stored == cloud.declared else ""
    return f"revision {short_identity(cloud.running)}{same}" if cloud.running else ""


def _health(status: StackStatus) -> str:
    """Return the server's health and load, or why it was not queried."""
    server = status.server
    if server is None:
        return (status.server_not_asked or "") if status.cloud is not None else ""
    if server.running_requests is None:
        return server.health
    kv = "" if server.kv_use_share is None else f", {server.kv_use_share:.1%} of the KV cache in use"
    return f"{server.health}, {server.running_requests:.0f} requests running, {server.waiting_requests or 0:.0f} waiting{kv}"


def _enforced(cloud: CloudFacts) -> str:
    """Return what stops the stack automatically; empty without a server."""
    if cloud.usd is None:
        return ""
    if cloud.has_ended and cloud.exceeded:
        return f"{' and '.join(cloud.exceeded)} exceeded: `gemma up` creates the server again only with a higher limit."
    ours = (
        f"{cloud.limits}, enforced only by a scheduled `gemma teardown --all --over-limit`"
        if cloud.limits
        else "none set"
    )
    if cloud.state in IN_QUEUE:
        google = "deletes the capacity request if it waits too long"
    elif cloud.deadline:
        google = "deletes this TPU VM at its run limit"
    else:
        google = "may reclaim this TPU VM (spot)" if cloud.form == "spot" else "stops nothing automatically"
    return f"{ours}; Google {google}."


def _idle(cloud: CloudFacts, stamp: Stamp, now_s: float) -> str:
    """Return the idle time of a machine next to its limit; empty for a busy machine."""
    limit = "" if cloud.idle_after_s is None else f"tpu.idleAfter is {duration(cloud.idle_after_s)}"
    if isinstance(cloud.idle, Present):
        since_s = cloud.idle.value.timestamp()
        return f"no request for {duration(max(0.0, now_s - since_s))}, since {stamp(since_s)}; {limit or 'tpu.idleAfter is not set'}"
    return f"unknown: the TPU VM {cloud.idle.why}; {limit}" if limit and isinstance(cloud.idle, Unknown) else ""


def _price(price: TokenPrice, stamp: Stamp) -> str:
    """Return the price of output tokens since the start and in the last day, beside the planned one."""
    start, day, planned = price.since_start, price.last_day, price.planned_usd_per_million_output_tokens
    words = start.text if start.unknown else f"{start.text} since {stamp(start.since_s)}"
    if day != start:
        words += f"; {day.text} in the last day"
    return words if planned is None else f"{words}; planned ${planned:.2f} at full load"
