"""Quotas for accelerators and Cloud Run instances: names, and limits in a zone or region, from Service Usage.

Names of the metrics and their units: public programs that read them (2026-11). The id of a TPU quota is in Google's own error message,
"Quota limit 'TPUV6EPreemptiblePerProjectPerZoneForTPUAPI' has been exceeded". The quota of an RTX PRO 6000 counts thousandths of a GPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

from gcp_tpu_provider.quota_documents import PREEMPTIBLE, limits_of
from gemma_serving.planning.machine.hardware import ACCELERATORS, FAMILY_QUOTA, family_of_type

VIEWER: Final = "roles/serviceusage.serviceUsageViewer"


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota: `divisor` units of the metric are one of `unit`."""

    service: Literal["tpu", "run", "compute"]
    metric: str
    quota_id: str
    unit: str = "chips"
    divisor: int = 1
    family: str = ""
    """TPU family of the quota, if it is a dimension."""

    @property
    def dimension(self) -> str:
        """The kind of location that has its own limit."""
        return "zone" if self.service == "tpu" else "region"

    def dimensions(self, place: str) -> Mapping[str, str]:
        """Return the dimensions of the quota in a location."""
        return {self.dimension: place, **({"tpu_family": self.family} if self.family else {})}

    def path(self, project: str) -> str:
        """Return the path that lists all limits of the metric."""
        service = f"{self.service}.googleapis.com"
        name = quote(f"{service}/{self.metric}", safe="")
        return f"v1beta1/projects/{project}/services/{service}/consumerQuotaMetrics/{name}?view=FULL"


CPU: Final = Quota("run", "cpu_allocation", "CpuAllocPerProjectRegion", "vCPU", 1000)
MEMORY: Final = Quota("run", "mem_allocation", "MemAllocPerProjectRegion", "GiB", 1024**3)


def instance_quotas(accelerator_type: str, provisioning: str) -> Sequence[Quota]:
    """Return the quotas for chips of Compute Engine instances, the first one used first; none for a generation with unknown quotas.

    Flex-start and spot use the preemptible quota, and the family's if that is insufficient.
    """
    family = family_of_type(accelerator_type)
    offer = family.tpu if family is not None else None
    if offer is None:
        return ()
    ordinary = Quota("compute", "tpus_per_tpu_family", FAMILY_QUOTA, family=offer.instance_family)
    preemptible = Quota("compute", offer.instance_quota_metric, offer.instance_quota_id)
    wanted = (preemptible, ordinary) if is_preemptible(provisioning) else (ordinary,)
    return [quota for quota in wanted if quota.metric and (quota.family or quota is not ordinary)]


def tpu_quota(accelerator_type: str, provisioning: str) -> Quota | None:
    """Return the quota for chips; None for a reservation, which has none, and for a generation with an unknown quota."""
    family = family_of_type(accelerator_type)
    offer = family.tpu if family is not None else None
    if offer is None or not offer.quota_metric or provisioning == "reservation":
        return None
    suffix, kind = ("-preemptible", "Preemptible") if is_preemptible(provisioning) else ("", "")
    return Quota("tpu", f"{offer.quota_metric}{suffix}", f"{offer.quota_id}{kind}PerProjectPerZoneForTPUAPI")


def is_preemptible(provisioning: str) -> bool:
    """Return whether this provisioning model uses the preemptible quota."""
    return provisioning in PREEMPTIBLE


def gpu_quota(gpu: str, *, zonal_redundancy: bool) -> Quota:
    """Return the quota for a Cloud Run GPU, by its name in the setting `cloudRun.gpu`."""
    found = next(one.cloud_run for one in ACCELERATORS.values() if one.cloud_run.name == gpu)
    suffix, kind = ("", "") if zonal_redundancy else ("_no_zonal_redundancy", "NoZonalRedundancy")
    metric, name = f"{found.quota_metric}{suffix}", f"{found.quota_id}{kind}PerProjectRegion"
    return Quota("run", metric, name, "GPUs", found.quota_units)


def limits_in(limits: Sequence[Mapping[str, object]], quota: Quota, place: str) -> Mapping[str, float | None]:
    """Return the limits for a location, in the quota's unit, by the zone or region that each is for. None: not stated; math.inf: unlimited.

    Chips of queued resources have a limit in each zone, and can have one in each region: "Quota limit
    'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east5." (marin-community/marin#1612, #3200).
    """
    found = {place: _lowest(limits, quota, quota.dimension, quota.dimensions(place))}
    if quota.dimension == "zone" and any("{region}" in str(limit.get("unit")) for limit in limits):
        region = place.rpartition("-")[0]
        found[region] = _lowest(limits, quota, "region", {"region": region})
    return found


def _lowest(
    limits: Sequence[Mapping[str, object]], quota: Quota, dimension: str, dimensions: Mapping[str, str]
) -> float | None:
    found = limits_of(limits, dimensions, dimension)
    return min(found) / quota.divisor if found else None
