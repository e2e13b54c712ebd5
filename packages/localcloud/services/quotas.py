"""Service Usage v1beta1: the quotas of accelerators, as numbers; and requests to increase a quota.

Names and format from public programs that read them (2026-11): `tpu.googleapis.com/tpu-v6e-preemptible` per zone in chips,
`run.googleapis.com/nvidia_l4_gpu_allocation_no_zonal_redundancy` per region in GPUs, the RTX PRO 6000's in thousandths of a GPU,
`compute.googleapis.com/preemptible_tpu_v6e` per region and `tpus_per_tpu_family` per region and family in chips,
`run.googleapis.com/mem_allocation` in bytes and `run.googleapis.com/cpu_allocation` in thousandths of a vCPU. A limit of 0 is omitted from
the response, as in protocol-buffer JSON.
An increase is what `gcloud beta quotas preferences create` sends to Cloud Quotas v1. google-api-python-client has no discovery document of that
API, so the admin API receives the request. Rules: the field texts of QuotaPreference (gcloud 528.0.0,
googlecloudsdk/generated_clients/apis/cloudquotas/v1). Google may grant less, or nothing, after hours; here everything is granted immediately.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

from localcloud.json_values import JsonObject, part
from localcloud.rest.call import Call, Handler
from localcloud.rest.errors import CloudError
from localcloud.services import serviceusage
from localcloud.services.service import ApiService, listing, method
from localcloud.world.catalog import gpu_types, tpu_generations
from localcloud.world.cloud import Cloud
from localcloud.world.scenario import Run, Scenario, Tpu

_GIB = 1024**3
_FAMILY_METRIC = "tpus_per_tpu_family"
_FAMILY_ID = "TPUS-PER-TPU-FAMILY-per-project-region"
_TPU: Final = re.compile(r"(?P<generation>TPU\w+?)(?P<preemptible>Preemptible)?PerProjectPerZoneForTPUAPI")
_GPU: Final = re.compile(r"(?P<gpu>Nvidia\w+GpuAlloc)(?P<single>NoZonalRedundancy)?PerProjectRegion")


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of quota metrics."""
    return _QuotaMetrics(cloud).handlers()


class _QuotaMetrics(ApiService):
    prefix = "serviceusage.services.consumerQuotaMetrics"

    @method("get")
    def get(self, call: Call) -> JsonObject:
        parent, _, metric = call.name.partition("/consumerQuotaMetrics/")
        for found in self._metrics(parent, call):
            if found["metric"] == unquote(metric):
                return found
        raise CloudError.not_found(f"Quota metric '{unquote(metric)}' was not found.")

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        metrics = [(str(found["metric"]), found) for found in self._metrics(call.name, call)]
        return listing(call.query, "metrics", sorted(metrics, key=lambda pair: pair[0]))

    def _metrics(self, parent: str, call: Call) -> list[JsonObject]:
        _, project, _, service = parent.split("/")
        if not self._store.has("serviceusage.enabled", f"projects/{project}/services/{service}"):
            raise CloudError.denied(f"Service {service} is not enabled for consumer 'projects/{project}'.")
        number = self._cloud.project_number(project)
        full = call.query.get("view") == "FULL"
        return [
            _metric(f"projects/{number}/services/{service}", f"{service}/{name}", dimension, limits if full else {})
            for name, (dimension, limits) in _limits(service, self._cloud.scenario).items()
        ]


def _limits(service: str, scenario: Scenario) -> Mapping[str, tuple[str, Mapping[str, int]]]:
    """Return the metrics of a service: the scope of a limit (`zone` or `region`), and the limit of each location."""
    if service == "tpu.googleapis.com":
        return _tpu_limits(scenario)
    if service == "compute.googleapis.com":
        return _compute_limits(scenario)
    return _run_limits(scenario) if service == "run.googleapis.com" else {}


def _tpu_limits(scenario: Scenario) -> Mapping[str, tuple[str, Mapping[str, int]]]:
    found: dict[str, tuple[str, Mapping[str, int]]] = {}
    for family, generation in tpu_generations().items():
        zones = {
            zone: facts
            for zone, facts in scenario.tpu.zones.items()
            if any(kind.startswith(f"{family}-") for kind in facts.accelerator_types)
        }
        for suffix, preemptible in (("", False), ("-preemptible", True)):
            chips = {zone: scenario.tpu.chips_of(facts, preemptible=preemptible) for zone, facts in zones.items()}
            found[generation.quota_metric + suffix] = ("zone", chips)
    return found


