"""`plan`: from a deployment to everything that can be said about it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planning.cost import cost_plan
from planning.memory import memory_plan
from planning.preflight import findings_of
from planning.resolve import Resolved, resolve
from planning.startup import startup_plan
from planning.subject import Subject, is_out_of_memory
from planning.throughput import throughput_plan
from planning.types import Plan
from planning.vllm_args import vllm_environment

if TYPE_CHECKING:
    from planning.types import Deployment


def plan(deployment: Deployment) -> Plan:
    """Say whether the deployment fits, how long it starts, how fast it is, what it costs, with which flags, and what is wrong with it.

    Raises:
        PlanningError: for an unknown name, a value out of range, or settings that contradict each other.
    """
    return plan_of(examine(deployment))


def examine(deployment: Deployment) -> Subject:
    """The figures of a deployment, without findings. Raises PlanningError as `plan` does."""
    resolved = resolve(deployment)
    startup = startup_plan(resolved)
    if (
        deployment.weights_mode is None
        and startup.probe_limit_s is not None
        and startup.total_s > startup.probe_limit_s
    ):
        # Nobody chose the plain mount, and it cannot start in time here: take the one that can.
        resolved = replace(resolved, weights_mode="fuse-buffered")
        startup = startup_plan(resolved)
    memory = memory_plan(resolved)
    throughput = throughput_plan(resolved, memory)
    return Subject(
        r=resolved, memory=memory, startup=startup, throughput=throughput, cost=cost_plan(resolved, throughput)
    )


def plan_of(subject: Subject) -> Plan:
    """The plan of figures that were computed already."""
    r = subject.r
    findings = findings_of(subject)
    accepted = tuple(f.id for f in findings if f.id in r.deployment.accept_findings)
    if is_out_of_memory(subject.memory):
        verdict = "oom"
    elif any(f.severity == "block" and f.id not in accepted for f in findings):
        verdict = "blocked"
    else:
        verdict = "fits"
    return Plan(
        fits=verdict == "fits",
        verdict=verdict,
        model=r.model_id,
        accelerator=r.accelerator.name,
        platform=r.platform,
        quantization=r.scheme.name,
        weights_mode=r.weights_mode,
        memory=subject.memory,
        startup=subject.startup,
        throughput=subject.throughput,
        cost=subject.cost,
        findings=findings,
        accepted=accepted,
        vllm=r.vllm,
        environment=_environment(r),
    )


def _environment(r: Resolved) -> tuple[tuple[str, str], ...]:
    values = vllm_environment(
        is_tpu=r.is_tpu,
        is_moe=r.spec.is_moe,
        needs_cuda_compatibility=r.deployment.cloud_run.cuda13_image and r.accelerator.name == "L4",
        xla_cache_path=r.deployment.tpu.compile_cache_path,
    )
    return tuple(values.items())
