"""Usage profiles of a new stack: the requirements, and the nearest deployment that the planner accepts.

The parallelism and the batch sizes follow the vLLM recipe for Gemma 4 (table "Throughput vs. Latency Tuning").
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct
from msgspec.structs import replace as replace_struct

from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.settings.deployment import Deployment
from gemma_serving.planning.solve.candidates import HostShape
from gemma_serving.planning.solve.search import Goal, Solution, warnings_of, with_concurrency


class UsageProfile(Struct, frozen=True, kw_only=True):
    """Requirements of a profile."""

    goal: Goal
    workload: str
    """Default of `--workload`."""
    parallel: tuple[int, int] = (1, 8)
    """Minimum and maximum of devices that share the model."""
    sequences: tuple[int, int] | None = None
    """Minimum and maximum of concurrent requests. None for a server that must cost nothing while it is idle."""
    reasons: Mapping[str, str]
    """Comments for keys of the settings file."""

    def suits(self, place: HostShape) -> bool:
        """Return whether an accelerator meets the profile's requirements."""
        fewest, most = self.parallel
        return fewest <= place.accelerator.devices <= most if self.sequences else place.platform == "cloud-run"


_FULL: Final = UsageProfile(
    goal="throughput",
    workload="in=700,out=300",
    parallel=(1, 2),
    sequences=(256, 1024),
    reasons={
        "tensorParallelSize": "1 or 2 devices spend the least time on exchange, but a machine is billed whole, so all its devices share the model.",
        "maxNumSeqs": "many concurrent requests, at least 256, share each read of the weights.",
    },
)
USAGE_PROFILES: Final[Mapping[str, UsageProfile]] = {
    "latency": UsageProfile(
        goal="latency",
        workload="in=700,out=300,users=8",
        parallel=(4, 8),
        sequences=(8, 16),
        reasons={
            "tensorParallelSize": "devices read the weights together, so each token is faster with 4 to 8 of them.",
            "maxNumSeqs": "few concurrent requests, best 8 to 16, keep each step short. Further requests wait.",
        },
    ),
    "throughput": _FULL,
    "batch": replace_struct(
        _FULL,
        reasons={
            **_FULL.reasons,
            "workload": "send a file of requests as docs/evaluate.md shows, then destroy the stack.",
        },
    ),
    "spiky": UsageProfile(
        goal="cost",
        workload="in=700,out=300,users=8",
        reasons={
            "maxInstances": "raise it for higher spikes. Without requests no instance runs or costs, so a request after a pause waits for a cold start.",
        },
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """A solution with the settings of a profile."""

    solution: Solution
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    """Comment for each key of the settings file that the profile decides."""
    unmet: Sequence[str] = ()
    """The profile's requirements that this deployment lacks, with the nearest value."""


def with_profile(name: str | None, solution: Solution) -> Shaped:
    """Return the solution with the settings of the profile with this name, as far as the planner accepts them."""
    if name is None:
        return Shaped(solution=solution)
    profile = USAGE_PROFILES[name]
    accepted = (_accepted(solution, deployment) for deployment in _wished(profile, solution))
    whole = next(filter(None, accepted), solution)
    resolved = whole.subject.resolved
    return Shaped(
        solution=whole,
        reasons={key: f"Profile {name}: {reason}" for key, reason in profile.reasons.items()},
        unmet=[
            f"Profile {name} requires {wish}. The nearest on {resolved.accelerator.name} with this workload is {got}."
            for wish, got in _unmet(profile, whole)
        ],
    )


def _wished(profile: UsageProfile, solution: Solution) -> Iterator[Deployment]:
    """Yield the settings that the profile requires, the best first."""
    whole = solution.deployment
    resolved = solution.subject.resolved
    users = solution.answer.workload.users or 0
    if profile.sequences is None:
        return
    most = profile.sequences[1]
    batches = (most, resolved.max_num_seqs) if users <= most < resolved.max_num_seqs else (resolved.max_num_seqs,)
    for batch in batches:
        yield replace_struct(
            whole, vllm=dataclasses.replace(whole.vllm, tensor_parallel_size=resolved.tp, max_num_seqs=batch)
        )


def _accepted(solution: Solution, deployment: Deployment) -> Solution | None:
    """Return the solution with another deployment; None if that has a new finding."""
    subject = with_concurrency(resolve(deployment))
    return (
        replace_struct(solution, subject=subject) if set(solution.warnings).issuperset(warnings_of(subject)) else None
    )


def _unmet(profile: UsageProfile, solution: Solution) -> Iterator[tuple[str, str]]:
    """Yield the profile's requirements, and the solution's values instead."""
    resolved = solution.subject.resolved
    if profile.sequences is None:
        if resolved.is_tpu:
            yield "a server that costs nothing between requests", "a slice that is billed until it is deleted"
        return
    for (least, most), count, what in (
        (profile.parallel, resolved.tp, "devices that share the model"),
        (profile.sequences, resolved.max_num_seqs, "concurrent requests"),
    ):
        if not least <= count <= most:
            yield f"{least} to {most} {what}", str(count)
