"""Machines and services of a stack in Google's responses, for the record of its runs."""

import math
from datetime import datetime

from cloud.capacity import Instance, Node, QueuedResource
from cloud.google_prices import (
    Item,
    container_usd_per_hour,
    instance_usd_per_hour,
    node_usd_per_hour,
    queued_usd_per_hour,
)
from contracts.capacity_states import GRANTED
from contracts.run_record import MICROS, Seen


def seen_queued(document: Item, node: Item | None) -> Seen | None:
    """Return the machine of a queued resource; None if it never had one.

    Args:
        document: the queued resource (tpu.v2alpha1).
        node: its node; None if there is none.
    """
    queued, machine = QueuedResource(document), None if node is None else Node(node)
    if machine is None and queued.state not in GRANTED:
        return None
    return Seen(
        name=queued.name,
        requested_s=_seconds(document.get("createTime")),
        started_s=_seconds(machine.document.get("createTime")) if machine is not None and machine.is_up else None,
        micros_per_hour=_micros(queued_usd_per_hour(document, queued.zone)),
        longest_s=queued.longest_s,
    )


def seen_node(node: Item) -> Seen | None:
    """Return a node that no queued resource created; None if it is not running."""
    machine = Node(node)
    if not machine.is_up:
        return None
    name, created_s = machine.name, _seconds(node.get("createTime"))
    rate = node_usd_per_hour(node, "standard", name.split("/")[3])
    return Seen(name=name, requested_s=created_s, started_s=created_s, micros_per_hour=_micros(rate))


def seen_instance(document: Item, zone: str) -> Seen | None:
    """Return a Compute Engine instance; None if it never started."""
    instance = Instance(document)
    if not instance.started:
        return None
    requested_s, started_s = _seconds(instance.created), _seconds(instance.started)
    stopped_s = _seconds(instance.stopped) if instance.stopped else None
    is_stopped = instance.state == "SUSPENDED"
    if stopped_s is not None and not is_stopped:
        started_s = requested_s  # it was restarted, and its first start is not recorded
    return Seen(
        name=str(document.get("name")),
        requested_s=requested_s,
        started_s=None if is_stopped and stopped_s is None else started_s,
        stopped_s=stopped_s if is_stopped else None,
        micros_per_hour=_micros(instance_usd_per_hour(document, zone)),
        longest_s=instance.longest_s,
    )


def seen_service(document: Item, region: str) -> Seen:
    """Return a Cloud Run service. Its price is that of one instance."""
    created_s = _seconds(document.get("createTime"))
    return Seen(
        name=str(document.get("name")),
        requested_s=created_s,
        started_s=created_s,
        micros_per_hour=_micros(container_usd_per_hour(document, region)),
        is_service=True,
    )


def _seconds(stamp: object) -> int:
    """Return an RFC 3339 time in whole seconds since 1970: rounded down, so that a start is never too late."""
    return math.floor(datetime.fromisoformat(str(stamp)).timestamp())


def _micros(usd_per_hour: float | None) -> int:
    # A difference below a thousandth of a millionth is a floating-point error, not a price.
    return math.ceil(round((usd_per_hour or 0.0) * MICROS, 3))
