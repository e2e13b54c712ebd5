"""What Google's documents say about a quota: its limits in a place, and the chips that requests and nodes take from it.

The provider reads no quota. The commands of the project do, with these functions.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from gcp_tpu_provider.json_parts import object_of, objects_of, text_of

PREEMPTIBLE: Final = frozenset({"flex-start", "spot", "FLEX_START", "SPOT"})
"""Provisioning models, by the names of the inputs and Google's, that use the preemptible quota (Cloud TPU, "Quotas", and the ids in Google's errors)."""
_UNLIMITED: Final = -1


def limits_of(listed: Sequence[Mapping[str, Any]], places: Mapping[str, str], dimension: str) -> Sequence[float] | None:
    """Return the limits of a metric in a place that are set by a dimension, such as `zone`; None if none is set by it."""
    by_dimension = [limit for limit in listed if f"{{{dimension}}}" in text_of(limit, "unit")]
    values = [value for limit in by_dimension if (value := _value(limit, places)) is not None]
    return values if by_dimension else None


def _value(limit: Mapping[str, Any], places: Mapping[str, str]) -> float | None:
    """Return a limit's value in a location, from the most specific bucket; None without one. An absent value is 0."""
    buckets = sorted(_buckets_of(limit, places), key=lambda bucket: len(object_of(bucket, "dimensions")))
    if not buckets:
        return None
    value = int(buckets[-1].get("effectiveLimit") or 0)
    return math.inf if value == _UNLIMITED else value


def _buckets_of(limit: Mapping[str, Any], places: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    for bucket in objects_of(limit, "quotaBuckets"):
        dimensions = object_of(bucket, "dimensions")
        if all(places.get(key) == value for key, value in dimensions.items()):
            yield bucket


def chips_used(
    requests: Sequence[Mapping[str, Any]],
    nodes: Sequence[Mapping[str, Any]],
    generation: str,
    *,
    preemptible: bool,
    is_own: Callable[[Mapping[str, Any]], bool],
) -> int | None:
    """Return the chips of a generation that listed requests, except own ones, and nodes take from a quota; None if one does not name its type.

    A request counts in every state until it is deleted (marin-community/marin#87), and a node without a listed request counts too.
    """
    ids = {text_of(item, "name").rpartition("/")[2] for item in requests}
    counted = [
        object_of(spec, "node")
        for item in requests
        if _uses(item, item, preemptible) and not is_own(item)
        for spec in objects_of(object_of(item, "tpu"), "nodeSpec")
    ]
    counted += [
        node
        for node in nodes
        if text_of(node, "queuedResource").rpartition("/")[2] not in ids
        and _uses(node, object_of(node, "schedulingConfig"), preemptible)
    ]
    sizes = [text_of(node, "acceleratorType").rpartition("-") for node in counted]
    if any(not size.isdigit() for _, _, size in sizes):
        return None
    return sum(int(size) for kind, _, size in sizes if kind == generation)


def _uses(item: Mapping[str, Any], scheduling: Mapping[str, Any], preemptible: bool) -> bool:
    """Return whether a request or a node uses this quota. gcloud sends STANDARD with each tier of a request, and the tier decides.

    A reservation has chips of its own (Cloud TPU, "Quotas").
    """
    model = text_of(scheduling, "provisioningModel")
    if model == "RESERVATION_BOUND" or item.get("reservationName") or scheduling.get("reserved"):
        return False
    has_tier = any(scheduling.get(key, False) is not False for key in ("spot", "bestEffort", "preemptible"))
    return (has_tier or model in PREEMPTIBLE) == preemptible
