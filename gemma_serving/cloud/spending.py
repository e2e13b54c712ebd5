"""Age, cost and idle time of stacks against their limits. Limits, ages and states come from Google, not from settings.

Past TPU VMs count too: `pulumi up` keeps their record in the stack's service account (contracts.run_record). Costs are known prices times
lifetime: an upper bound if contracts grant discounts or the end of a machine is unknown. Usage of Cloud
Run instances is read from Cloud Monitoring; if that is denied, only the instances that always run are counted, and the report states so.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal
from urllib.parse import urlencode

from gemma_serving.cloud.capacity import ListedNode
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError
from gemma_serving.cloud.kinds import ACCOUNT, INSTANCE, NODE, QUEUED, SERVICE
from gemma_serving.cloud.prices import (
    SERVING,
    has_price,
    prices_of,
    running_usd_per_hour,
    seen_instance,
    seen_node,
    seen_queued,
    seen_service,
    total,
    usd_per_hour,
)
from gemma_serving.cloud.tpu_machine import TpuMachine, idle_since
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.labels import Ownership, StackLimits
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.proof import Proof
from gemma_serving.contracts.run_record import MICROS, RecordError, RunRecord, RunUse, Seen
from gemma_serving.contracts.search_results import FoundResource
from gemma_serving.contracts.three_answers import Absent, Present, Unknown
from gemma_serving.planning.data.prices import Price
from gemma_serving.planning.units import duration

RecordWord = Literal["present", "absent", "unknown"]
_HOUR_S: Final = 3600.0
_IDLE: Final = "tpu.idleAfter"
_METRIC: Final = "run.googleapis.com/container/billable_instance_time"
"""Billable time aggregated across all container instances (Google Cloud metrics list, Cloud Run), in seconds."""
_DAY: Final = timedelta(days=1)
_LONGEST_WINDOW: Final = timedelta(weeks=6)
"""Time for which Cloud Monitoring keeps metrics of Google's services (Cloud Monitoring, quotas and limits, data retention)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpending:
    """A stack's use of its limits."""

    owner: Ownership
    limits: StackLimits
    age_s: float
    """Seconds since the first start of a server, across all machines since; 0 if none has started."""
    usd: float
    """Cost of the stack since then, including past TPU VMs."""
    usd_last_day: float | None = None
    """Cost in the last 24 hours; None if unknown. The record has no times of past TPU VMs."""
    usd_per_hour: float | None
    """Current cost while idle; None if a price is unknown."""
    running_usd_per_hour: float | None = None
    """Cost of its slices, or of one instance of its service, while they run; None if a price is unknown."""
    is_least: bool = False
    """True if a part of the cost could not be read, so `usd` is a lower bound."""
    usd_by_name: Mapping[str, float] = field(default_factory=dict[str, float])
    """Parts of `usd` by the resource's full name; of the account, the cost of past TPU VMs. A part that is unknown is absent."""
    prices: Sequence[Price] = ()
    """Prices of its current TPU VMs, or of its service."""
    idle: Literal["idle", "busy", "unknown"] | None = None
    """Report of its TPU VMs; None without `tpu.idleAfter` or without a machine."""
    idle_s: float | None = None
    """Seconds without a request; None unless `idle`."""
    unknown: Sequence[str] = ()
    record: RecordWord = "absent"
    since: str | None = None
    read: Sequence[str] = ()

    @property
    def _uses(self) -> Iterator[tuple[str, str, bool]]:
        """Each limit and its use, as text, and whether it is exceeded."""
        of = self.limits
        if of.max_age_s is not None:
            age = f"(age {duration(self.age_s)})"
            yield f"maxAge {duration(of.max_age_s)}", age, self.age_s > of.max_age_s
        if of.max_usd is not None:
            yield f"maxUsd {of.max_usd}", f"(cost ${self.usd:,.2f})", self.usd > of.max_usd
        if of.idle_after_s is not None:
            idle_s = self.idle_s or 0.0
            idle = f"(no request for {duration(idle_s)})"
            yield f"{_IDLE} {duration(of.idle_after_s)}", idle, idle_s > of.idle_after_s

    @property
    def limits_text(self) -> str:
        """The limits as text; empty without limits."""
        return " and ".join(limit for limit, _, _ in self._uses)

    @property
    def exceeded(self) -> Sequence[str]:
        """Exceeded limits, as text."""
        return [f"{limit} {use}" for limit, use, is_over in self._uses if is_over]

    @property
    def proof(self) -> Proof | None:
        """The proof that its figures exceed a limit in its labels; otherwise None. An unknown figure exceeds none."""
        claim = f"stack {self.owner.stack} exceeds {' and '.join(self.exceeded)}"
        owners = {self.owner.stack: self.owner}
        return Proof(claim=claim, source="; ".join(self.read), owners=owners) if self.exceeded else None

    @property
    def verdict(self) -> Literal["within", "exceeded", "unknown", "no limit"]:
        """Result of the comparison. It is unknown if a figure could not be read, unless one exceeds a limit."""
        if not self.limits.labels:
            return "no limit"
        if self.exceeded:
            return "exceeded"
        return "unknown" if self.unknown else "within"

    def sentence(self) -> str:
        """Return the stack's use of its limits as a sentence."""
        name = f"stack {self.owner.stack}"
        if self.verdict == "no limit":
            return f"{name} has no limit; it is {duration(self.age_s)} old and has cost ${self.usd:,.2f}."
        if self.verdict == "exceeded":
            return f"{name} exceeds {' and '.join(self.exceeded)}."
        used = f"{duration(self.age_s)} old, ${self.usd:,.2f}"
        used += {"idle": f", idle for {duration(self.idle_s or 0.0)}", "busy": ", busy"}.get(self.idle or "", "")
        if self.verdict == "unknown":
            return f"{name}: use of {self.limits_text} is unknown; it is at least {used}."
        return f"{name} is within {self.limits_text}: {used}."


