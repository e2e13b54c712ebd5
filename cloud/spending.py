"""Stacks that are older or have cost more than their limits. The limits, the ages and the states come from Google, not from settings.

Past machines count too: `pulumi up` keeps their record at the stack's service account (contracts.run_record). Costs are list prices times the time
that something has existed: an upper bound where contracts give discounts, and where the end of a machine is not known. What requests make Cloud
Run start is read from Cloud Monitoring; where that is refused, only the instances that always run are counted, and the report says so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal
from urllib.parse import quote

from cloud.capacity import Node
from cloud.found import FoundResource
from cloud.google_api import GoogleApi, GoogleListError
from cloud.kinds import ACCOUNT, INSTANCE, NODE, QUEUED, SERVICE
from cloud.prices import usd_per_hour
from cloud.seen_machines import seen_instance, seen_node, seen_queued, seen_service
from contracts.answers import Absent, Answer, Present, Unknown
from contracts.errors import ScriptError
from contracts.fields import as_mapping, as_sequence
from contracts.labels import Ownership, StackLimits
from contracts.naming import Names
from contracts.run_record import MICROS, RecordError, RunRecord, Seen, Use
from planning.units import duration

SERVING: Final = (QUEUED, NODE, INSTANCE, SERVICE)
"""Kinds whose age counts. A bucket or an account may be as old as it likes."""
RecordWord = Literal["present", "absent", "unknown"]
_HOUR_S: Final = 3600.0
_METRIC: Final = "run.googleapis.com/container/billable_instance_time"
"""Billable time aggregated across all container instances (Google Cloud metrics list, Cloud Run), in seconds."""
_LONGEST_WINDOW: Final = timedelta(weeks=6)
"""How long Cloud Monitoring keeps points of metrics of Google's services (Cloud Monitoring, quotas and limits, data retention)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpending:
    """What one stack has used of its limits."""

    owner: Ownership
    limits: StackLimits
    age_s: float
    """Since the first start of what serves, over every machine since; 0 if nothing has started."""
    usd: float
    """What the stack has cost since then, past machines included."""
    usd_per_hour: float
    """What it costs now while nobody calls."""
    unknown: Sequence[str] = ()
    """What could not be counted, each a sentence."""
    record: RecordWord = "absent"
    """Whether the record of past machines was read (contracts.run_record)."""
    since: str | None = None
    """When the first machine or service started (RFC 3339)."""
    read: Sequence[str] = ()
    """Each figure with the place where it was read."""

    @property
    def exceeded(self) -> Sequence[str]:
        """The limits that are exceeded, each in words."""
        found: list[str] = []
        if self.limits.max_age_s is not None and self.age_s > self.limits.max_age_s:
            found.append(f"maxAge {duration(self.limits.max_age_s)}: it is {duration(self.age_s)} old")
        if self.limits.max_usd is not None and self.usd > self.limits.max_usd:
            found.append(f"maxUsd {self.limits.max_usd}: it has cost ${self.usd:,.2f}")
        return found

    @property
    def verdict(self) -> Literal["within", "exceeded", "unknown", "no limit"]:
        """Whether the stack is within its limits. With a figure that could not be read it is unknown, unless what was read exceeds one."""
        if not self.limits.labels:
            return "no limit"
        if self.exceeded:
            return "exceeded"
        return "unknown" if self.unknown else "within"

    def sentence(self) -> str:
        """Return the stack's use of its limits in words."""
        name = f"stack {self.owner.stack}"
        used = f"{duration(self.age_s)} old, ${self.usd:,.2f}"
        if self.verdict == "no limit":
            return f"{name} has no limit; it is {duration(self.age_s)} old and has cost ${self.usd:,.2f}."
        if self.verdict == "exceeded":
            return f"{name} exceeds {' and '.join(self.exceeded)}."
        limits = [f"maxAge {duration(self.limits.max_age_s)}"] if self.limits.max_age_s is not None else []
        limits += [f"maxUsd {self.limits.max_usd}"] if self.limits.max_usd is not None else []
        if self.verdict == "unknown":
            return f"{name}: whether it is within {' and '.join(limits)} is unknown; it is at least {used}."
        return f"{name} is within {' and '.join(limits)}: {used}."


