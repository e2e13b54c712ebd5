"""Checks of the accelerator: quotas with their use, and zones that offer the type. The judge of `capacity` judges both."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from cloud import quotas
from cloud.google_api import GoogleListError
from cloud.offers import CapacityQuestion, deadline, read_all
from cloud.quotas import Quota
from planning.machine.hardware import (
    REVISIONS_AT_AN_UPDATE,
    api_accelerator_type,
    machine_type_of,
    machines_at_once,
)
from planning.settings.tpu import TpuSettings
from scripts.capacity.face import QuotaGate, judge, judge_quota, question_of
from scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, ok
from stacks.settings import Settings

_NOT_FOUND: Final = 404
_OFFERED: Final = "offered (capacity is only known after a request)"


def checks(checkup: Checkup) -> Iterator[DoctorCheck]:
    """Yield the checks of the stack's accelerator."""
    settings = checkup.settings
    if settings is None:
        return
    tpu = settings.tpu
    if tpu is None or tpu.api == "cloud-tpu":
        yield DoctorCheck(name="quota and zones", run=partial(_places, checkup, settings))
        return
    yield DoctorCheck(name="quota of chips", run=partial(_instance_quota, checkup, tpu))
    for zone in tpu.zones:
        kind = machine_type_of(tpu.accelerator_type)
        run = partial(_machine_type, checkup, kind, zone)
        yield checkup.calling(f"{kind} in {zone}", "compute", "roles/compute.viewer", run)


def _places(checkup: Checkup, settings: Settings) -> Iterator[Diagnosis]:
    """Yield the quota of each location, and whether a zone offers the type with its provisioning model."""
    tpu, run = settings.tpu, settings.cloud_run
    more = (quotas.CPU, quotas.MEMORY) if run else ()
    asked = replace(question_of(checkup.project, settings), everywhere=False, quotas=more)
    answers = read_all(checkup, asked, remaining_s=deadline())
    machines = machines_at_once(tpu.renew_before_s if tpu else None)
    purpose = f" for the {machines} TPU VMs of a renewal" if machines > 1 else ""
    for place in sorted(judge(asked, answers, checkup.stack, settings), key=lambda place: place.position or 0):
        quota, hardware = asked.quota_of(place.accelerator), place.hardware
        if quota is not None:
            yield _quota(checkup, quota, place.place, place.quota, purpose=purpose)
        if tpu is not None:
            model = place.models[place.model]
            gate = model if hardware.state == "passed" and model.state == "failed" else hardware
            fix = _without(checkup, place.place) if gate.state == "failed" else gate.fix
            check = f"{api_accelerator_type(tpu.accelerator_type)} in {place.place}"
            yield Diagnosis(gate.state, gate.detail or _OFFERED, fix, check=check, api="tpu")
    if run is not None:
        for quota, each in ((quotas.CPU, run.cpu), (quotas.MEMORY, run.memory_mib / 1024)):
            needed = run.max_instances * each
            gate = judge_quota(quota, run.region, answers, needed)
            yield _quota(checkup, quota, run.region, gate, for_update=REVISIONS_AT_AN_UPDATE * needed)


def _quota(
    checkup: Checkup, quota: Quota, place: str, gate: QuotaGate, *, purpose: str = "", for_update: float = 0
) -> Diagnosis:
    """Return the line of a quota; `for_update`: the need of an update of the deployed service, if that is more."""
    found = partial(Diagnosis, check=f"quota of {quota.unit} in {place}", api=quota.service)
    limit = gate.limit
    needed = gate.needed
    used = gate.used or 0
    if gate.state == "unknown" or limit is None:
        return found("unknown", gate.detail, gate.fix)
    if math.isinf(limit):
        return found("passed", f"no limit, {needed:g} needed", values={"needed": needed})
    values = {"limit": limit, "needed": needed, **({"used": used} if used else {})}
    detail = f"{limit:g} {quota.unit}, {needed:g} needed{purpose}{f', {used:g} in use' if used else ''}"
    if gate.state == "failed":
        return found("failed", detail, _more_of(checkup, quota, place, max(used + needed, for_update)), values)
    if limit < for_update:
        more = _more_of(checkup, quota, place, for_update)
        detail += f"; an update needs {for_update:g} because the old and the new revision both count: {more}"
    return found("passed", detail, values=values)


def _more_of(checkup: Checkup, quota: Quota, location: str, needed: float) -> str:
    """Return the command that requests a quota."""
    dimensions = ",".join(f"{key}={value}" for key, value in quota.dimensions(location).items())
    return (
        f"{checkup.enable('cloudquotas')} && gcloud beta quotas preferences create --project={checkup.project} --service={quota.service}.googleapis.com "
        f"--quota-id={quota.quota_id} --dimensions={dimensions} --preferred-value={math.ceil(needed * quota.divisor)} "
        '--email="$(gcloud config get account)"'
    )


def _instance_quota(checkup: Checkup, tpu: TpuSettings) -> Iterator[Diagnosis]:
    """Yield one line per region. Preemptible requests fall back to the second quota if the first one is too low."""
    needed = int(tpu.accelerator_type.rpartition("-")[2])
    usable = quotas.instance_quotas(tpu.accelerator_type, tpu.forms[0].model)
    asked = CapacityQuestion(project=checkup.project, accelerators=(), everywhere=False, quotas=usable)
    answers = read_all(checkup, asked, remaining_s=deadline())
    for region in tpu.regions:
        found = [(judge_quota(quota, region, answers, needed), quota) for quota in usable]
        if not found:
            yield Diagnosis("unknown", f"no quota of {tpu.accelerator_type} instances is known")
            return
        gate, quota = min(found, key=lambda one: ("passed", "unknown", "failed").index(one[0].state))
        yield _quota(checkup, quota, region, gate)


def _machine_type(checkup: Checkup, kind: str, zone: str) -> Iterator[Diagnosis]:
    try:
        checkup.google.get("compute", f"compute/v1/projects/{checkup.project}/zones/{zone}/machineTypes/{kind}")
    except GoogleListError as error:
        if error.status != _NOT_FOUND:
            raise
        yield missing("not offered in the zone", _without(checkup, zone))
    else:
        yield ok(_OFFERED)


def _without(checkup: Checkup, zone: str) -> str:
    return f"remove {zone} from gemma-serving:tpu.zones in Pulumi.{checkup.stack}.yaml"
