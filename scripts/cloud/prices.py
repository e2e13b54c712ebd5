"""What found resources cost, at the list prices of the place where they are: an upper bound from their age, not a bill.

Contracts and credits change it. The plan prices slices and instances with the same functions (`planning.prices`).
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, cast

from planning.hardware import accelerator_of_machine, find_accelerator
from planning.prices import LIST_PRICES, instance_parts, slice_parts
from planning.types import ProvisioningModel
from scripts.cloud.inventory.found import FoundResource

_HOUR_S: Final = 3600.0
_BILLED_STATES: Final = frozenset({"PROVISIONING", "ACTIVE", "SUSPENDING", "DELETING"})
"""States of a queued resource in which it can have nodes."""
_BILLED_STATUSES: Final = frozenset({"PROVISIONING", "STAGING", "RUNNING", "REPAIRING", "PENDING_STOP", "STOPPING"})
"""Statuses of an instance in which it has a TPU (Compute Engine, "Instance lifecycle"; those before RUNNING are free, and short)."""
_PROVISIONING: Final[Mapping[str, ProvisioningModel]] = {
    "FLEX_START": "flex-start",
    "SPOT": "spot",
    "RESERVATION_BOUND": "reservation",
}
"""Provisioning models of the API that say all; gcloud sends STANDARD beside the tier `spot`."""
_GENERATIONS: Final = {"v6e": "v6e", "v5litepod": "v5e", "v5e": "v5e", "v5p": "v5p"}
"""Generations with known prices -> their name in the list of prices."""
_CORES_PER_CHIP: Final = {"v5p": 2}
"""The type of these counts TensorCores (Cloud TPU documentation, v5p); that of the others counts chips."""
_UNITS_GIB: Final[Mapping[str, float]] = {
    "": 1 / 2**30,
    "Ki": 1 / 2**20,
    "Mi": 1 / 2**10,
    "Gi": 1.0,
    "Ti": 1024.0,
    "M": 10**6 / 2**30,
    "G": 10**9 / 2**30,
}

_Item = Mapping[str, object]


def usd_per_hour(found: FoundResource) -> float | None:
    """Return what a resource costs in an hour while nobody uses it; None if the list of prices does not say."""
    if found.kind == "TPU queued resource":
        return _queued(found.document, found.location)
    if found.kind == "TPU node":
        return None if found.document.get("queuedResource") else _node(found.document, "standard", found.location)
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


def _queued(document: _Item, zone: str) -> float | None:
    state = str(_part(document, "state").get("state") or "")
    if state not in _BILLED_STATES:
        return 0.0
    specs = cast("Sequence[_Item]", _part(document, "tpu").get("nodeSpec") or ())
    rates = [_node(_part(spec, "node"), provisioning_of(document), zone) for spec in specs]
    return None if None in rates else sum(rate for rate in rates if rate is not None)


def _instance(document: _Item, zone: str) -> float | None:
    """Return the price of an instance of Compute Engine: its chips cost what those of a TPU VM cost (Cloud TPU pricing)."""
    if document.get("status") not in _BILLED_STATUSES:
        return 0.0
    kind = accelerator_of_machine(str(document.get("machineType") or ""))
    model = _PROVISIONING.get(str(_part(document, "scheduling").get("provisioningModel") or ""), "standard")
    return _node({"acceleratorType": kind}, model, zone) if kind else None


def provisioning_of(document: _Item) -> ProvisioningModel:
    """Return how a queued resource buys its capacity, as the setting `tpu.provisioning` names it."""
    named = _PROVISIONING.get(str(document.get("provisioningModel") or ""))
    return named or ("spot" if "spot" in document or "bestEffort" in document else "standard")


def _node(document: _Item, provisioning: str, zone: str) -> float | None:
    generation, _, size = str(document.get("acceleratorType") or "").partition("-")
    if generation not in _GENERATIONS or not size.isdigit():
        return None
    scheduling = _part(document, "schedulingConfig")
    kind = (
        "spot"
        if provisioning == "standard" and (scheduling.get("spot") or scheduling.get("preemptible"))
        else provisioning
    )
    chips, name = int(size) // _CORES_PER_CHIP.get(generation, 1), _GENERATIONS[generation]
    if not LIST_PRICES.has_chip_hour(name, kind):
        return None
    parts = slice_parts(LIST_PRICES, generation=name, chips=chips, provisioning=kind, place=zone)
    return sum(part.usd_per_hour for part in parts)


def instance_usd_per_hour(found: FoundResource) -> float:
    """Return what one instance of a Cloud Run service costs in an hour; 0 without a container."""
    template = _part(found.document, "template")
    containers = cast("Sequence[_Item]", template.get("containers") or ())
    if not containers:
        return 0.0
    limits = _part(_part(containers[0], "resources"), "limits")
    gpu = find_accelerator(str(_part(template, "nodeSelector").get("accelerator") or ""))
    parts = instance_parts(
        LIST_PRICES,
        gpu=gpu.name if gpu else None,
        vcpu=_quantity(limits.get("cpu")),
        memory_gib=_gib(limits.get("memory")),
        zonal_redundancy=not template.get("gpuZonalRedundancyDisabled"),
        place=found.location,
    )
    return sum(part.usd_per_hour for part in parts)


def _service(found: FoundResource) -> float | None:
    """Return the price of the instances that always run; None if there are none, because then use decides."""
    template = _part(found.document, "template")
    least = max(_count(_part(found.document, "scaling")), _count(_part(template, "scaling")))
    return least * instance_usd_per_hour(found) if least else None


def _count(scaling: _Item) -> int:
    return int(str(scaling.get("minInstanceCount") or 0))


def _part(item: _Item, key: str) -> _Item:
    return cast("_Item", item.get(key) or {})


def _quantity(text: object) -> float:
    given = str(text or "0")
    return float(given.removesuffix("m")) / (1000 if given.endswith("m") else 1)


def _gib(text: object) -> float:
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text or "0Gi"))
    return float(found[1]) * _UNITS_GIB.get(found[2], 0.0) if found else 0.0
