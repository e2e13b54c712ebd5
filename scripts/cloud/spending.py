"""Stacks that are older or have cost more than their limits. The limits, the ages and the states come from Google, not from settings.

Costs are list prices times the time that something has existed: an upper bound where contracts give discounts. What requests make Cloud
Run start is read from Cloud Monitoring; where that is refused, only the instances that always run are counted, and the report says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, cast
from urllib.parse import quote

from contracts.labels import Ownership, StackLimits
from planning.units import duration
from scripts.cloud.google_api import GoogleApi, GoogleListError
from scripts.cloud.inventory.found import FoundResource
from scripts.cloud.prices import instance_usd_per_hour, usd_per_hour
from scripts.errors import ScriptError

QUEUED: Final = "TPU queued resource"
NODE: Final = "TPU node"
INSTANCE: Final = "TPU instance"
SERVICE: Final = "Cloud Run service"
SERVING: Final = (QUEUED, NODE, INSTANCE, SERVICE)
"""Kinds whose age counts. A bucket or an account may be as old as it likes."""
COMPUTE_ENGINE: Final = "compute-engine"
"""Value of our provider's input `api` for instances of Compute Engine."""
_HOUR_S: Final = 3600.0
_METRIC: Final = "run.googleapis.com/container/billable_instance_time"
"""Billable time aggregated across all container instances (Google Cloud metrics list, Cloud Run), in seconds."""
_LONGEST_WINDOW: Final = timedelta(weeks=6)
"""How long Cloud Monitoring keeps points of metrics of Google's services (Cloud Monitoring, quotas and limits, data retention)."""


def capacity_kind(inputs: Mapping[str, object]) -> str:
    """Return the kind of resource that our provider's resource with these inputs makes."""
    return INSTANCE if inputs.get("api") == COMPUTE_ENGINE else QUEUED


def capacity_name(inputs: Mapping[str, object], zone: str) -> str:
    """Return the full name in a zone of what our provider's resource with these inputs makes."""
    project, identifier = inputs.get("project"), inputs.get("queuedResourceId")
    if capacity_kind(inputs) == INSTANCE:
        return f"projects/{project}/zones/{zone}/instances/{identifier}"
    return f"projects/{project}/locations/{zone}/queuedResources/{identifier}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpending:
    """What one stack has used of its limits."""

    owner: Ownership
    limits: StackLimits
    age_s: float
    """Since what serves was created; 0 if nothing does."""
    usd: float
    usd_per_hour: float
    """What it costs now while nobody calls."""
    untold: Sequence[str] = ()
    """What could not be counted, each a sentence."""

    @property
    def exceeded(self) -> Sequence[str]:
        """The limits that are exceeded, each in words."""
        found: list[str] = []
        if self.limits.max_age_s is not None and self.age_s > self.limits.max_age_s:
            found.append(f"maxAge {duration(self.limits.max_age_s)}: it is {duration(self.age_s)} old")
        if self.limits.max_usd is not None and self.usd > self.limits.max_usd:
            found.append(f"maxUsd {self.limits.max_usd}: it has cost ${self.usd:,.2f}")
        return found

    def sentence(self) -> str:
        """Return the stack's use of its limits in words."""
        name = f"stack {self.owner.stack}"
        if not self.limits.labels:
            return f"{name} has no limit; it is {duration(self.age_s)} old and has cost ${self.usd:,.2f}."
        if self.exceeded:
            return f"{name} exceeds {' and '.join(self.exceeded)}."
        limits = [f"maxAge {duration(self.limits.max_age_s)}"] if self.limits.max_age_s is not None else []
        limits += [f"maxUsd {self.limits.max_usd}"] if self.limits.max_usd is not None else []
        return f"{name} is within {' and '.join(limits)}: {duration(self.age_s)} old, ${self.usd:,.2f}."


