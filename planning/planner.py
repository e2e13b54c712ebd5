"""`plan`: the complete result for a deployment."""

from planning.cost.running_costs import running_costs
from planning.cost.subject import Subject, examine, is_out_of_memory
from planning.data import overheads
from planning.memory.host_memory import streamer_buffer_bytes
from planning.memory.margins import margin_of
from planning.model.support import version_in_use
from planning.question.resolved import Resolved
from planning.question.types import Deployment, Plan, Verdict
from planning.question.vllm_args import XLA_CACHE_PATH, vllm_environment
from planning.rules.findings import accepted_by, findings_of


def plan(deployment: Deployment) -> Plan:
    """Return whether the deployment fits, its start time, speed and cost, and all findings.

    Raises:
        PlanningError: for an unknown name, a value out of range, or conflicting settings.
    """
    return plan_of(examine(deployment))


def plan_of(subject: Subject) -> Plan:
    """Return the plan of figures that are already computed."""
    resolved = subject.resolved
    findings = findings_of(subject)
    accepted = tuple(finding.id for finding in findings if finding.id in accepted_by(subject))
    verdict: Verdict = "fits"
    if is_out_of_memory(subject.memory):
        verdict = "out-of-memory"
    elif any(finding.severity == "block" and finding.id not in accepted for finding in findings):
        verdict = "blocked"
    return Plan(
        fits=verdict == "fits",
        verdict=verdict,
        model=resolved.model_id,
        accelerator=resolved.accelerator.name,
        platform=resolved.platform,
        quantization=resolved.scheme.name,
        weights_mode=resolved.weights_mode,
        memory=subject.memory,
        startup=subject.startup,
        throughput=subject.throughput,
        cost=subject.cost,
        margin=margin_of(subject.memory),
        running=running_costs(subject),
        findings=findings,
        accepted=accepted,
        vllm=resolved.vllm,
        environment=_environment(resolved),
        vllm_version=version_in_use(resolved.accelerator, resolved.deployment.image_version),
        workload=subject.workload,
    )


def _cuda_compatibility(resolved: Resolved) -> bool | None:
    """Return whether the image's CUDA compatibility libraries are loaded; None leaves it to the image.

    Google's page lists driver 535 (CUDA 12.2) for the L4 on Cloud Run, which needs them for CUDA 13. A public script reports 580, which rejects them.
    """
    if resolved.is_tpu:
        return None
    run = resolved.deployment.cloud_run
    if run.cuda_compatibility is not None:
        return run.cuda_compatibility
    return True if run.cuda13_image and resolved.accelerator.name == "L4" else None


def _environment(resolved: Resolved) -> tuple[tuple[str, str], ...]:
    values = vllm_environment(
        is_tpu=resolved.is_tpu,
        is_moe=resolved.spec.is_moe,
        cuda_compatibility=_cuda_compatibility(resolved),
        xla_cache_path=None if resolved.deployment.tpu.compile_cache == "off" else XLA_CACHE_PATH,
    )
    if resolved.weights_mode == "streamer" and resolved.platform == "cloud-run":
        values |= {
            "RUNAI_STREAMER_CONCURRENCY": str(overheads.STREAMER_THREADS),
            "RUNAI_STREAMER_MEMORY_LIMIT": str(streamer_buffer_bytes(resolved)),
        }
    return tuple(sorted(values.items()))
