"""Which machines and service of a stack Google shows, since when, and at which list price: for the record of its runs."""

import math
from collections.abc import Mapping, Sequence
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
from contracts.run_record import MICROS, Seen

_ENDED: Final = frozenset({"SUSPENDING", "SUSPENDED"})
"""States of a queued resource whose nodes have existed."""
_NOT_UP: Final = frozenset({"STOPPED", "PREEMPTED", "TERMINATED"})
"""States of a node that costs nothing any more (discovery: tpu.v2alpha1, Node.state)."""
_STOPPED: Final = frozenset({"TERMINATED", "STOPPED", "SUSPENDED"})
"""Statuses of an instance that has stopped."""


def seen_queued(document: Item, node: Item | None) -> Seen | None:
    """Return the machine of a queued resource; None if it never had one.

    Args:
        document: the queued resource (tpu.v2alpha1).
        node: its node; None if there is none.
    """
    name = str(document.get("name"))
    state = part_of(document, "state").get("state")
    is_up = node is not None and node.get("state") not in _NOT_UP
    if not is_up and node is None and state not in _ENDED and state != "ACTIVE":
        return None
    return Seen(
        name=name,
        requested_s=_seconds(document.get("createTime")),
        started_s=_seconds(node.get("createTime")) if node is not None and is_up else None,
        micros_per_hour=_micros(queued_usd_per_hour(document, name.split("/")[3])),
        longest_s=_duration_s(part_of(document, "runDuration").get("maxRunDuration")),
    )


def seen_node(node: Item) -> Seen | None:
    """Return a node that no queued resource made; None if it does not run."""
    if node.get("state") in _NOT_UP:
        return None
    name, created_s = str(node.get("name")), _seconds(node.get("createTime"))
    rate = node_usd_per_hour(node, "standard", name.split("/")[3])
    return Seen(name=name, requested_s=created_s, started_s=created_s, micros_per_hour=_micros(rate))


def seen_instance(document: Item, zone: str) -> Seen | None:
    """Return an instance of Compute Engine; None if it never started."""
    started = document.get("lastStartTimestamp")
    if not started:
        return None
    requested_s, started_s = _seconds(document.get("creationTimestamp")), _seconds(started)
    stopped = document.get("lastStopTimestamp")
    stopped_s = _seconds(stopped) if stopped else None
    is_stopped = document.get("status") in _STOPPED
    if stopped_s is not None and not is_stopped:
        started_s = requested_s  # it started again, and when it first did is not kept
    return Seen(
        name=str(document.get("name")),
        requested_s=requested_s,
        started_s=None if is_stopped and stopped_s is None else started_s,
        stopped_s=stopped_s if is_stopped else None,
        micros_per_hour=_micros(instance_usd_per_hour(document, zone)),
        longest_s=_run_limit_s(document),
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


def node_name(document: Item) -> str:
    """Return the full name of a queued resource's first node; empty if it names none."""
    specs = part_of(document, "tpu").get("nodeSpec")
    first: object = specs[0] if isinstance(specs, Sequence) and specs else None  # pyright: ignore[reportUnknownVariableType] - a JSON value
    if not isinstance(first, Mapping) or not first.get("nodeId"):  # pyright: ignore[reportUnknownMemberType] - as above
        return ""
    return f"{first.get('parent')}/nodes/{first.get('nodeId')}"  # pyright: ignore[reportUnknownMemberType] - as above


def _run_limit_s(document: Item) -> int | None:
    limit = part_of(part_of(document, "scheduling"), "maxRunDuration").get("seconds")
    return None if limit is None else int(str(limit))


def _duration_s(text: object) -> int | None:
    return math.ceil(float(str(text).removesuffix("s"))) if text else None


def _seconds(stamp: object) -> int:
    """Return an RFC 3339 time in whole seconds since 1970: rounded down, so that a start is never too late."""
    return math.floor(datetime.fromisoformat(str(stamp)).timestamp())


def _micros(usd_per_hour: float | None) -> int:
    # What is less than a thousandth of a millionth is the float's error, not a price.
    return math.ceil(round((usd_per_hour or 0.0) * MICROS, 3))