def spending(api: GoogleApi, found: Sequence[FoundResource], now: datetime) -> Sequence[StackSpending]:
    """Return what each stack has used of its limits, by name. Takes two calls for a service that requests start, else none."""
    owners = {(item.owner.project, item.owner.stack): item.owner for item in found}
    return [
        _spending(api, owner, [item for item in found if _is_of(item, owner)], now)
        for _, owner in sorted(owners.items())
    ]


def _is_of(item: FoundResource, owner: Ownership) -> bool:
    return (item.owner.project, item.owner.stack) == (owner.project, owner.stack)


def _spending(api: GoogleApi, owner: Ownership, found: Sequence[FoundResource], now: datetime) -> StackSpending:
    serving = [item for item in found if item.kind in SERVING]
    ages = [age for item in serving if (age := _uptime_s(item, found, now)) is not None]
    usd, untold = 0.0, list[str]()
    for item in serving:
        try:
            usd += _usd(api, item, found, now)
        except (GoogleListError, ScriptError) as error:
            usd += (usd_per_hour(item) or 0.0) * (_uptime_s(item, found, now) or 0.0) / _HOUR_S
            untold.append(f"Use of {item.name} could not be read, so only instances that always run count: {error}")
    return StackSpending(
        owner=owner,
        limits=_limits(found),
        age_s=max(ages, default=0.0),
        usd=usd,
        usd_per_hour=sum(usd_per_hour(item) or 0.0 for item in serving),
        untold=tuple(untold),
    )


def _limits(found: Sequence[FoundResource]) -> StackLimits:
    """Return the strictest limits that any resource of the stack carries: an update that broke off may have changed only some."""
    each = [StackLimits.of(item.labels) for item in found]
    ages = [limits.max_age_s for limits in each if limits.max_age_s is not None]
    costs = [limits.max_usd for limits in each if limits.max_usd is not None]
    return StackLimits(max_age_s=min(ages, default=None), max_usd=min(costs, default=None))


def _uptime_s(item: FoundResource, found: Sequence[FoundResource], now: datetime) -> float | None:
    """Return how long something has been up. A queued resource is up from the creation of its first node: the wait is free.

    An instance is up from its start.
    """
    if item.kind == INSTANCE:
        started = str(item.document.get("lastStartTimestamp") or "")
        return (now - datetime.fromisoformat(started)).total_seconds() if started else None
    if item.kind != QUEUED:
        return item.age_s(now)
    ages = [age for node in _nodes_of(item, found) if (age := node.age_s(now)) is not None]
    return max(ages, default=None)


def _nodes_of(item: FoundResource, found: Sequence[FoundResource]) -> Iterator[FoundResource]:
    for node in found:
        if node.kind == NODE and str(node.document.get("queuedResource") or "").rpartition("/")[2] == item.id:
            yield node


def _usd(api: GoogleApi, item: FoundResource, found: Sequence[FoundResource], now: datetime) -> float:
    """Return what one resource has cost. Raises GoogleListError or ScriptError if its use cannot be read."""
    if item.kind == SERVICE:
        return instance_usd_per_hour(item) * _billed_s(api, item, now) / _HOUR_S
    return (usd_per_hour(item) or 0.0) * (_uptime_s(item, found, now) or 0.0) / _HOUR_S


def _billed_s(api: GoogleApi, item: FoundResource, now: datetime) -> float:
    """Return the instance seconds that a service was billed for, as far back as Cloud Monitoring keeps them."""
    start = max(datetime.fromisoformat(item.created), now - _LONGEST_WINDOW)
    filters = f'metric.type="{_METRIC}" AND resource.labels.service_name="{item.id}" AND resource.labels.location="{item.location}"'
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
    for page in api.pages("monitoring", f"v3/projects/{item.project}/timeSeries?{query}"):
        for series in cast("Sequence[dict[str, Sequence[dict[str, dict[str, object]]]]]", page.get("timeSeries") or ()):
            total += sum(float(str(point["value"].get("doubleValue") or 0)) for point in series.get("points") or ())
    return total


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
