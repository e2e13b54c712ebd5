"""Cost of found resources at list prices in their location: an upper bound from their age, not a bill.

Contracts and credits change it. The plan prices slices and instances with the same functions (`cloud.google_prices`).
"""

from datetime import datetime
from typing import Final

from cloud.capacity import Instance, Node, QueuedResource
from cloud.found import FoundResource
from cloud.google_prices import (
    Item,
    container_usd_per_hour,
    instance_usd_per_hour,
    node_usd_per_hour,
    queued_usd_per_hour,
)
from cloud.kinds import INSTANCE, NODE, QUEUED, SERVICE
from contracts.capacity_states import BILLED, BILLED_STATUSES
from contracts.fields import as_mapping

_HOUR_S: Final = 3600.0


def usd_per_hour(found: FoundResource) -> float | None:
    """Return the cost of an idle resource per hour; None if the price list has none."""
    document, place = found.document, found.location
    if found.kind == QUEUED:
        return queued_usd_per_hour(document, place) if QueuedResource(document).state in BILLED else 0.0
    if found.kind == NODE:
        return None if Node(document).request else node_usd_per_hour(document, "standard", place)
    if found.kind == INSTANCE:
        return instance_usd_per_hour(document, place) if Instance(document).status in BILLED_STATUSES else 0.0
    return _service(found) if found.kind == SERVICE else None


def usd_so_far(found: FoundResource, now: datetime) -> float | None:
    """Return the maximum cost of a resource since its creation; None if unknown."""
    rate, age_s = usd_per_hour(found), found.age_s(now)
    if rate is None or age_s is None:
        return None
    return rate * max(age_s, 0.0) / _HOUR_S


def _service(found: FoundResource) -> float | None:
    """Return the price of the instances that always run; None if there are none, because the cost then depends on use."""
    template = as_mapping(found.document.get("template"))
    least = max(_count(found.document), _count(template))
    return least * container_usd_per_hour(found.document, found.location) if least else None


def _count(item: Item) -> int:
    return int(str(as_mapping(item.get("scaling")).get("minInstanceCount") or 0))
