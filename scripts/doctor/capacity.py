"""The accelerator's part of the list: quotas with their use, and zones that offer the type. The judge of places judges both."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from gemma_serving.cloud import quotas
from gemma_serving.cloud.caller import GoogleCaller
from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.cloud.offers import CapacityQuestion, GoogleResponses, deadline, read_all
from gemma_serving.cloud.quotas import Quota
from gemma_serving.contracts.three_answers import Absent, Present, Unknown
from gemma_serving.planning.machine.hardware import REVISIONS_AT_AN_UPDATE, api_accelerator_type, machine_type_of
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.tpu import TpuSettings
from gemma_serving.scripts.doctor.diagnosis import Checkup, Diagnosis, DoctorCheck, missing, ok, unknown
from gemma_serving.scripts.doctor.places import (
    JudgedForm,
    JudgedPlace,
    LocationCheck,
    QuotaCheck,
    judge,
    judge_quota,
    question_of,
)

_NOT_FOUND: Final = 404
_CHIPS: Final = frozenset({"tpu", "compute"})
"""Services whose quotas count chips."""
_OFFERED: Final = "offered (capacity is only known after a request)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """An answer about a zone or region. `excludes`: no machine can be there, even if no other resource uses the quota."""

    place: str
    line: Diagnosis
    excludes: bool = False


def checks(checkup: Checkup) -> Iterator[DoctorCheck]:
    """Yield the check of the stack's accelerator."""
    settings = checkup.settings
    if settings is None:
        return
    if settings.tpu is not None and settings.tpu.api == "compute-engine":
        run = partial(_instances, checkup, settings.tpu)
    else:
        run = partial(_places, checkup, settings)
    yield DoctorCheck(name="quota and zones", run=run)


def _places(checkup: Checkup, settings: Settings) -> Sequence[Diagnosis]:
    asked = replace(question_of(checkup.project, settings), everywhere=False)
    responses = read_all(checkup, asked, remaining_s=deadline())
    places = judge(asked, responses, checkup.stack, settings)
    return place_findings(
        checkup, settings, checkup.stack, responses=responses, places=places, requests=checkup.requests
    )


def place_findings(
    caller: GoogleCaller,
    settings: Settings,
    stack: str,
    *,
    responses: GoogleResponses,
    places: Sequence[JudgedPlace],
    requests: bool,
) -> Sequence[Diagnosis]:
    """Return the answer for the quota of each of the stack's locations and forms, and for each zone's offer of the type.

    `requests`: as of `Checkup`.
    """
    tpu, run = settings.tpu, settings.cloud_run
    found: list[_Found] = []
    offers: list[_Found] = []
    own = [place for place in places if place.position is not None]
    for place in sorted(own, key=lambda place: place.position or 0):
        if tpu is not None:
            found += _form_quotas(caller, place)
            offers.append(_offer(stack, place))
        elif isinstance(place.asked.quota, QuotaCheck):
            found.append(_quota(caller, place.place, place.asked.quota))
    if run is not None:
        for quota, each in ((quotas.CPU, run.cpu), (quotas.MEMORY, run.memory_mib / 1024)):
            needed = run.max_instances * each
            check = judge_quota(quota, run.region, responses, needed)
            found.append(_quota(caller, run.region, check, for_update=REVISIONS_AT_AN_UPDATE * needed))
    zones = tpu.zones if tpu else (run.region,) if run else ()
    return _of_enabled_apis(caller, responses, _together(found, offers, requests=requests, zones=zones))


def _of_enabled_apis(
    caller: GoogleCaller, responses: GoogleResponses, lines: Sequence[Diagnosis]
) -> Sequence[Diagnosis]:
    """Return the answers, each of an API that is off as unknown: its quotas are only known after the API is on."""
    fixes = {problem.fix for problem in responses.problems}
    return [
        replace(
            line,
            answer=Unknown(f"API {line.api} is off in project {caller.project}"),
            fix=caller.enable(line.api),
            is_short=False,
        )
        if caller.enable(line.api) in fixes
        else line
        for line in lines
    ]