def _compute_limits(scenario: Scenario) -> Mapping[str, tuple[str, Mapping[str, int]]]:
    """Return the quotas of chips for instances: the preemptible quota of each generation and the quota of its family."""
    facts = scenario.tpu.compute
    regions = sorted({zone.rpartition("-")[0] for zone in scenario.tpu.zones})
    own = {region: facts.preemptible_quota_overrides.get(region, facts.preemptible_quota_chips) for region in regions}
    preemptible = [one.instance_quota_metric for one in tpu_generations().values() if one.instance_quota_metric]
    return {
        **dict.fromkeys(preemptible, ("region", own)),
        _FAMILY_METRIC: ("region", dict.fromkeys(regions, facts.family_quota_chips)),
    }


def _families() -> list[str]:
    """Return the TPU families of instances, a dimension of their quota in addition to the region."""
    return [one.instance_family for one in tpu_generations().values() if one.instance_family]


def _run_limits(scenario: Scenario) -> Mapping[str, tuple[str, Mapping[str, int]]]:
    world, found = scenario.run, dict[str, tuple[str, Mapping[str, int]]]()
    for kind, gpu in gpu_types().items():
        for suffix, key, default in (
            ("_no_zonal_redundancy", "", world.gpu_quota),
            ("", "/zonal", world.gpu_quota_zonal_redundancy),
        ):
            limits = {
                region: gpu.quota_units * world.gpu_quota_overrides.get(f"{region}/{kind}{key}", default)
                for region in world.gpu_regions.get(kind, ())
            }
            found[gpu.quota_metric + suffix] = ("region", limits)
    regions = sorted({region for regions in world.gpu_regions.values() for region in regions})
    found["cpu_allocation"] = ("region", {region: world.cpus_of(region) * 1000 for region in regions})
    found["mem_allocation"] = ("region", {region: world.memory_gib_of(region) * _GIB for region in regions})
    return found


def _metric(parent: str, metric: str, dimension: str, limits: Mapping[str, int]) -> JsonObject:
    name = f"{parent}/consumerQuotaMetrics/{quote(metric, safe='')}"
    by_family = metric.endswith(f"/{_FAMILY_METRIC}")
    unit = "".join(f"/{{{key}}}" for key in ("project", dimension, *(("tpu_family",) if by_family else ())))
    dimensions: list[dict[str, str]] = [{"tpu_family": family} for family in _families()] if by_family else [{}]
    return {
        "name": name,
        "metric": metric,
        "unit": "1",
        "consumerQuotaLimits": [
            {
                "name": f"{name}/limits/{quote(unit.translate({ord('{'): None, ord('}'): None}), safe='')}",
                "metric": metric,
                "unit": f"1{unit}",
                "supportedLocations": sorted(limits),
                "quotaBuckets": [
                    {},
                    *(
                        _bucket({dimension: place, **more}, limit)
                        for place, limit in sorted(limits.items())
                        for more in dimensions
                    ),
                ],
            }
        ],
    }


def _bucket(dimensions: Mapping[str, str], limit: int) -> JsonObject:
    known = {"effectiveLimit": str(limit), "defaultLimit": str(limit)} if limit else {}
    return {"dimensions": dict(dimensions), **known}


def prefer(cloud: Cloud, body: JsonObject) -> JsonObject:
    """Grant a quota and return the preference. Raises CloudError like Cloud Quotas."""
    project = str(body.get("project", ""))
    service = str(body.get("service", ""))
    quota_id = str(body.get("quotaId", ""))
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
    known = {one.quota_id for one in tpu_generations().values()}
    if found is None or found["generation"] not in known or zone not in world.zones:
        return None
    key = "preemptible_quota_chips" if found["preemptible"] else "quota_chips"
    return world.model_copy(update={"zones": {**world.zones, zone: world.zones[zone].model_copy(update={key: value})}})


def _compute(world: Tpu, quota_id: str, dimensions: Mapping[str, str], value: int) -> Tpu | None:
    """Return the world with a quota of chips for instances, or None if the quota does not exist. Here the family's quota is the same in all regions."""
    region, facts = dimensions.get("region", ""), world.compute
    if all(zone.rpartition("-")[0] != region for zone in world.zones):
        return None
    if quota_id in {one.instance_quota_id for one in tpu_generations().values()} - {""}:
        changed: JsonObject = {"preemptible_quota_overrides": {**facts.preemptible_quota_overrides, region: value}}
    elif quota_id == _FAMILY_ID and dimensions.get("tpu_family") in _families():
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
