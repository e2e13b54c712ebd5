"""Usage profiles of a new stack: what each asks for, and the nearest deployment that the planner accepts.

The parallelism and the batch sizes are those of the vLLM recipe for Gemma 4 (table "Throughput vs. Latency Tuning").
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from planning.cost.running_costs import running_costs
from planning.cost.subject import subject_of
from planning.machine.hardware import CLOUD_RUN_MAX_CONCURRENCY
from planning.memory.resolve import resolve
from planning.question.types import Deployment
from planning.rules.findings import QUOTA_IDS, detected
from planning.solve.candidates import HostShape
from planning.solve.profiles import Profile, choose
from planning.solve.search import Goal, Solution
from planning.units import format_duration

ProfileName = Literal["latency", "throughput", "batch", "spiky"]
_SPIKE: Final = Profile(hours_per_day=24, busy_minutes=5)
"""Traffic for the cost of a service that is idle most of the time: five minutes of each hour."""
_KEEPS_RATE: Final = 0.99
"""Share of the planned output rate that a larger batch must keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageProfile:
    """What a profile asks for."""

    name: ProfileName
    goal: Goal
    workload: str
    """Default of `--workload`."""
    parallel: tuple[int, int] | None = None
    """Fewest and most devices that share the model."""
    sequences: tuple[int, ...] = ()
    """Batch sizes, the best first."""
    to_zero: bool = False
    """True if the server must cost nothing while it is idle."""

    def suits(self, place: HostShape) -> bool:
        """Return whether an accelerator has what the profile asks for."""
        if self.to_zero:
            return place.platform == "cloud-run"
        return self.parallel is None or self.parallel[0] <= place.accelerator.devices <= self.parallel[1]


