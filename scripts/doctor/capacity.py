"""Checks of the accelerator: quotas as numbers, and zones that offer the type.

Names of the metrics and their units: public programs that read them (2026-11). The name of a TPU's quota id stands in Google's own message,
"Quota limit 'TPUV6EPreemptiblePerProjectPerZoneForTPUAPI' has been exceeded". The quota of an RTX PRO 6000 counts thousandths of a GPU.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, cast
from urllib.parse import quote

from scripts.cloud.google_api import GoogleListError
from scripts.doctor.diagnosis import Check, Checkup, Diagnosis
from stacks.settings import CloudRunSettings, TpuSettings

_QUOTA_VIEWER: Final = "roles/serviceusage.serviceUsageViewer"
_UNLIMITED: Final = -1
_NOT_FOUND: Final = 404
_TPU_METRICS: Final = {
    "v6e": ("tpu-v6e", "TPUV6E"),
    "v5litepod": ("tpu-v5s-litepod", "TPUV5sLitepod"),
    "v5e": ("tpu-v5s-litepod", "TPUV5sLitepod"),
}
"""Generation -> metric, and beginning of the quota id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quota:
    """A quota that a stack uses: `needed` in the units of the metric, `divisor` units are one of `unit`."""

    service: str
    metric: str
    quota_id: str
    dimension: str
    places: Sequence[str]
    needed: int
    divisor: int = 1
    unit: str


_GPU_METRICS: Final = {
    "nvidia-l4": ("nvidia_l4_gpu_allocation", "NvidiaL4GpuAlloc", 1),
    "nvidia-rtx-pro-6000": ("nvidia_rtx_pro_6000_gpu_allocation", "NvidiaRtxPro6000GpuAlloc", 1000),
}
"""GPU -> metric, beginning of the quota id, and units for one GPU."""


def checks(checkup: Checkup) -> Iterator[Check]:
    """Yield the checks of the stack's accelerator. Each makes one call."""
    settings = checkup.settings
    if settings is None:
        return
    for quota in _tpu_quotas(settings.tpu) if settings.tpu else _run_quotas(settings.cloud_run):
        yield Check(name=f"quota {quota.metric}", run=partial(_quota, checkup, quota))
    if settings.tpu is not None:
        kind = settings.tpu.accelerator_type.replace("v5e-", "v5litepod-")
        for zone in settings.tpu.zones:
            yield Check(name=f"{kind} in {zone}", run=partial(_zone, checkup, kind, zone))


def _tpu_quotas(tpu: TpuSettings) -> Iterator[_Quota]:
    generation, _, chips = tpu.accelerator_type.rpartition("-")
    if generation not in _TPU_METRICS or tpu.provisioning == "reservation":
        return
    metric, quota_id = _TPU_METRICS[generation]
    preemptible = tpu.provisioning in {"flex-start", "spot"}
    yield _Quota(
        service="tpu",
        metric=f"{metric}-preemptible" if preemptible else metric,
        quota_id=f"{quota_id}{'Preemptible' if preemptible else ''}PerProjectPerZoneForTPUAPI",
        dimension="zone",
        places=tpu.zones,
        needed=int(chips),
        unit="chips",
    )


def _run_quotas(run: CloudRunSettings | None) -> Iterator[_Quota]:
    if run is None:
        return
    metric, quota_id, units = _GPU_METRICS[run.gpu]
    single = not run.zonal_redundancy
    place, instances = (run.region,), run.max_instances
    yield _Quota(
        service="run",
        metric=f"{metric}_no_zonal_redundancy" if single else metric,
        quota_id=f"{quota_id}{'NoZonalRedundancy' if single else ''}PerProjectRegion",
        dimension="region",
        places=place,
        needed=instances * units,
        divisor=units,
        unit="GPUs",
    )
    yield _Quota(
        service="run",
        metric="cpu_allocation",
        quota_id="CpuAllocPerProjectRegion",
        dimension="region",
        places=place,
        needed=instances * run.cpu * 1000,
        divisor=1000,
        unit="vCPU",
    )
    yield _Quota(
        service="run",
        metric="mem_allocation",
        quota_id="MemAllocPerProjectRegion",
        dimension="region",
        places=place,
        needed=instances * run.memory_mib * 1024**2,
        divisor=1024**3,
        unit="GiB",
    )


