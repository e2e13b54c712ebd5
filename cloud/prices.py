"""What found resources cost, at the list prices of the place where they are: an upper bound from their age, not a bill.

Contracts and credits change it. The plan prices slices and instances with the same functions (`cloud.google_prices`).
"""

from datetime import datetime
from typing import Final

from cloud.google_prices import (
    Item,
    container_usd_per_hour,
    instance_usd_per_hour,
    node_usd_per_hour,
    part_of,
    queued_usd_per_hour,
)
from cloud.inventory.found import FoundResource

_HOUR_S: Final = 3600.0
_BILLED_STATES: Final = frozenset({"PROVISIONING", "ACTIVE", "SUSPENDING", "DELETING"})
"""States of a queued resource in which it can have nodes."""
_BILLED_STATUSES: Final = frozenset({"PROVISIONING", "STAGING", "RUNNING", "REPAIRING", "PENDING_STOP", "STOPPING"})
"""Statuses of an instance in which it has a TPU (Compute Engine, "Instance lifecycle"; those before RUNNING are free, and short)."""


def usd_per_hour(found: FoundResource) -> float | None:
    """Return what a resource costs in an hour while nobody uses it; None if the list of prices does not say."""
    if found.kind == "TPU queued resource":
        return _queued(found.document, found.location)
    if found.kind == "TPU node":
        return (
            None
            if found.document.get("queuedResource")
            else node_usd_per_hour(found.document, "standard", found.location)
        )
    if found.kind == "TPU instance":
        return _instance(found.document, found.location)
    if found.kind == "Cloud Run service":
        return _service(found)
    return None


def usd_so_far(found: FoundResource, now: datetime) -> float | None:
    """Return the most that a resource can have cost since its creation; None if that cannot be told."""
    rate, age_s = usd_per_hour(found), found.age_s(now)
    if rate is None or age_s is None:
        return None
    return rate * max(age_s, 0.0) / _HOUR_S


def _queued(document: Item, zone: str) -> float | None:
    state = str(part_of(document, "state").get("state") or "")
    return queued_usd_per_hour(document, zone) if state in _BILLED_STATES else 0.0


def _instance(document: Item, zone: str) -> float | None:
    return instance_usd_per_hour(document, zone) if document.get("status") in _BILLED_STATUSES else 0.0


def _service(found: FoundResource) -> float | None:
    """Return the price of the instances that always run; None if there are none, because then use decides."""
    template = part_of(found.document, "template")
    least = max(_count(part_of(found.document, "scaling")), _count(part_of(template, "scaling")))
    return least * container_usd_per_hour(found.document, found.location) if least else None


def _count(scaling: Item) -> int:
    return int(str(scaling.get("minInstanceCount") or 0))