def spending(api: GoogleApi, found: Sequence[FoundResource], now: datetime) -> Sequence[StackSpending]:
    """Return each stack's use of its limits, by name. Needs two calls for a service that scales with requests, otherwise none."""
    stacks: dict[tuple[str, str], list[FoundResource]] = {}
    for item in found:
        stacks.setdefault((item.owner.project, item.owner.stack), []).append(item)
    return [_spending(_StackFigures(api=api, now=now, found=items)) for _, items in sorted(stacks.items())]


def account_of(project: str, stack: str) -> str:
    """Return the full name of the service account with a stack's record."""
    return f"projects/{project}/serviceAccounts/{Names(project=project, stack=stack).account_email}"


@dataclass(slots=True)
class _StackFigures:
    """Figures of one stack, and those that could not be read."""

    api: GoogleApi
    now: datetime
    found: Sequence[FoundResource]
    lines: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])
    is_least: bool = False

    def one(self, kind: str) -> FoundResource | None:
        return next((item for item in self.found if item.kind == kind), None)

    def record(self) -> tuple[RunRecord, RecordWord]:
        """Return the record of past TPU VMs, and its state."""
        account, doubt = self.one(ACCOUNT), ""
        if account is None and not any(item.kind in SERVING for item in self.found):
            return RunRecord(), "absent"
        if account is None:
            doubt = "The stack's service account, which records its first start and the cost of past TPU VMs, was not found."
        else:
            try:
                record = RunRecord.of(str(account.document.get("description") or ""))
            except RecordError as error:
                doubt = f"The record in the description of {account.name} cannot be read ({error})."
            else:
                return (RunRecord(), "absent") if record is None else (record, "present")
        self.unknown.append(f"{doubt} Only current resources are counted.")
        self.is_least = True
        return RunRecord(), "unknown"