def spending(api: GoogleApi, found: Sequence[FoundResource], now: datetime) -> Sequence[StackSpending]:
    """Return what each stack has used of its limits, by name. Takes two calls for a service that requests start, else none."""
    owners = {(item.owner.project, item.owner.stack): item.owner for item in found}
    return [
        _spending(api, owner, [item for item in found if _is_of(item, owner)], now)
        for _, owner in sorted(owners.items())
    ]


def account_of(project: str, stack: str) -> str:
    """Return the full name of the service account that keeps a stack's record."""
    return f"projects/{project}/serviceAccounts/{Names(project=project, stack=stack).account_email}"


def _is_of(item: FoundResource, owner: Ownership) -> bool:
    return (item.owner.project, item.owner.stack) == (owner.project, owner.stack)


@dataclass(slots=True)
class _Read:
    """What was read of one stack, and what could not be."""

    api: GoogleApi
    now: datetime
    found: Sequence[FoundResource]
    lines: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])

    @property
    def now_s(self) -> int:
        """Now, in seconds since 1970."""
        return int(self.now.timestamp())

    @property
    def account(self) -> FoundResource | None:
        """The service account of the stack."""
        return next((item for item in self.found if item.kind == ACCOUNT), None)

    @property
    def account_name(self) -> str:
        """E-mail of that account."""
        return "" if self.account is None else self.account.id

    def record(self) -> Answer[RunRecord]:
        """Return the record of past machines."""
        account = self.account
        if account is None:
            if not any(item.kind in SERVING for item in self.found):
                return Absent()
            return Unknown(
                "The stack's service account, which keeps its first start and what past machines have cost, was not found: "
                "what exists now counts alone."
            )
        try:
            record = RunRecord.of(str(account.document.get("description") or ""))
        except RecordError as error:
            return Unknown(
                f"The record in the description of {account.name} cannot be read ({error}): what exists now counts alone."
            )
        return Absent() if record is None else Present(record)


def _spending(api: GoogleApi, owner: Ownership, found: Sequence[FoundResource], now: datetime) -> StackSpending:
    read = _Read(api=api, now=now, found=found)
    limits, seen = _limits(found), _seen(found)
    word: RecordWord
    match read.record():
        case Present(value=record):
            word = "present"
        case Absent():
            record, word = RunRecord(), "absent"
        case Unknown(why=why):
            record, word = RunRecord(), "unknown"
            read.unknown.append(why)
    first_s = record.first_start_s(seen)
    age_s = 0.0 if first_s is None else max(0.0, now.timestamp() - first_s)
    if first_s is not None:
        is_kept = record.since_s == first_s
        where = f"the description of {read.account_name}" if is_kept else "what exists now"
        read.lines.append(f"age {duration(age_s)}: first start {_shown(first_s)}, from {where}")
    micros = record.spent_micros
    if micros:
        read.lines.append(f"${micros / MICROS:,.2f}: past machines, from the description of {read.account_name}")
    uses = record.uses(seen, read.now_s)
    for use in uses:
        micros += use.micros
        if not use.run.is_service:
            read.lines.append(_line(use))
            if not use.run.micros_per_hour and limits.max_usd is not None:
                read.unknown.append(f"The list of prices has none for {_name(use)}, so its cost is unknown.")
    usd = micros / MICROS + sum(_billed_usd(read, use, limits) for use in uses if use.run.is_service)
    return StackSpending(
        owner=owner,
        limits=limits,
        age_s=age_s,
        usd=usd,
        usd_per_hour=sum(usd_per_hour(item) or 0.0 for item in found if item.kind in SERVING),
        unknown=tuple(read.unknown),
        record=word,
        since=None if first_s is None else _shown(first_s),
        read=tuple(read.lines),
    )


def _shown(at_s: int) -> str:
    return _stamp(datetime.fromtimestamp(at_s, UTC))


def _name(use: Use) -> str:
    return "a past machine" if use.seen is None else use.seen.name.rpartition("/")[2]


def _line(use: Use) -> str:
    """Return what one machine has cost and where that was read."""
    usd = f"${use.micros / MICROS:,.2f}"
    start = _shown(use.run.start_s)
    if use.is_bound:
        limit = "its run limit" if use.run.longest_s is not None else "no run limit is known"
        return f"{usd} at most: {_name(use)}, started {start}; its end is not known, so it counts until {_shown(use.end_s)} ({limit})"
    return f"{usd}: {_name(use)}, since {start}, from {use.seen.name if use.seen else ''}"


