"""Rules for Cloud Run's regional quotas for vCPU and memory, and the quotas that rules know or assume."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from gemma_serving.contracts.three_answers import Assumed, Present
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.machine.hardware import (
    CLOUD_RUN_GIB_PER_VCPU,
    NEW_PROJECT_MEMORY_GIB,
    NEW_PROJECT_VCPU,
    REVISIONS_AT_AN_UPDATE,
    cloud_run_vcpu,
)
from gemma_serving.planning.memory.host_memory import with_margin_gib
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.rules.registry import RuleResult, instance_size, rule
from gemma_serving.planning.settings.finding import Remedy

_NEW: Final = "new projects"


class _Use(Struct, frozen=True):
    """One instance's use of a quota, and the quota in the region."""

    key: str
    """Its key in the settings. The key of its quota has `Quota` behind it."""
    unit: str
    each: float
    quota: Present[float] | Assumed[float]

    @property
    def allowed(self) -> float:
        return self.quota.value


def known_quota(resolved: Resolved, unit: str, key: str, given: float | None) -> Present[float] | None:
    """Return a quota that was read, or that a key of the settings states; None without one."""
    read = dict(resolved.question.facts.quotas).get(unit)
    return read or (None if given is None else Present(given, key))


def certain(too_low: Sequence[Present[float]], *, will: str, may: str) -> str:
    """Return what follows from quotas that are too low: `will` needs one that is known."""
    return will if too_low else may


@rule("SCL04")
def _compute_quota(subject: Subject) -> RuleResult | None:
    uses, instances = _uses(subject.resolved), subject.resolved.question.cloud_run.max_instances
    over = [use for use in uses if use.each * instances > use.allowed]
    if not over:
        return None
    known = _known(over)
    outcome = certain(known, will="The deployment will fail.", may="The deployment may fail.")
    return RuleResult(
        f"{_clauses(subject, over, instances)}. {outcome}",
        severity="block" if known else "warn",
        remedies=_remedies(subject, uses, revisions=1),
        advice=_advice(uses, instances),
    )


@rule("SCL05")
def _compute_quota_at_an_update(subject: Subject) -> RuleResult | None:
    uses, instances = _uses(subject.resolved), subject.resolved.question.cloud_run.max_instances
    over = [use for use in uses if use.each * instances * REVISIONS_AT_AN_UPDATE > use.allowed]
    if not over or any(use.each * instances > use.allowed for use in uses):
        return None
    outcome = certain(
        _known(over),
        will="The new revision will not start, and the old one will keep serving.",
        may="The new revision may not start; the old one then keeps serving.",
    )
    return RuleResult(
        "During an update, instances of the old and the new revision both count toward the quota: "
        f"{_clauses(subject, over, instances, revisions=REVISIONS_AT_AN_UPDATE)}. {outcome}",
        remedies=_remedies(subject, uses, revisions=REVISIONS_AT_AN_UPDATE),
        advice=_advice(uses, instances),
    )


def _known(uses: Sequence[_Use]) -> Sequence[Present[float]]:
    return [use.quota for use in uses if isinstance(use.quota, Present)]


def _uses(resolved: Resolved) -> Sequence[_Use]:
    """Return one instance's use of each quota; empty if neither a quota nor a region is known, because then no project is."""
    run = resolved.question.cloud_run
    quota_gib = None if run.memory_quota_mib is None else run.memory_quota_mib / 1024
    vcpu = known_quota(resolved, "vCPU", "cloudRun.cpuQuota", run.cpu_quota) or Assumed(NEW_PROJECT_VCPU, _NEW)
    memory = known_quota(resolved, "GiB", "cloudRun.memoryQuota", quota_gib) or Assumed(NEW_PROJECT_MEMORY_GIB, _NEW)
    uses = (
        _Use("cloudRun.cpu", "vCPU", resolved.vcpu, vcpu),
        _Use("cloudRun.memory", "GiB", resolved.host_memory_gib, memory),
    )
    return [use for use in uses if run.region or isinstance(use.quota, Present)]


def _clauses(subject: Subject, over: Sequence[_Use], instances: int, *, revisions: int = 1) -> str:
    """Return each quota's limit, and the needs of all revisions' instances."""
    region = subject.resolved.question.cloud_run.region or "the region"
    counted = f"{f'{revisions} x ' if revisions > 1 else ''}cloudRun.maxInstances {instances}"
    found: list[str] = []
    for use in over:
        allowed = f"{use.allowed:g} {use.unit}"
        known = f"is {allowed} ({use.quota.source})"
        if isinstance(use.quota, Assumed):
            known = f"is not set ({use.quota.source} have {allowed})"
        kind = "vCPU" if use.unit == "vCPU" else "memory"
        needed = f"{use.each * revisions * instances:g} {use.unit}"
        one = f"{counted} x {use.key} {use.each:g} {use.unit} is {needed}"
        found.append(f"{one}, but the {kind} quota of {region} {known}")
    return "; ".join(found)


def _remedies(subject: Subject, uses: Sequence[_Use], *, revisions: int) -> Iterator[Remedy]:
    """Yield fewer instances, smaller instances, and a single instance of the smallest size that starts."""
    run = subject.resolved.question.cloud_run
    fewer = min(int(use.allowed / (use.each * revisions)) for use in uses)
    if fewer >= 1:
        yield Remedy(changes=_instances(subject, fewer))
    smaller = _smaller(subject, uses, revisions * run.max_instances)
    if smaller is not None:
        yield Remedy(changes=smaller)
    one = _smaller(subject, uses, revisions) if fewer < 1 < run.max_instances else None
    if one is not None:
        yield Remedy(changes={**_instances(subject, 1), **one})


def _instances(subject: Subject, instances: int) -> dict[str, object]:
    least = subject.resolved.question.cloud_run.min_instances
    found: dict[str, object] = {"cloud_run.max_instances": instances}
    return found if least <= instances else {**found, "cloud_run.min_instances": instances}


def _smaller(subject: Subject, uses: Sequence[_Use], instances: int) -> dict[str, object] | None:
    """Return the largest size that fits the quota this many times and can load the weights; None if none exists."""
    host = subject.resolved.host
    room = {use.unit: use.allowed / instances for use in uses}
    most_gib = min(room.get("GiB", host.max_memory_gib), subject.resolved.host_memory_gib)
    for vcpu in reversed(cloud_run_vcpu(host)):
        memory_gib = int(min(most_gib, vcpu * CLOUD_RUN_GIB_PER_VCPU))
        fits = vcpu <= min(room.get("vCPU", vcpu), subject.resolved.vcpu)
        if fits and memory_gib >= max(host.min_memory_gib, with_margin_gib(subject.memory.load_peak_host_gib)):
            return instance_size(vcpu, memory_gib)
    return None


def _advice(uses: Sequence[_Use], instances: int) -> str:
    """Return the quota that the service and its updates need."""
    needs = [(use, use.each * REVISIONS_AT_AN_UPDATE * instances) for use in uses]
    enough = " and ".join(f"{need:g} {use.unit} ({use.key}Quota)" for use, need in needs if need > use.allowed)
    return f"To raise the quota, request {enough}. To print the request, run `gemma doctor STACK`."
