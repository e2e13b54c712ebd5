"""Usage profiles of a new stack: what each asks for, and the nearest deployment that the planner accepts.

The parallelism and the batch sizes are those of the vLLM recipe for Gemma 4 (table "Throughput vs. Latency Tuning").
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from planning.cost.running_costs import running_costs
from planning.question.types import Deployment
from planning.solve.candidates import HostShape
from planning.solve.search import Goal, Solution, warnings_of, with_concurrency
from planning.units import format_duration

_KEEPS_RATE: Final = 0.99
"""Share of the planned output rate that a larger batch must keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageProfile:
    """What a profile asks for."""

    goal: Goal
    workload: str
    """Default of `--workload`."""
    parallel: tuple[int, int] = (1, 8)
    """Fewest and most devices that share the model."""
    sequences: tuple[int, ...] = ()
    """Batch sizes, the best first. Empty for a server that must cost nothing while it is idle."""
    reasons: tuple[str, str] = ("", "")
    """Comments for the devices and for the batch size in the settings file."""

    def suits(self, place: HostShape) -> bool:
        """Return whether an accelerator has what the profile asks for."""
        fewest, most = self.parallel
        return fewest <= place.accelerator.devices <= most if self.sequences else place.platform == "cloud-run"


_FULL: Final = UsageProfile(
    goal="throughput",
    workload="in=700,out=300",
    parallel=(1, 2),
    sequences=(512, 256),
    reasons=(
        "1 or 2 devices spend the least time on exchange, but a machine is billed whole, so all of its devices share the model.",
        "many requests at a time, best 256 to 512, share each read of the weights.",
    ),
)
USAGE_PROFILES: Final[Mapping[str, UsageProfile]] = {
    "latency": UsageProfile(
        goal="latency",
        workload="in=700,out=300,users=8",
        parallel=(4, 8),
        sequences=(16, 8),
        reasons=(
            "devices read the weights together, so each token is sooner with 4 to 8 of them.",
            "few requests at a time, best 8 to 16, keep each step short. Further requests wait.",
        ),
    ),
    "throughput": _FULL,
    "batch": _FULL,
    "spiky": UsageProfile(goal="cost", workload="in=700,out=300,users=8"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """A solution with the settings of a profile."""

    solution: Solution
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    """Comment for each key of the settings file that the profile decides."""
    remarks: Sequence[str] = ()
    """Comments for the head of the file."""
    unmet: Sequence[str] = ()
    """What the profile asks for and this deployment lacks, with what comes nearest."""


def shaped(name: str | None, solution: Solution) -> Shaped:
    """Return the solution with the settings of the profile with this name, as far as the planner accepts them."""
    if name is None:
        return Shaped(solution=solution)
    profile, resolved = USAGE_PROFILES[name], solution.subject.resolved
    if not profile.sequences:
        return _spiky(solution)
    fitted = _with_batch(profile, solution)
    reasons = zip(("tensorParallelSize", "maxNumSeqs"), profile.reasons, strict=True)
    whole = fitted or _changed(solution, resolved.max_num_seqs) or solution
    return Shaped(
        solution=whole,
        reasons={key: f"Profile {name}: {reason}" for key, reason in reasons},
        remarks=list(_batch_remarks(whole)) if name == "batch" else (),
        unmet=[f"Profile {name} asks for {lack}" for lack in _unmet(profile, solution, is_fitted=fitted is not None)],
    )


def _unmet(profile: UsageProfile, solution: Solution, *, is_fitted: bool) -> Iterator[str]:
    resolved, users, (least, most) = solution.subject.resolved, solution.answer.workload.users, profile.parallel
    name, is_latency, (largest, smallest) = resolved.accelerator.name, profile.goal == "latency", profile.sequences
    if not least <= resolved.tp <= most:
        yield (
            f"{least} to {most} devices, but {name} shares the model among {resolved.tp}. This is the nearest on it."
        )
    if not is_fitted and (is_latency or resolved.max_num_seqs < smallest):
        is_busy = is_latency and users is not None and users > largest
        why = f"the workload has {users} users" if is_busy else f"the memory or the speed of {name} does not allow it"
        yield f"{smallest} to {largest} requests at a time, but {why}. The nearest is {resolved.max_num_seqs}."


def _with_batch(profile: UsageProfile, solution: Solution) -> Solution | None:
    """Return the solution with the first batch size that is accepted and loses no speed."""
    users, is_latency = solution.answer.workload.users, profile.goal == "latency"
    least = 0.0 if is_latency else solution.answer.output_tok_per_s.typical * _KEEPS_RATE
    for size in profile.sequences:
        found = None if is_latency and users is not None and users > size else _changed(solution, size)
        if found is not None and found.answer.output_tok_per_s.typical >= least:
            return found
    return None


def _changed(solution: Solution, sequences: int) -> Solution | None:
    """Return the solution with another batch size, and the devices that share the model; None if it has a new finding."""
    devices = solution.subject.resolved.tp
    vllm = replace(solution.deployment.vllm, tensor_parallel_size=devices, max_num_seqs=sequences)
    return _accepted(solution, replace(solution.deployment, vllm=vllm))


def _accepted(solution: Solution, deployment: Deployment) -> Solution | None:
    """Return the solution with another deployment; None if that has a new finding."""
    subject = with_concurrency(deployment)
    return replace(solution, subject=subject) if set(solution.warnings).issuperset(warnings_of(subject)) else None


def _batch_remarks(solution: Solution) -> Iterator[str]:
    yield "Profile batch: send a file of requests as docs/evaluate.md shows, then destroy the stack."
    run_s = solution.deployment.tpu.max_run_duration_s
    if not solution.subject.resolved.is_tpu:
        yield "No minimum instance is set, so the service costs nothing some minutes after the last request."
    elif run_s is not None:
        yield f"The slice ends by itself after {format_duration(run_s)} (maxRunDuration). Set it to the planned time of your file."


def _spiky(solution: Solution) -> Shaped:
    resolved, deployment = solution.subject.resolved, solution.deployment
    if resolved.is_tpu:
        unmet = (
            f"Profile spiky asks for a server that costs nothing between requests, but {resolved.accelerator.name} is billed until it is deleted. "
            f"The nearest on it is a run of {format_duration(deployment.tpu.max_run_duration_s or 0)}; L4 on Cloud Run scales to zero."
        )
        return Shaped(solution=solution, unmet=(unmet,))
    cached = _accepted(solution, replace(deployment, cloud_run=replace(deployment.cloud_run, graph_cache="bucket")))
    reasons = {"maxInstances": "Profile spiky: raise it for higher spikes; each instance is billed while it runs."}
    if cached is not None:
        reasons["compileCache"] = "Profile spiky: a later cold start takes compiled graphs from the bucket."
    whole = cached or solution
    wait_min = running_costs(whole.subject).cold_start_s / 60
    remarks = (
        f"Profile spiky: minInstances stays 0, so an idle service costs nothing, and a request after a pause waits about {wait_min:.0f} min for a cold start.",
        f"minInstances: 1 avoids the wait, at ${whole.usd_per_hour * 24:.2f} per day.",
    )
    return Shaped(solution=whole, reasons=reasons, remarks=remarks)