def _seen(found: Sequence[FoundResource]) -> Sequence[Seen]:
    """Return the machines and the service that a search found."""
    each = [_seen_one(item, found) for item in found]
    return [one for one in each if one is not None]


def _seen_one(item: FoundResource, found: Sequence[FoundResource]) -> Seen | None:
    if item.kind == QUEUED:
        nodes = sorted(_nodes_of(item, found), key=lambda node: node.created)
        return seen_queued(item.document, nodes[0].document if nodes else None)
    if item.kind == NODE:
        return None if Node(item.document).request else seen_node(item.document)
    if item.kind == INSTANCE:
        return seen_instance(item.document, item.location)
    return seen_service(item.document, item.location) if item.kind == SERVICE else None


def _billed_usd(read: _Read, use: Use, limits: StackLimits) -> float:
    """Return what a service has cost since its first start, at the highest price that it had."""
    run, service = use.run, next((item for item in read.found if item.kind == SERVICE), None)
    start = datetime.fromtimestamp(run.start_s, UTC)
    owner, project = read.found[0].owner, read.found[0].project
    name = service.id if service else Names(project=project, stack=owner.stack).base
    if limits.max_usd is not None:
        read.unknown += _doubts(name, use, start, read.now)
    try:
        billed_s = _billed_s(read.api, project, name, start, read.now)
    except (GoogleListError, ScriptError) as error:
        least = (usd_per_hour(service) or 0.0) if service else 0.0
        usd = least * (read.now - start).total_seconds() / _HOUR_S
        read.unknown.append(f"Use of {name} could not be read, so only instances that always run count: {error}")
        read.lines.append(f"${usd:,.2f}: instances of {name} that always run, since {_shown(run.start_s)}")
        return usd
    usd = run.micros_per_hour / MICROS * billed_s / _HOUR_S
    read.lines.append(
        f"${usd:,.2f}: {billed_s:,.0f} s of instances of {name} at ${run.micros_per_hour / MICROS:,.2f}/h since {_shown(run.start_s)}, "
        "from Cloud Monitoring"
    )
    return usd


def _doubts(name: str, use: Use, start: datetime, now: datetime) -> Iterator[str]:
    """Yield what Cloud Monitoring may no longer know of a service."""
    if now - start > _LONGEST_WINDOW:
        yield f"{name} is older than six weeks, and Cloud Monitoring keeps no more: what it cost before is unknown."
    if use.seen is not None and use.seen.requested_s > use.run.start_s:
        yield (
            f"{name} was created again at {_shown(use.seen.requested_s)}: whether Cloud Monitoring still has the use of the former service is unknown."
        )


def _limits(found: Sequence[FoundResource]) -> StackLimits:
    """Return the strictest limits that any resource of the stack carries: an update that broke off may have changed only some."""
    each = [StackLimits.of(item.labels) for item in found]
    ages = [limits.max_age_s for limits in each if limits.max_age_s is not None]
    costs = [limits.max_usd for limits in each if limits.max_usd is not None]
    return StackLimits(max_age_s=min(ages, default=None), max_usd=min(costs, default=None))


def _nodes_of(item: FoundResource, found: Sequence[FoundResource]) -> Iterator[FoundResource]:
    for node in found:
        if node.kind == NODE and Node(node.document).request == item.id:
            yield node


def _billed_s(api: GoogleApi, project: str, service: str, start: datetime, now: datetime) -> float:
    """Return the instance seconds that a service was billed for in any region, as far back as Cloud Monitoring keeps them."""
    start = max(start, now - _LONGEST_WINDOW)
    filters = f'metric.type="{_METRIC}" AND resource.labels.service_name="{service}"'
    query = "&".join(
        (
            f"filter={quote(filters)}",
            f"interval.startTime={quote(_stamp(start))}",
            f"interval.endTime={quote(_stamp(now))}",
            "aggregation.alignmentPeriod=3600s",
            "aggregation.perSeriesAligner=ALIGN_SUM",
        )
    )
    total = 0.0
    for page in api.pages("monitoring", f"v3/projects/{project}/timeSeries?{query}"):
        for series in map(as_mapping, as_sequence(page.get("timeSeries"))):
            values = (as_mapping(as_mapping(point).get("value")) for point in as_sequence(series.get("points")))
            total += sum(float(str(value.get("doubleValue") or 0)) for value in values)
    return total


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
