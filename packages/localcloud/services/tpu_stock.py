"""The TPUs that zones have. Cloud TPU's nodes and Compute Engine's instances use the same chips."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from localcloud.services.tpu_requests import chips_of
from localcloud.world.cloud import Cloud
from localcloud.world.scenario import Stock, TpuZone

NODES = "tpu.nodes"
INSTANCES = "compute.instances"
HOLDING = frozenset({"PROVISIONING", "STAGING", "RUNNING", "STOPPING"})
"""States in which an instance has its chips."""
USES_QUOTA = HOLDING | {"TERMINATED"}
"""States in which an instance counts against a quota. That a stopped one does is assumed, as for a dead queued resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The chips of one node or instance: its accelerator type and its provisioning model."""

    accelerator: str
    model: str


def zone_of(cloud: Cloud, zone: str) -> TpuZone:
    """Return a zone's facts. A zone without TPUs has none."""
    return cloud.scenario.tpu.zones.get(zone, TpuZone(accelerator_types=()))


def stock_of(cloud: Cloud, zone: str, model: str) -> Stock:
    """Return what a zone has for a provisioning model. Without an entry it has no limit of its own."""
    return next((stock for form, stock in zone_of(cloud, zone).stock.items() if form == model), Stock())


def has_capacity(cloud: Cloud, zone: str, model: str, accelerators: Sequence[str], *, waits: bool) -> bool:
    """Return whether a zone has these accelerators now. A request that does not wait finds none where stock comes later."""
    facts, stock = zone_of(cloud, zone), stock_of(cloud, zone, model)
    wanted = [Held(accelerator=accelerator, model=model) for accelerator in accelerators]
    held = [*_held(cloud, zone), *wanted]
    if stock.after_s and not waits:
        return False
    chips = sum(chips_of(one.accelerator) for one in held if one.model == model)
    if stock.chips is not None and chips > stock.chips:
        return False
    kinds = set(accelerators) & set(facts.capacity)
    return all(sum(one.accelerator == kind for one in held) <= facts.capacity[kind] for kind in kinds)


def instance_chips(cloud: Cloud, project: str, *, besides: str = "") -> int:
    """Return the chips of a project's instances that count against GPUS_ALL_REGIONS. `besides`: full name of one that does not."""
    found = [each for name, each in cloud.store.under(INSTANCES, f"projects/{project}/") if name != besides]
    return sum(chips_of(each["_request"]["accelerator"]) for each in found if each["status"] in USES_QUOTA)


def loses_deletion(cloud: Cloud, zone: str, model: str) -> bool:
    """Return whether the deletion of a waiting request comes too late, because capacity was granted meanwhile. Counts the deletions."""
    most = stock_of(cloud, zone, model).lost_deletions
    return bool(most) and cloud.store.count_up(f"tpu.deletions/{zone}/{model}") <= most


def _held(cloud: Cloud, zone: str) -> Iterator[Held]:
    for name, node in cloud.store.under(NODES):
        if name.split("/")[3] == zone:
            yield Held(accelerator=str(node["acceleratorType"]), model=str(node.get("_model")))
    for name, instance in cloud.store.under(INSTANCES):
        if name.split("/")[3] == zone and instance["status"] in HOLDING and not instance.get("_without_stock"):
            request = instance["_request"]
            yield Held(accelerator=str(request["accelerator"]), model=str(request["model"]))