USAGE_PROFILES: Final[Mapping[str, UsageProfile]] = {
    one.name: one
    for one in (
        UsageProfile(
            name="latency", goal="latency", workload="in=700,out=300,users=8", parallel=(4, 8), sequences=(16, 8)
        ),
        UsageProfile(
            name="throughput", goal="throughput", workload="in=700,out=300", parallel=(1, 2), sequences=(512, 256)
        ),
        UsageProfile(name="batch", goal="throughput", workload="in=700,out=300", parallel=(1, 2), sequences=(512, 256)),
        UsageProfile(name="spiky", goal="cost", workload="in=700,out=300,users=8", to_zero=True),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """A solution with the settings of a profile."""

    solution: Solution
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    """Comment for each key of the settings file that the profile decides."""
    remarks: tuple[str, ...] = ()
    """Comments for the head of the file."""
    unmet: tuple[str, ...] = ()
    """What the profile asks for and this deployment lacks, with what comes nearest."""


def shaped(profile: UsageProfile, solution: Solution) -> Shaped:
    """Return the solution with the settings of the profile, as far as the planner accepts them."""
    if profile.to_zero:
        return _spiky(profile, solution)
    devices = solution.subject.resolved.tp
    reasons = {"tensorParallelSize": _parallel_reason(profile, devices)}
    unmet = [*_unmet_parallel(profile, solution)]
    fitted = _with_batch(profile, solution)
    if fitted is None:
        fitted = _changed(solution, tensor_parallel_size=devices, max_num_seqs=solution.subject.resolved.max_num_seqs)
        if profile.goal == "latency" or solution.subject.resolved.max_num_seqs < min(profile.sequences):
            unmet.append(_unmet_batch(profile, solution))
    whole = fitted or solution
    reasons["maxNumSeqs"] = _batch_reason(profile, whole.subject.resolved.max_num_seqs)
    remarks = _batch_remarks(whole) if profile.name == "batch" else ()
    return Shaped(solution=whole, reasons=reasons, remarks=tuple(remarks), unmet=tuple(unmet))


def _title(profile: UsageProfile) -> str:
    return f"Profile {profile.name}"


def _parallel_reason(profile: UsageProfile, devices: int) -> str:
    if profile.goal == "latency" and profile.parallel is not None and devices < profile.parallel[0]:
        return f"{_title(profile)}: all devices that this machine has."
    if profile.goal == "latency":
        return f"{_title(profile)}: 4 to 8 devices read the weights together, so each token is sooner."
    if devices > 1:
        return f"{_title(profile)}: all devices of the machine, because it is billed whole."
    return f"{_title(profile)}: 1 or 2 devices spend the least time on exchange, so each gives the most tokens."


def _batch_reason(profile: UsageProfile, size: int) -> str:
    if size not in profile.sequences:
        return f"{_title(profile)}: the planner's size for this memory and load."
    if profile.goal == "latency":
        return f"{_title(profile)}: 8 to 16 requests at a time keep each step short. Further requests wait."
    return f"{_title(profile)}: 256 to 512 requests at a time share each read of the weights."


def _unmet_parallel(profile: UsageProfile, solution: Solution) -> Iterator[str]:
    if profile.parallel is None:
        return
    resolved, (least, most) = solution.subject.resolved, profile.parallel
    if least <= resolved.tp <= most:
        return
    way = "more" if resolved.tp < least else "fewer"
    nearest = "v6e-4 or v6e-8" if resolved.tp < least else "v6e-1 or L4"
    yield (
        f"Profile {profile.name} asks for {least} to {most} devices, but {resolved.accelerator.name} shares the model among {resolved.tp}. "
        f"This is the nearest on it; {nearest} has {way}."
    )


def _unmet_batch(profile: UsageProfile, solution: Solution) -> str:
    least, most = min(profile.sequences), max(profile.sequences)
    resolved = solution.subject.resolved
    users = solution.answer.workload.users
    why = (
        f"the workload has {users} users"
        if profile.goal == "latency" and users is not None and users > most
        else f"the memory or the speed of {resolved.accelerator.name} does not allow it"
    )
    return f"Profile {profile.name} asks for {least} to {most} requests at a time, but {why}. The nearest is {resolved.max_num_seqs}."


def _with_batch(profile: UsageProfile, solution: Solution) -> Solution | None:
    """Return the solution with the first batch size that the planner accepts and that loses no speed; None if none is."""
    users = solution.answer.workload.users
    for size in profile.sequences:
        if profile.goal == "latency" and users is not None and users > size:
            continue
        found = _changed(solution, tensor_parallel_size=solution.subject.resolved.tp, max_num_seqs=size)
        if found is None:
            continue
        before, after = solution.answer.output_tok_per_s.typical, found.answer.output_tok_per_s.typical
        if profile.goal == "latency" or after >= before * _KEEPS_RATE:
            return found
    return None


def _changed(solution: Solution, **options: int) -> Solution | None:
    """Return the solution with other vLLM options; None if the planner has a finding that it had not."""
    deployment = solution.deployment
    return _accepted(solution, replace(deployment, vllm=replace(deployment.vllm, **options)))


def _accepted(solution: Solution, deployment: Deployment) -> Solution | None:
    subject = subject_of(resolve(deployment))
    answer = subject.workload
    if answer is None:
        return None
    if deployment.cloud_run.region is not None:
        concurrency = min(answer.most_users, CLOUD_RUN_MAX_CONCURRENCY)
        deployment = replace(deployment, cloud_run=replace(deployment.cloud_run, concurrency=concurrency))
        subject = subject_of(resolve(deployment))
    found = {name for name, severity in detected(subject).items() if severity != "info"}
    if found - {*QUOTA_IDS, *solution.warnings}:
        return None
    return replace(solution, deployment=deployment, subject=subject, answer=answer)


def _batch_remarks(solution: Solution) -> Iterator[str]:
    yield "Profile batch: send a file of requests as docs/evaluate.md shows, then destroy the stack."
    run_s = solution.deployment.tpu.max_run_duration_s
    if solution.subject.resolved.is_tpu and run_s is not None:
        yield (
            f"The slice ends by itself after {format_duration(run_s)} (maxRunDuration). Set it to the planned time of your file."
        )
    elif not solution.subject.resolved.is_tpu:
        yield "No minimum instance is set, so the service costs nothing some minutes after the last request."


def _spiky(profile: UsageProfile, solution: Solution) -> Shaped:
    resolved, deployment = solution.subject.resolved, solution.deployment
    if resolved.is_tpu:
        run_s = deployment.tpu.max_run_duration_s
        end = f"a run of {format_duration(run_s)}" if run_s is not None else "a run that you end"
        unmet = (
            f"Profile spiky asks for a server that costs nothing between requests, but {resolved.accelerator.name} is billed until it is deleted. "
            f"The nearest on it is {end}; L4 on Cloud Run scales to zero."
        )
        return Shaped(solution=solution, unmet=(unmet,))
    cached = _accepted(solution, replace(deployment, cloud_run=replace(deployment.cloud_run, graph_cache="bucket")))
    sooner_s = 0.0 if cached is None else _start_s(solution) - _start_s(cached)
    whole = cached if cached is not None and sooner_s > 0 else solution
    reasons = {"maxInstances": f"{_title(profile)}: raise it for higher spikes; each instance is billed while it runs."}
    if whole is cached:
        reasons["compileCache"] = (
            f"{_title(profile)}: a later cold start takes compiled graphs from the bucket and is {sooner_s:.0f} s sooner."
        )
    return Shaped(solution=whole, reasons=reasons, remarks=tuple(_spiky_remarks(whole)))


def _spiky_remarks(solution: Solution) -> Iterator[str]:
    ways = {way.kind: way for way in choose((solution,), _SPIKE, "cost").ways}
    zero, stays = ways.get("scale-to-zero"), ways.get("min-instance")
    yield (
        f"Profile spiky: minInstances stays 0, so an idle service costs nothing, and a request after a pause waits about {_start_s(solution) / 60:.0f} min "
        "for a cold start."
    )
    if zero is not None and stays is not None:
        yield (
            f"Traffic in {_SPIKE.busy_minutes:g} minutes of each hour costs ${zero.usd_per_day:.2f} per day. "
            f"minInstances: 1 avoids the wait, at ${stays.usd_per_day:.2f}."
        )


def _start_s(solution: Solution) -> float:
    return running_costs(solution.subject).cold_start_s