def _spending(read: _StackFigures) -> StackSpending:
    found, now_s = read.found, read.now.timestamp()
    limits, names = _limits(found), _seen(found)
    record, word = read.record()
    account = read.one(ACCOUNT)
    where = f"the description of {account.id if account else ''}"
    first_s = record.first_start_s([*names])
    age_s = 0.0 if first_s is None else max(0.0, now_s - first_s)
    if first_s is not None:
        source = where if record.since_s == first_s else "current resources"
        read.lines.append(f"age {duration(age_s)}: first start {_shown(first_s)}, from {source}")
    past = account.name if account else ""
    unpriced = set[str]()
    day_s = int((read.now - _DAY).timestamp())
    in_day: list[float | None] = [None] if word == "unknown" else []
    priced = [item for item in found if has_price(item)]
    usd_by_name = defaultdict[str, float](float, {item.name: 0.0 for item in priced})
    if record.spent_micros:
        usd_by_name[past] = record.spent_micros / MICROS
        read.lines.append(f"${usd_by_name[past]:,.2f}: past TPU VMs, from {where}")
        in_day.append(usd_by_name[past] if first_s is not None and first_s >= day_s else None)
    for use in record.uses([*names], int(now_s)):
        name = names[use.seen] if use.seen else past
        if use.run.is_service:
            usd, day_usd = _billed_usd(read, use, limits)
        else:
            usd, day_usd = use.micros / MICROS, use.micros_since(day_s) / MICROS
            read.lines.append(_line(use))
        usd_by_name[name] += usd
        in_day.append(day_usd if use.run.micros_per_hour else None)
        if not use.run.micros_per_hour:
            unpriced.add(name)
            if limits.max_usd is not None:
                read.unknown.append(f"The price list has no entry for {_name(use)}, so its cost is unknown.")
    idle, idle_s = _idle(read, limits)
    return StackSpending(
        owner=found[0].owner,
        limits=limits,
        age_s=age_s,
        usd=sum(usd_by_name.values()),
        usd_last_day=total(in_day),
        usd_per_hour=total(map(usd_per_hour, priced)),
        running_usd_per_hour=total(map(running_usd_per_hour, priced)),
        is_least=read.is_least or bool(unpriced),
        usd_by_name={name: usd for name, usd in usd_by_name.items() if name not in unpriced},
        prices=tuple(price for item in priced for price in prices_of(item)),
        idle=idle,
        idle_s=idle_s,
        unknown=tuple(read.unknown),
        record=word,
        since=None if first_s is None else _shown(first_s),
        read=tuple(read.lines),
    )


def _idle(read: _StackFigures, limits: StackLimits) -> tuple[Literal["idle", "busy", "unknown"] | None, float | None]:
    """Return whether the TPU VMs are idle, and for how long. Reads them only if the stack has the limit."""
    machines = [TpuMachine(api=read.api, name=item.name) for item in read.found if item.kind in {NODE, INSTANCE}]
    if limits.idle_after_s is None or not machines:
        return None, None
    match idle_since(machines, read.now):
        case Present(value=since):
            read.lines.append(
                f"no request since {_stamp(since.astimezone(UTC))}, from the guest attributes of the TPU VM"
            )
            return "idle", max(0.0, (read.now - since).total_seconds())
        case Absent():
            read.lines.append("busy, from the guest attributes of the TPU VM")
            return "busy", None
        case Unknown(why=why):
            read.unknown.append(
                f"Whether the stack is idle is unknown: {why}. It is not torn down because of tpu.idleAfter."
            )
            return "unknown", None


def _shown(at_s: int) -> str:
    return _stamp(datetime.fromtimestamp(at_s, UTC))


def _name(use: RunUse) -> str:
    return "a past server" if use.seen is None else use.seen.name.rpartition("/")[2]


def _line(use: RunUse) -> str:
    """Return the cost of one machine and its source."""
    usd = f"${use.micros / MICROS:,.2f}"
    start = _shown(use.run.start_s)
    if use.is_bound:
        limit = "its run limit" if use.run.longest_s is not None else "no known run limit"
        end = f"its end is unknown, so it counts until {_shown(use.end_s)} ({limit})"
        return f"{usd} maximum: {_name(use)}, started {start}; {end}"
    return f"{usd}: {_name(use)}, since {start}, from {use.seen.name if use.seen else ''}"