def _together(
    found: Sequence[_Found], offers: Sequence[_Found], *, requests: bool, zones: Sequence[str]
) -> Sequence[Diagnosis]:
    """Return the answers, the offers last. They block a request for which no zone can be used: `up` tries each zone."""
    excluded = {one.place for one in (*found, *offers) if one.excludes}
    blocks = requests and all({zone, zone.rpartition("-")[0]} & excluded for zone in zones)
    found_lines = [
        replace(one.line, is_short=requests and one.line.is_absent and one.line.api in _CHIPS) for one in found
    ]
    lines = [*_one_is_enough(found_lines), *(one.line for one in offers)]
    return [replace(line, blocks=blocks) for line in lines]


def _one_is_enough(lines: Sequence[Diagnosis]) -> Iterator[Diagnosis]:
    """Yield answers about quotas. A zone with too little of one does not block if another zone has enough."""
    enough: dict[str, str] = {}
    for line in lines:
        quota, _, zone = line.check.rpartition(" in ")
        if line.word == "ok":
            enough.setdefault(quota, zone)
    for line in lines:
        zone = enough.get(line.check.rpartition(" in ")[0])
        if line.is_absent and zone is not None:
            yield replace(line, answer=Present(f"{line.detail}, but {zone} has enough"), fix="")
        else:
            yield line


def _form_quotas(caller: GoogleCaller, place: JudgedPlace) -> Iterator[_Found]:
    """Yield the answer for each quota that the requested forms use in a zone. Flex-start and spot share one."""
    by_quota: dict[Quota, list[tuple[str, QuotaCheck]]] = {}
    for form in _requested(place):
        if isinstance(form.quota, QuotaCheck):
            by_quota.setdefault(form.quota.read.quota, []).append((form.model, form.quota))
    for quota, forms in by_quota.items():
        others = [one[0][1].state for other, one in by_quota.items() if other != quota]
        names = f" ({', '.join(model for model, _ in forms)})" if others else ""
        found = _quota(caller, place.place, forms[0][1], forms=names)
        yield replace(found, excludes=found.excludes and all(state == "failed" for state in others))


def _offer(stack: str, place: JudgedPlace) -> _Found:
    """Return whether a zone offers the type with one of the requested forms."""
    hardware, forms = place.hardware, _requested(place)
    refused = [form for form in forms if form.accepted.state == "failed"]
    is_refused = hardware.state == "passed" and bool(forms) and len(refused) == len(forms)
    check = refused[0].accepted if is_refused else hardware
    line = _answer_of(check, _OFFERED, check.fix or _without(stack, place.place))
    if refused and not is_refused and hardware.state == "passed":
        line = ok(f"{line.detail}; not as {', '.join(form.model for form in refused)}")
    named = replace(line, check=f"{api_accelerator_type(place.accelerator.name)} in {place.place}", api="tpu")
    return _Found(place=place.place, line=named, excludes=line.is_absent)


def _answer_of(check: LocationCheck, text: str, fix: str) -> Diagnosis:
    """Return a judgment as an answer: `text` if it is open, `fix` if it is closed."""
    if check.state == "passed":
        return ok(text)
    return missing(check.detail, fix) if check.state == "failed" else unknown(check.detail, check.fix)


def _requested(place: JudgedPlace) -> Sequence[JudgedForm]:
    """Return the forms of the settings that `up` requests in a zone: those below the ceiling."""
    return [form for form in place.forms if form.in_stack and not form.not_requested]


def _quota(
    caller: GoogleCaller,
    place: str,
    check: QuotaCheck,
    *,
    forms: str = "",
    for_update: float = 0,
) -> _Found:
    """Return the answer for a quota. It excludes the place if it is too low without any use.

    `for_update`: the need of an update of the deployed service.
    """
    read, quota, needed = check.read, check.read.quota, check.read.needed
    limit, used = read.known_limit, read.known_use or 0
    values = dict[str, float]()
    if limit is not None:
        bound = {} if math.isinf(limit) else {"limit": limit}
        values = {**bound, "needed": needed, **({"used": used} if used else {})}
    more = _more_of(caller, quota, place, max(used + needed, for_update))
    note = f", {for_update:g} during an update" if for_update else ""
    if limit is not None and limit < for_update:
        note = f"; an update needs {for_update:g} because the old and the new revision both count: {more}"
    line = _answer_of(check, f"{check.detail}{note}", more)
    named = replace(
        line,
        check=f"quota of {quota.unit}{forms} in {place}",
        api=quota.service,
        values=values,
        quota=(quota.unit, read.limit) if quota.service == "run" and isinstance(read.limit, Present) else None,
    )
    is_low = limit is not None and limit < needed
    return _Found(place=place, line=named, excludes=line.is_absent and is_low)


