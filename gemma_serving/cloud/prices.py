"""Cost of resources at known prices in their location, and their machines for the record of a stack's runs.

The cost follows from Google's responses and from the age: an upper bound, not a bill, because contracts and credits change it.
The plan prices slices and instances with the same functions (`planning.data.prices`).
"""

import math
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from gemma_serving.cloud.capacity import PROVISIONING, ListedInstance, ListedNode, ListedQueuedResource
from gemma_serving.cloud.kinds import INSTANCE, NODE, QUEUED, SERVICE, Item
from gemma_serving.cloud.price_file import list_prices
from gemma_serving.contracts.capacity_states import BILLED, BILLED_STATUSES, GRANTED
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.run_record import MICROS, Seen
from gemma_serving.contracts.search_results import FoundResource
from gemma_serving.planning.data.prices import HourlyPart, Price, instance_parts, slice_parts
from gemma_serving.planning.machine.hardware import accelerator_of_machine, family_of_type, find_accelerator

SERVING: Final = (QUEUED, NODE, INSTANCE, SERVICE)
"""Kinds whose age and cost count. Buckets and accounts have no age limit."""
_GIB: Final = {"Gi": 1.0, "Mi": 1 / 1024}


def has_price(found: FoundResource) -> bool:
    """Return whether a resource is billed per hour. The price of a queued resource includes its nodes."""
    return found.kind in SERVING and not (found.kind == NODE and ListedNode(found.document).request)


def usd_per_hour(found: FoundResource) -> float | None:
    """Return the cost per hour now, of a service while idle; None if the price is unknown, or the resource has none."""
    document = found.document
    if found.kind == QUEUED and ListedQueuedResource(document).state not in BILLED:
        return 0.0
    if found.kind == INSTANCE and ListedInstance(document).status not in BILLED_STATUSES:
        return 0.0
    rate = running_usd_per_hour(found)
    if found.kind != SERVICE:
        return rate
    least = least_instances(document)
    return 0.0 if not least else None if rate is None else least * rate


def total(rates: Iterable[float | None]) -> float | None:
    """Return the sum of rates; None if one is unknown."""
    known = [*rates]
    return None if None in known else sum(filter(None, known))


def running_usd_per_hour(found: FoundResource) -> float | None:
    """Return the cost per hour of a slice, or of one instance of a service, while it runs; None as above."""
    return total(map(_usd, _machines(found))) if has_price(found) else None


def prices_of(found: FoundResource) -> tuple[Price, ...]:
    """Return the prices from which the cost of a resource per hour follows; empty if one is unknown, or it has none."""
    machines = [*_machines(found)] if has_price(found) else []
    return tuple(part.price for parts in machines for part in parts) if all(machines) else ()


def _machines(found: FoundResource) -> Iterator[tuple[HourlyPart, ...]]:
    """Yield the price of each TPU VM of a resource, or of one instance of a service; empty if the price list has none."""
    document, place = found.document, found.location
    if found.kind == QUEUED:
        queued = ListedQueuedResource(document)
        yield from (_node_parts(node, queued.provisioning, place) for node in queued.nodes)
    elif found.kind == NODE:
        yield _node_parts(document, "standard", place)
    else:
        yield _instance_parts(document, place) if found.kind == INSTANCE else _container_parts(document, place)


def _usd(parts: Iterable[HourlyPart]) -> float | None:
    known = [part.usd_per_hour for part in parts]
    return sum(known) if known else None


def _instance_parts(document: Item, zone: str) -> tuple[HourlyPart, ...]:
    """Return the price of a running Compute Engine instance: its chips cost the same as a TPU VM's (Cloud TPU pricing)."""
    kind = accelerator_of_machine(str(document.get("machineType") or ""))
    model = PROVISIONING.get(str(as_mapping(document.get("scheduling")).get("provisioningModel") or ""), "standard")
    return _node_parts({"acceleratorType": kind}, model, zone) if kind else ()


def node_usd_per_hour(document: Item, provisioning: str, zone: str) -> float | None:
    """Return the price of a TPU VM; None if the price list has none."""
    return _usd(_node_parts(document, provisioning, zone))