def _seen(found: Sequence[FoundResource]) -> Mapping[Seen, str]:
    """Return the TPU VMs and the service that a search found, with their full names."""
    seen: dict[Seen | None, str] = {}
    for item in found:
        if item.kind == QUEUED:
            nodes = [node for node in found if node.kind == NODE and ListedNode(node.document).request == item.id]
            nodes.sort(key=lambda node: node.created)
            seen[seen_queued(item.document, nodes[0].document if nodes else None)] = item.name
        elif item.kind == NODE and not ListedNode(item.document).request:
            seen[seen_node(item.document)] = item.name
        elif item.kind == INSTANCE:
            seen[seen_instance(item.document, item.location)] = item.name
        elif item.kind == SERVICE:
            seen[seen_service(item.document, item.location)] = item.name
    return {one: name for one, name in seen.items() if one is not None}


def _billed_usd(read: _StackFigures, use: RunUse, limits: StackLimits) -> tuple[float, float | None]:
    """Return the cost of a service since its first start and in the last day, at its highest price. None: unknown."""
    run, service = use.run, read.one(SERVICE)
    start = datetime.fromtimestamp(run.start_s, UTC)
    owner, project = read.found[0].owner, read.found[0].project
    name = service.id if service else Names(project=project, stack=owner.stack).base
    was_recreated = use.seen is not None and use.seen.requested_s > use.run.start_s
    if was_recreated or read.now - start > _LONGEST_WINDOW:
        read.is_least = True
        if limits.max_usd is not None:
            read.unknown.append(
                f"{name} was recreated or is older than six weeks, so Cloud Monitoring may lack some of its cost."
            )
    try:
        billed_s, day_s = _billed_s(read.api, project, name, start, read.now)
    except (GoogleListError, ScriptError) as error:
        least = (usd_per_hour(service) or 0.0) if service else 0.0
        usd = least * (read.now - start).total_seconds() / _HOUR_S
        read.is_least = True
        read.unknown.append(f"Use of {name} could not be read, so only instances that always run are counted: {error}")
        read.lines.append(f"${usd:,.2f}: instances of {name} that always run, since {_shown(run.start_s)}")
        return usd, None
    usd_per_s = run.micros_per_hour / MICROS / _HOUR_S
    usd = usd_per_s * billed_s
    read.lines.append(
        f"${usd:,.2f}: {billed_s:,.0f} s of instances of {name} at ${run.micros_per_hour / MICROS:,.2f}/h "
        f"since {_shown(run.start_s)}, from Cloud Monitoring"
    )
    return usd, usd_per_s * day_s


def _limits(found: Sequence[FoundResource]) -> StackLimits:
    """Return the strictest limits of the resources, because an interrupted update may have changed only some."""
    every = [StackLimits.of(item.labels) for item in found]
    ages = [one.max_age_s for one in every if one.max_age_s is not None]
    costs = [one.max_usd for one in every if one.max_usd is not None]
    idle = [one.idle_after_s for one in every if one.idle_after_s is not None]
    return StackLimits(
        max_age_s=min(ages, default=None), max_usd=min(costs, default=None), idle_after_s=min(idle, default=None)
    )


def _billed_s(api: GoogleApi, project: str, service: str, start: datetime, now: datetime) -> tuple[float, float]:
    """Return the billed instance seconds of a service in any region, as far back as Cloud Monitoring has them, and of the last day."""
    start = max(start, now - _LONGEST_WINDOW)
    if start >= now:  # Google's clock is ahead of this machine's, and Cloud Monitoring rejects such an interval
        return 0.0, 0.0
    query = urlencode(
        {
            "filter": f'metric.type="{_METRIC}" AND resource.labels.service_name="{service}"',
            "interval.startTime": _stamp(start),
            "interval.endTime": _stamp(now),
            "aggregation.alignmentPeriod": "3600s",
            "aggregation.perSeriesAligner": "ALIGN_SUM",
        }
    )
    billed_s = day_s = 0.0
    for page in api.pages("monitoring", f"v3/projects/{project}/timeSeries?{query}"):
        for series in map(as_mapping, as_sequence(page.get("timeSeries"))):
            for point in map(as_mapping, as_sequence(series.get("points"))):
                seconds = float(str(as_mapping(point.get("value")).get("doubleValue") or 0))
                billed_s += seconds
                end = datetime.fromisoformat(str(as_mapping(point.get("interval")).get("endTime")))
                day_s += seconds if end > now - _DAY else 0.0
    return billed_s, day_s


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