def _more_of(caller: GoogleCaller, quota: Quota, location: str, needed: float) -> str:
    """Return the command that requests a quota."""
    dimensions = ",".join(f"{key}={value}" for key, value in quota.dimensions(location).items())
    return (
        f"{caller.enable('cloudquotas')} && gcloud beta quotas preferences create --project={caller.project} --service={quota.service}.googleapis.com "
        f"--quota-id={quota.quota_id} --dimensions={dimensions} --preferred-value={math.ceil(needed * quota.divisor)} "
        '--email="$(gcloud config get account)"'
    )


def _instances(checkup: Checkup, tpu: TpuSettings) -> Sequence[Diagnosis]:
    """Return the answers for Compute Engine: one per region and group of forms that share quotas, and one per zone."""
    needed = int(tpu.accelerator_type.rpartition("-")[2])
    by_form = {form.model: quotas.instance_quotas(tpu.accelerator_type, form.model) for form in tpu.forms}
    usable = tuple(dict.fromkeys(quota for found in by_form.values() for quota in found))
    offers = [_machine_type(checkup, machine_type_of(tpu.accelerator_type), zone) for zone in tpu.zones]
    if not usable:
        text = f"no quota of {tpu.accelerator_type} instances is known"
        return [unknown(text, check="quota of chips"), *(one.line for one in offers)]
    asked = CapacityQuestion(project=checkup.project, accelerators=(), everywhere=False, quotas=usable)
    responses = read_all(checkup, asked, remaining_s=deadline())
    groups: dict[tuple[Quota, ...], list[str]] = {}
    for model, quota in by_form.items():
        groups.setdefault(tuple(quota), []).append(model)
    found: list[_Found] = []
    for region in tpu.regions:
        best = [(_best(group, region, responses, needed), models) for group, models in groups.items() if group]
        for check, models in best:
            names = f" ({', '.join(models)})" if len(groups) > 1 else ""
            one = _quota(checkup, region, check, forms=names)
            is_only = all(other.state == "failed" for other, _ in best)
            found.append(replace(one, excludes=one.excludes and is_only))
    return _of_enabled_apis(checkup, responses, _together(found, offers, requests=checkup.requests, zones=tpu.zones))


def _best(found: Sequence[Quota], region: str, responses: GoogleResponses, needed: float) -> QuotaCheck:
    """Return the quota that allows most, because a preemptible request falls back to the second one."""
    judged = [judge_quota(quota, region, responses, needed) for quota in found]
    return min(judged, key=lambda one: ("passed", "unknown", "failed").index(one.state))


def _machine_type(checkup: Checkup, kind: str, zone: str) -> _Found:
    """Return whether a zone of Compute Engine offers a machine type."""
    answer: Present[str] | Absent | Unknown = Present(_OFFERED)
    fix = ""
    try:
        checkup.google.get("compute", f"compute/v1/projects/{checkup.project}/zones/{zone}/machineTypes/{kind}")
    except GoogleListError as error:
        if error.status == _NOT_FOUND:
            answer, fix = Absent(), _without(checkup.stack, zone)
        else:
            why, fix = checkup.refusal("compute", "roles/compute.viewer", error)
            answer = Unknown(why)
    line = Diagnosis(answer, "not offered in the zone", fix, check=f"{kind} in {zone}")
    return _Found(place=zone, line=line, excludes=line.is_absent)


def _without(stack: str, zone: str) -> str:
    return f"remove {zone} from gemma-serving:tpu.zones in Pulumi.{stack}.yaml"
