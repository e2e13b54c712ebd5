"""Checks of the accelerator: quotas with their use, and zones that offer the type. The judge of `capacity` judges both."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, cast

from gemma_serving.cloud import quotas
from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.cloud.offers import CapacityQuestion, GoogleResponses, deadline, read_all
from gemma_serving.cloud.quotas import Quota
from gemma_serving.planning.machine.hardware import (
    REVISIONS_AT_AN_UPDATE,
    api_accelerator_type,
    machine_type_of,
    machines_at_once,
)
from gemma_serving.planning.settings.capacity_form import ProvisioningModel
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.tpu import TpuSettings
from gemma_serving.scripts.capacity.api import JudgedForm, JudgedPlace, QuotaCheck, judge, judge_quota, question_of
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, ok

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
    """Yield the quota of each location and form, and whether a zone offers the type with one of its forms."""
    tpu, run = settings.tpu, settings.cloud_run
    more = (quotas.CPU, quotas.MEMORY) if run else ()
    forms = tuple(form.model for form in tpu.forms[1:]) if tpu else ()
    asked = replace(question_of(checkup.project, settings), everywhere=False, quotas=more, forms=forms)
    responses = read_all(checkup, asked, remaining_s=deadline())
    machines = machines_at_once(tpu.renew_before_s if tpu else None)
    purpose = f" for the {machines} TPU VMs of a renewal" if machines > 1 else ""
    of_quotas: list[Diagnosis] = []
    offers: list[Diagnosis] = []
    for place in sorted(judge(asked, responses, checkup.stack, settings), key=lambda place: place.position or 0):
        if tpu is None:
            quota = asked.quota_of(place.accelerator)
            if quota is not None:
                yield _quota(checkup, quota, place.place, place.asked.quota)
            continue
        of_quotas += _form_quotas(checkup, asked, place, purpose=purpose)
        offers.append(_offer(checkup, place))
    yield from _one_is_enough(of_quotas)
    yield from offers
    if run is not None:
        for quota, each in ((quotas.CPU, run.cpu), (quotas.MEMORY, run.memory_mib / 1024)):
            needed = run.max_instances * each
            check = judge_quota(quota, run.region, responses, needed)
            yield _quota(checkup, quota, run.region, check, for_update=REVISIONS_AT_AN_UPDATE * needed)


def _one_is_enough(lines: Sequence[Diagnosis]) -> Iterator[Diagnosis]:
    """Yield lines of quotas. A zone without enough of one is no obstacle if another zone has enough: `up` tries each zone."""
    enough: dict[str, str] = {}
    for line in lines:
        quota, _, zone = line.check.rpartition(" in ")
        if line.state == "passed":
            enough.setdefault(quota, zone)
    for line in lines:
        zone = enough.get(line.check.rpartition(" in ")[0])
        if line.state == "failed" and zone is not None:
            yield replace(line, state="passed", detail=f"{line.detail}, but {zone} has enough", fix="")
        else:
            yield line


def _form_quotas(checkup: Checkup, asked: CapacityQuestion, place: JudgedPlace, *, purpose: str) -> Iterator[Diagnosis]:
    """Yield a line for each quota that the requested forms use in a zone. Flex-start and spot share one."""
    by_quota: dict[Quota, list[JudgedForm]] = {}
    for form in _requested(place):
        quota = asked.quota_of(place.accelerator, cast("ProvisioningModel", form.model))
        if quota is not None:
            by_quota.setdefault(quota, []).append(form)
    for quota, forms in by_quota.items():
        others = [found[0].quota.state for other, found in by_quota.items() if other != quota]
        names = f" ({', '.join(form.model for form in forms)})" if others else ""
        line = _quota(checkup, quota, place.place, forms[0].quota, purpose=purpose, forms=names)
        yield replace(line, has_alternative=any(state != "failed" for state in others))


def _offer(checkup: Checkup, place: JudgedPlace) -> Diagnosis:
    """Return whether a zone offers the type with one of the requested forms."""
    hardware, forms = place.hardware, _requested(place)
    refused = [form for form in forms if form.accepted.state == "failed"]
    is_refused = hardware.state == "passed" and bool(forms) and len(refused) == len(forms)
    check = refused[0].accepted if is_refused else hardware
    fix = _without(checkup, place.place) if check.state == "failed" and not check.fix else check.fix
    detail = check.detail or _OFFERED
    if refused and not is_refused and hardware.state == "passed":
        detail = f"{detail}; not as {', '.join(form.model for form in refused)}"
    name = api_accelerator_type(place.accelerator.name)
    return Diagnosis(check.state, detail, fix, check=f"{name} in {place.place}", api="tpu")


def _requested(place: JudgedPlace) -> Sequence[JudgedForm]:
    """Return the forms of the settings that `up` requests in a zone: those below the ceiling."""
    return [form for form in place.forms if form.in_stack and not form.not_requested]


def _quota(
    checkup: Checkup,
    quota: Quota,
    place: str,
    check: QuotaCheck,
    *,
    purpose: str = "",
    for_update: float = 0,
    forms: str = "",
) -> Diagnosis:
    """Return the line of a quota; `for_update`: the need of an update of the deployed service, if that is more."""
    found = partial(Diagnosis, check=f"quota of {quota.unit}{forms} in {place}", api=quota.service)
    limit = check.limit
    needed = check.needed
    used = check.used or 0
    if check.state == "unknown" or limit is None:
        return found("unknown", check.detail, check.fix)
    if math.isinf(limit):
        return found("passed", f"no limit, {needed:g} needed", values={"needed": needed})
    values = {"limit": limit, "needed": needed, **({"used": used} if used else {})}
    detail = f"{limit:g} {quota.unit}, {needed:g} needed{purpose}{f', {used:g} in use' if used else ''}"
    if check.state == "failed":
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
    """Yield one line per region and group of forms that share quotas."""
    needed = int(tpu.accelerator_type.rpartition("-")[2])
    by_form = {form.model: quotas.instance_quotas(tpu.accelerator_type, form.model) for form in tpu.forms}
    usable = dict.fromkeys(quota for found in by_form.values() for quota in found)
    if not usable:
        yield Diagnosis("unknown", f"no quota of {tpu.accelerator_type} instances is known")
        return
    asked = CapacityQuestion(project=checkup.project, accelerators=(), everywhere=False, quotas=tuple(usable))
    responses = read_all(checkup, asked, remaining_s=deadline())
    groups: dict[tuple[Quota, ...], list[str]] = {}
    for model, found in by_form.items():
        groups.setdefault(tuple(found), []).append(model)
    lines: list[Diagnosis] = []
    for region in tpu.regions:
        best = [(_best(found, region, responses, needed), models) for found, models in groups.items() if found]
        for (check, quota), models in best:
            others = [other.state for (other, _), names in best if names is not models]
            line = _quota(checkup, quota, region, check, forms=f" ({', '.join(models)})" if len(groups) > 1 else "")
            lines.append(replace(line, has_alternative=any(state != "failed" for state in others)))
    yield from _one_is_enough(lines)


def _best(found: Sequence[Quota], region: str, responses: GoogleResponses, needed: float) -> tuple[QuotaCheck, Quota]:
    """Return the quota that allows most, because a preemptible request falls back to the second one."""
    judged = [(judge_quota(quota, region, responses, needed), quota) for quota in found]
    return min(judged, key=lambda one: ("passed", "unknown", "failed").index(one[0].state))


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
