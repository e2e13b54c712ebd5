"""Checks of the accelerator: quotas, and zones that offer the type."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from cloud import quotas
from cloud.google_api import GoogleListError
from cloud.offers import TPU_VIEWER
from cloud.quotas import Quota
from planning.machine.hardware import (
    MACHINE_TYPES,
    NEW_PROJECT_MEMORY_GIB,
    NEW_PROJECT_VCPU,
    REVISIONS_AT_AN_UPDATE,
    api_accelerator_type,
    machines_at_once,
)
from scripts.doctor.diagnosis import Check, Checkup, Diagnosis
from stacks.settings import CloudRunSettings, TpuSettings
from stacks.units import format_memory

_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class _Catalog:
    """API path that lists a type in a zone, and the role that can read it."""

    api: str
    path: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """Quota that a stack needs in each of its locations, in the quota's unit."""

    quota: Quota
    locations: Sequence[str]
    needed: float
    purpose: str = ""
    """Why the stack needs more than one machine or service has; empty if it does not."""
    for_update: float = 0
    """Quota that an update of the deployed service needs, if that is more."""


def checks(checkup: Checkup) -> Iterator[Check]:
    """Yield the checks of the stack's accelerator. Each sends one request."""
    settings = checkup.settings
    if settings is None:
        return
    if settings.tpu is not None and settings.tpu.api == "compute-engine":
        yield from _instance_checks(checkup, settings.tpu)
        return
    for need in _tpu_needs(settings.tpu) if settings.tpu else _run_needs(settings.cloud_run):
        yield Check(name=f"quota {need.quota.metric}", run=partial(_quota, checkup, need))
    if settings.tpu is not None:
        kind = api_accelerator_type(settings.tpu.accelerator_type)
        for zone in settings.tpu.zones:
            yield Check(name=f"{kind} in {zone}", run=partial(_zone, checkup, kind, zone))


def _instance_checks(checkup: Checkup, tpu: TpuSettings) -> Iterator[Check]:
    """Yield the checks of a TPU instance of Compute Engine, which has its own quota."""
    needed = int(tpu.accelerator_type.rpartition("-")[2])
    yield Check(name="quota of chips", run=partial(_instance_quota, checkup, tpu, needed))
    for zone in tpu.zones:
        kind = MACHINE_TYPES[tpu.accelerator_type]
        yield Check(name=f"{kind} in {zone}", run=partial(_machine_type, checkup, kind, zone))


def _instance_quota(checkup: Checkup, tpu: TpuSettings, needed: int) -> Sequence[Diagnosis]:
    """Return one line per region. Preemptible requests fall back to the second quota if the first one is too low."""
    usable = (quotas.INSTANCE_CHIPS, quotas.INSTANCE_FAMILY_CHIPS)[tpu.provisioning == "standard" :]
    try:
        limits = {quota: quotas.read_limits(checkup.google, checkup.project, quota) for quota in usable}
    except GoogleListError as error:
        return (checkup.refused("quota of chips", "serviceusage", quotas.VIEWER, error, about="compute"),)
    return [replace(_in_region(checkup, needed, region, limits), api="compute") for region in tpu.regions]


def _in_region(
    checkup: Checkup, needed: int, region: str, limits: Mapping[Quota, Sequence[Mapping[str, object]]]
) -> Diagnosis:
    found = {quota: quotas.limit_in(read, quota, region) for quota, read in limits.items()}
    check = f"quota of chips in {region}"
    if None in found.values() and all(limit is None or limit < needed for limit in found.values()):
        named = ", ".join(quota.quota_id for quota, limit in found.items() if limit is None)
        return Diagnosis(check=check, state="unknown", detail=f"Service Usage returned no limit for {named}")
    known = {quota: limit for quota, limit in found.items() if limit is not None}
    most = max(known.values())
    known_limits = " and ".join(f"{limit:g} of {quota.quota_id}" for quota, limit in known.items())
    detail = f"{known_limits}, {needed} needed"
    values: Mapping[str, float] = {"needed": needed} if math.isinf(most) else {"limit": most, "needed": needed}
    if most >= needed:
        return Diagnosis(check=check, state="ok", detail=detail, values=values)
    fix = _more_of(checkup, next(iter(known)), region, needed)
    return Diagnosis(check=check, state="missing", detail=detail, fix=fix, values=values)


def _more_of(checkup: Checkup, quota: Quota, location: str, needed: float) -> str:
    """Return the command that requests a quota."""
    dimensions = ",".join(f"{key}={value}" for key, value in quota.dimensions(location).items())
    return (
        f"{checkup.enable('cloudquotas')} && gcloud beta quotas preferences create --project={checkup.project} --service={quota.service}.googleapis.com "
        f"--quota-id={quota.quota_id} --dimensions={dimensions} --preferred-value={math.ceil(needed * quota.divisor)} "
        '--email="$(gcloud config get account)"'
    )


