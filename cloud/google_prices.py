"""Cost of resources at list prices in their location, from Google's API responses.

The program needs it for a stack's past usage (`stacks.hooks.run_keeper`), the scripts for found resources. The plan prices slices and instances
with the same functions (`planning.data.prices`).
"""

from collections.abc import Mapping
from typing import Final

from cloud.price_file import list_prices
from contracts.fields import as_mapping, as_sequence
from planning.data.prices import PriceBook, instance_parts, slice_parts
from planning.machine.hardware import accelerator_of_machine, find_accelerator
from planning.question.types import ProvisioningModel

_PROVISIONING: Final[Mapping[str, ProvisioningModel]] = {
    "FLEX_START": "flex-start",
    "SPOT": "spot",
    "RESERVATION_BOUND": "reservation",
}
"""Provisioning models that the API states unambiguously; gcloud sends STANDARD in addition to the tier `spot`."""
_GENERATIONS: Final = {"v6e": "v6e", "v5litepod": "v5e", "v5e": "v5e"}
"""Name in the price list by generation, for generations with known prices."""
_GIB: Final = {"Gi": 1.0, "Mi": 1 / 1024}

Item = Mapping[str, object]


def queued_usd_per_hour(document: Item, zone: str) -> float | None:
    """Return the price of a queued resource's nodes while they exist; None if the price list has none."""
    specs = map(as_mapping, as_sequence(as_mapping(document.get("tpu")).get("nodeSpec")))
    rates = [node_usd_per_hour(as_mapping(spec.get("node")), provisioning_of(document), zone) for spec in specs]
    return None if None in rates else sum(rate for rate in rates if rate is not None)


def instance_usd_per_hour(document: Item, zone: str) -> float | None:
    """Return the price of a running Compute Engine instance: its chips cost the same as a TPU VM's (Cloud TPU pricing)."""
    kind = accelerator_of_machine(str(document.get("machineType") or ""))
    model = _PROVISIONING.get(str(as_mapping(document.get("scheduling")).get("provisioningModel") or ""), "standard")
    return node_usd_per_hour({"acceleratorType": kind}, model, zone) if kind else None


def provisioning_of(document: Item) -> ProvisioningModel:
    """Return the provisioning model of a queued resource, as in the setting `tpu.provisioning`."""
    named = _PROVISIONING.get(str(document.get("provisioningModel") or ""))
    return named or ("spot" if "spot" in document or "bestEffort" in document else "standard")


def node_usd_per_hour(document: Item, provisioning: str, zone: str) -> float | None:
    """Return the price of a TPU VM; None if the price list has none."""
    generation, _, size = str(document.get("acceleratorType") or "").partition("-")
    if generation not in _GENERATIONS or not size.isdigit():
        return None
    scheduling = as_mapping(document.get("schedulingConfig"))
    kind = (
        "spot"
        if provisioning == "standard" and (scheduling.get("spot") or scheduling.get("preemptible"))
        else provisioning
    )
    chips, name = int(size), _GENERATIONS[generation]
    if not PriceBook.has_chip_hour(name, kind):
        return None
    parts = slice_parts(list_prices(), generation=name, chips=chips, provisioning=kind, place=zone)
    return sum(part.usd_per_hour for part in parts)


def container_usd_per_hour(document: Item, region: str) -> float:
    """Return the cost of one instance of a Cloud Run service per hour, with all its containers; 0 without a container."""
    template = as_mapping(document.get("template"))
    containers = as_sequence(template.get("containers"))
    if not containers:
        return 0.0
    limits = [as_mapping(as_mapping(as_mapping(one).get("resources")).get("limits")) for one in containers]
    gpu = find_accelerator(str(as_mapping(template.get("nodeSelector")).get("accelerator") or ""))
    parts = instance_parts(
        list_prices(),
        gpu=gpu.name if gpu else None,
        vcpu=sum(_quantity(one.get("cpu")) for one in limits),
        memory_gib=sum(_gib(one.get("memory")) for one in limits),
        zonal_redundancy=not template.get("gpuZonalRedundancyDisabled"),
        place=region,
    )
    return sum(part.usd_per_hour for part in parts)


def _quantity(text: object) -> float:
    given = str(text or "0")
    return float(given.removesuffix("m")) / (1000 if given.endswith("m") else 1)


def _gib(text: object) -> float:
    """Return a size with one of the units that a stack declares."""
    given = str(text or "0Gi")
    return float(given[:-2]) * _GIB[given[-2:]]