def _node_parts(document: Item, provisioning: str, zone: str) -> tuple[HourlyPart, ...]:
    accelerator_type = str(document.get("acceleratorType") or "")
    family, size = family_of_type(accelerator_type), accelerator_type.partition("-")[2]
    accelerator = find_accelerator(accelerator_type)
    if family is None or family.usable_gib is None or not size.isdigit():
        return ()
    scheduling = as_mapping(document.get("schedulingConfig"))
    is_spot = provisioning == "standard" and (scheduling.get("spot") or scheduling.get("preemptible"))
    kind = "spot" if is_spot else provisioning
    chips = accelerator.chips if accelerator is not None else int(size)
    return slice_parts(list_prices(), generation=family.name, chips=chips, provisioning=kind, place=zone)


def container_usd_per_hour(document: Item, region: str) -> float | None:
    """Return the cost of one instance of a Cloud Run service per hour, with all its containers; None without a known price."""
    return _usd(_container_parts(document, region))


def _container_parts(document: Item, region: str) -> tuple[HourlyPart, ...]:
    template = as_mapping(document.get("template"))
    containers = as_sequence(template.get("containers"))
    limits = [as_mapping(as_mapping(as_mapping(one).get("resources")).get("limits")) for one in containers]
    named = str(as_mapping(template.get("nodeSelector")).get("accelerator") or "")
    gpu = find_accelerator(named)
    return instance_parts(
        list_prices(),
        gpu=gpu.name if gpu else named or None,
        vcpu=sum(_cpu(one.get("cpu")) for one in limits),
        memory_gib=sum(_gib(one.get("memory")) for one in limits),
        zonal_redundancy=not template.get("gpuZonalRedundancyDisabled"),
        place=region,
    )


def least_instances(service: Item) -> int:
    """Return the number of a service's instances that always run, from its own scaling or that of its revision."""
    scaling = [as_mapping(item.get("scaling")) for item in (service, as_mapping(service.get("template")))]
    return max(int(float(str(one.get("minInstanceCount") or 0))) for one in scaling)


def _cpu(text: object) -> float:
    given = str(text or "0")
    return float(given.removesuffix("m")) / (1000 if given.endswith("m") else 1)


def _gib(text: object) -> float:
    """Return a size with one of the units that a stack declares."""
    given = str(text or "0Gi")
    return float(given[:-2]) * _GIB[given[-2:]]


def seen_queued(document: Item, node: Item | None) -> Seen | None:
    """Return the TPU VM of a queued resource and its node, if it has one; None if it never had a machine."""
    queued = ListedQueuedResource(document)
    if node is None and queued.state not in GRANTED:
        return None
    return Seen(
        name=queued.name,
        requested_s=_seconds(document.get("createTime")),
        started_s=_seconds(node.get("createTime")) if node is not None and ListedNode(node).is_up else None,
        micros_per_hour=_micros(
            total(node_usd_per_hour(one, queued.provisioning, queued.zone) for one in queued.nodes)
        ),
        longest_s=queued.longest_s,
    )


def seen_node(node: Item) -> Seen | None:
    """Return a node that no queued resource created; None if it is not running."""
    machine = ListedNode(node)
    if not machine.is_up:
        return None
    name, created_s = machine.name, _seconds(node.get("createTime"))
    rate = node_usd_per_hour(node, "standard", name.split("/")[3])
    return Seen(name=name, requested_s=created_s, started_s=created_s, micros_per_hour=_micros(rate))


def seen_instance(document: Item, zone: str) -> Seen | None:
    """Return a Compute Engine instance; None if it never started."""
    instance = ListedInstance(document)
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
        micros_per_hour=_micros(_usd(_instance_parts(document, zone))),
        longest_s=instance.longest_s,
    )


def seen_service(document: Item, region: str) -> Seen:
    """Return a Cloud Run service. Its price is one instance's."""
    created_s = _seconds(document.get("createTime"))
    return Seen(
        name=str(document.get("name")),
        requested_s=created_s,
        started_s=created_s,
        micros_per_hour=_micros(container_usd_per_hour(document, region)),
        is_service=True,
    )


def _seconds(stamp: object) -> int:
    """Return an RFC 3339 time in whole seconds since 1970: rounded down, so a start is never too late."""
    return math.floor(datetime.fromisoformat(str(stamp)).timestamp())


def _micros(usd_per_hour: float | None) -> int:
    # A difference below a thousandth of a millionth is a floating-point error, not a price.
    return math.ceil(round((usd_per_hour or 0.0) * MICROS, 3))