def _machine_type(checkup: Checkup, kind: str, zone: str) -> Sequence[Diagnosis]:
    path = f"compute/v1/projects/{checkup.project}/zones/{zone}/machineTypes/{kind}"
    return _offered(checkup, kind, zone, _Catalog(api="compute", path=path, role="roles/compute.viewer"))


def _tpu_needs(tpu: TpuSettings) -> Iterator[_Need]:
    quota = quotas.tpu_quota(tpu.accelerator_type, tpu.provisioning)
    if quota is not None:
        machines = machines_at_once(tpu.renew_before_s)
        yield _Need(
            quota=quota,
            locations=tpu.zones,
            needed=machines * int(tpu.accelerator_type.rpartition("-")[2]),
            purpose=f" for the {machines} machines of a renewal" if machines > 1 else "",
        )


def _run_needs(run: CloudRunSettings | None) -> Iterator[_Need]:
    if run is None:
        return
    gpus = quotas.gpu_quota(run.gpu, zonal_redundancy=run.zonal_redundancy)
    yield _Need(quota=gpus, locations=(run.region,), needed=run.max_instances)
    for quota, each in ((quotas.CPU, run.cpu), (quotas.MEMORY, run.memory_mib / 1024)):
        needed = run.max_instances * each
        yield _Need(quota=quota, locations=(run.region,), needed=needed, for_update=REVISIONS_AT_AN_UPDATE * needed)


def _quota(checkup: Checkup, need: _Need) -> Sequence[Diagnosis]:
    try:
        limits = quotas.read_limits(checkup.google, checkup.project, need.quota)
    except GoogleListError as error:
        line = checkup.refused(
            f"quota of {need.quota.unit}", "serviceusage", quotas.VIEWER, error, about=need.quota.service
        )
        return (line,)
    return [
        replace(_in_location(checkup, need, location, limits), api=need.quota.service) for location in need.locations
    ]


def _in_location(checkup: Checkup, need: _Need, location: str, limits: Sequence[Mapping[str, object]]) -> Diagnosis:
    quota, needed = need.quota, need.needed
    check = f"quota of {quota.unit} in {location}"
    limit = quotas.limit_in(limits, quota, location)
    if limit is None:
        detail = f"Service Usage returned no limit for {quota.metric} in {location}"
        return Diagnosis(check=check, state="unknown", detail=detail)
    if math.isinf(limit):
        return Diagnosis(check=check, state="ok", detail=f"no limit, {needed:g} needed", values={"needed": needed})
    values = {"limit": limit, "needed": needed}
    detail = f"{limit:g} {quota.unit}, {needed:g} needed{need.purpose}"
    if limit < needed:
        fix = _more_of(checkup, quota, location, max(needed, need.for_update))
        return Diagnosis(check=check, state="missing", detail=detail, fix=fix, values=values)
    if limit < need.for_update:
        more = _more_of(checkup, quota, location, need.for_update)
        detail += f"; an update needs {need.for_update:g} because the old and the new revision both count: {more}"
    return Diagnosis(check=check, state="ok", detail=detail + _typed(checkup, quota, int(limit)), values=values)


def _typed(checkup: Checkup, quota: Quota, limit: int) -> str:
    """Return the command that sets a Cloud Run quota for the planner, if the planner uses another value."""
    run = checkup.settings.cloud_run if checkup.settings else None
    if run is None:
        return ""
    known: Mapping[str, tuple[str, str | None, str]] = {
        "GPUs": ("gpuQuota", _text(run.gpu_quota), str(limit)),
        "vCPU": ("cpuQuota", _text(run.cpu_quota or NEW_PROJECT_VCPU), str(limit)),
        "GiB": ("memoryQuota", format_memory(run.memory_quota_mib or NEW_PROJECT_MEMORY_GIB * 1024), f"{limit}Gi"),
    }
    key, planned, read = known[quota.unit]
    if planned == read:
        return ""
    state = "is not set" if planned is None else f"is planned as {planned}"
    return (
        f"; cloudRun.{key} {state}. For the planner, run: pulumi config set --stack {checkup.stack} --path "
        f"gemma-serving:cloudRun.{key} {read}"
    )


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _zone(checkup: Checkup, kind: str, zone: str) -> Sequence[Diagnosis]:
    path = f"v2alpha1/projects/{checkup.project}/locations/{zone}/acceleratorTypes/{kind}"
    return _offered(checkup, kind, zone, _Catalog(api="tpu", path=path, role=TPU_VIEWER))


def _offered(checkup: Checkup, kind: str, zone: str, catalog: _Catalog) -> Sequence[Diagnosis]:
    check = f"{kind} in {zone}"
    try:
        checkup.google.get(catalog.api, catalog.path)
    except GoogleListError as error:
        if error.status != _NOT_FOUND:
            return (checkup.refused(check, catalog.api, catalog.role, error),)
        fix = f"remove {zone} from gemma-serving:tpu.zones in Pulumi.{checkup.stack}.yaml"
        return (Diagnosis(check=check, state="missing", detail="not offered in the zone", fix=fix),)
    return (Diagnosis(check=check, state="ok", detail="offered (capacity is only known after a request)"),)