def _quota(checkup: Checkup, quota: _Quota) -> Sequence[Diagnosis]:
    service = f"{quota.service}.googleapis.com"
    name = quote(f"{service}/{quota.metric}", safe="")
    path = f"v1beta1/projects/{checkup.project}/services/{service}/consumerQuotaMetrics/{name}?view=FULL"
    try:
        answer = checkup.google.get("serviceusage", path)
    except GoogleListError as error:
        line = checkup.refused(f"quota of {quota.unit}", "serviceusage", _QUOTA_VIEWER, error)
        return (line,)
    limits = cast("list[Mapping[str, object]]", answer.get("consumerQuotaLimits") or [])
    return [_in_place(checkup, quota, place, limits) for place in quota.places]


def _in_place(checkup: Checkup, quota: _Quota, place: str, limits: Sequence[Mapping[str, object]]) -> Diagnosis:
    check = f"quota of {quota.unit} in {place}"
    found = [limit for limit in (_limit(limit, quota.dimension, place) for limit in limits) if limit is not None]
    if not found:
        detail = f"Service Usage names no limit of {quota.metric} for {place}"
        return Diagnosis(check=check, state="cannot be told", detail=detail)
    finite = [limit for limit in found if limit != _UNLIMITED]
    needed = quota.needed / quota.divisor
    if not finite:
        return Diagnosis(check=check, state="ok", detail=f"no limit, {needed:g} needed", values={"needed": needed})
    limit = min(finite) / quota.divisor
    values = {"limit": limit, "needed": needed}
    detail = f"{limit:g} {quota.unit}, {needed:g} needed"
    if min(finite) >= quota.needed:
        detail += _typed(checkup, quota, int(limit))
        return Diagnosis(check=check, state="ok", detail=detail, values=values)
    mend = (
        f"{checkup.enable('cloudquotas')} && gcloud beta quotas preferences create --project={checkup.project} --service={quota.service}.googleapis.com "
        f"--quota-id={quota.quota_id} --dimensions={quota.dimension}={place} --preferred-value={quota.needed} "
        '--email="$(gcloud config get account)"'
    )
    return Diagnosis(check=check, state="missing", detail=detail, mend=mend, values=values)


def _typed(checkup: Checkup, quota: _Quota, limit: int) -> str:
    """Return how the planner is told the GPU quota, if `cloudRun.gpuQuota` says another."""
    run = checkup.settings.cloud_run if checkup.settings else None
    if run is None or quota.unit != "GPUs" or run.gpu_quota == limit:
        return ""
    said = "is not set" if run.gpu_quota is None else f"says {run.gpu_quota}"
    return (
        f"; cloudRun.gpuQuota {said}: pulumi config set --stack {checkup.stack} --path "
        f"gemma-serving:cloudRun.gpuQuota {limit} tells the planner"
    )


def _limit(limit: Mapping[str, object], dimension: str, place: str) -> int | None:
    """Return a limit's value for a place, the nearest bucket first; None if the limit is about something else. An absent value is 0."""
    if f"{{{dimension}}}" not in str(limit.get("unit")):
        return None
    buckets = cast("list[Mapping[str, object]]", limit.get("quotaBuckets") or [])
    own = [b for b in buckets if cast("Mapping[str, str]", b.get("dimensions") or {}) == {dimension: place}]
    general = [b for b in buckets if not b.get("dimensions")]
    chosen = (own or general or [None])[0]
    return None if chosen is None else int(str(chosen.get("effectiveLimit") or 0))


def _zone(checkup: Checkup, kind: str, zone: str) -> Sequence[Diagnosis]:
    check = f"{kind} in {zone}"
    path = f"v2alpha1/projects/{checkup.project}/locations/{zone}/acceleratorTypes/{kind}"
    try:
        checkup.google.get("tpu", path)
    except GoogleListError as error:
        if error.status != _NOT_FOUND:
            return (checkup.refused(check, "tpu", "roles/tpu.viewer", error),)
        mend = f"take {zone} out of gemma-serving:tpu.zones in Pulumi.{checkup.stack}.yaml"
        return (Diagnosis(check=check, state="missing", detail="the zone does not offer it", mend=mend),)
    return (Diagnosis(check=check, state="ok", detail="offered; whether it has stock shows only a request"),)
