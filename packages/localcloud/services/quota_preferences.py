"""Quota increase requests: what `gcloud beta quotas preferences create` sends to Cloud Quotas v1.

google-api-python-client has no discovery document of that API, so the admin API receives the request. Rules: the field texts of QuotaPreference
(gcloud 528.0.0, googlecloudsdk/generated_clients/apis/cloudquotas/v1). Google may grant less, or nothing, after hours; here everything is granted immediately.
"""

import re
from collections.abc import Mapping
from typing import Final

from localcloud.json_values import JsonObject, part
from localcloud.rest.errors import CloudError
from localcloud.services import serviceusage
from localcloud.world.catalog import gpu_types
from localcloud.world.cloud import Cloud
from localcloud.world.scenario import Run, Tpu

_TPU: Final = re.compile(r"TPU(?P<family>V6E|V5sLitepod)(?P<preemptible>Preemptible)?PerProjectPerZoneForTPUAPI")
_GPU: Final = re.compile(r"(?P<gpu>Nvidia\w+GpuAlloc)(?P<single>NoZonalRedundancy)?PerProjectRegion")
_GIB: Final = 1024**3


def prefer(cloud: Cloud, body: JsonObject) -> JsonObject:
    """Grant a quota and return the preference. Raises CloudError like Cloud Quotas."""
    project, service, quota_id = (str(body.get(key, "")) for key in ("project", "service", "quotaId"))
    if not serviceusage.answers(cloud, project, "cloudquotas"):
        raise serviceusage.disabled(cloud, "Cloud Quotas API", "cloudquotas", project)
    value = int(str(body.get("preferredValue", 0)))
    if not body.get("contactEmail"):
        raise CloudError.field(
            "quota_preference.contact_email", "When requesting a quota increase, the email address is required."
        )
    dimensions = {str(key): str(place) for key, place in part(body, "dimensions").items()}
    world = cloud.scenario
    tpu = _tpu(world.tpu, quota_id, dimensions, value) if service == "tpu.googleapis.com" else None
    tpu = _compute(world.tpu, quota_id, dimensions, value) if service == "compute.googleapis.com" else tpu
    run = _run(world.run, quota_id, dimensions, value) if service == "run.googleapis.com" else None
    if tpu is None and run is None:
        raise CloudError.not_found(f"Quota '{quota_id}' of service '{service}' was not found for {dimensions}.")
    cloud.scenario = world.model_copy(update={"tpu": tpu or world.tpu, "run": run or world.run})
    granted = {"preferredValue": str(value), "grantedValue": str(value)}
    return {"quotaId": quota_id, "service": service, "dimensions": dimensions, "quotaConfig": granted}


def _tpu(world: Tpu, quota_id: str, dimensions: Mapping[str, str], value: int) -> Tpu | None:
    """Return the world with a quota of TPU chips, or None if the quota does not exist."""
    found, zone = _TPU.fullmatch(quota_id), dimensions.get("zone", "")
    if found is None or zone not in world.zones:
        return None
    key = "preemptible_quota_chips" if found["preemptible"] else "quota_chips"
    return world.model_copy(update={"zones": {**world.zones, zone: world.zones[zone].model_copy(update={key: value})}})


def _compute(world: Tpu, quota_id: str, dimensions: Mapping[str, str], value: int) -> Tpu | None:
    """Return the world with a quota of chips for instances, or None if the quota does not exist. Here the family's quota is the same in all regions."""
    region, facts = dimensions.get("region", ""), world.compute
    if all(zone.rpartition("-")[0] != region for zone in world.zones):
        return None
    if quota_id == "PREEMPTIBLE-TPU-V6E-per-project-region":
        changed: JsonObject = {"preemptible_quota_overrides": {**facts.preemptible_quota_overrides, region: value}}
    elif quota_id == "TPUS-PER-TPU-FAMILY-per-project-region" and dimensions.get("tpu_family") == "CT6E":
        changed = {"family_quota_chips": value}
    else:
        return None
    return world.model_copy(update={"compute": facts.model_copy(update=changed)})


def _run(world: Run, quota_id: str, dimensions: Mapping[str, str], value: int) -> Run | None:
    """Return the world with a Cloud Run quota, or None if the quota does not exist."""
    region = dimensions.get("region", "")
    if not any(region in regions for regions in world.gpu_regions.values()):
        return None
    if quota_id == "CpuAllocPerProjectRegion":
        return world.model_copy(update={"cpu_quota_overrides": {**world.cpu_quota_overrides, region: value // 1000}})
    if quota_id == "MemAllocPerProjectRegion":
        granted = {**world.memory_quota_gib_overrides, region: value // _GIB}
        return world.model_copy(update={"memory_quota_gib_overrides": granted})
    found = _GPU.fullmatch(quota_id)
    for kind, gpu in gpu_types().items():
        if found and found["gpu"] == gpu.quota_id:
            granted = {f"{region}/{kind}" + ("" if found["single"] else "/zonal"): value // gpu.quota_units}
            return world.model_copy(update={"gpu_quota_overrides": world.gpu_quota_overrides | granted})
    return None
