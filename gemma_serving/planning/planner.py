"""`plan`: the complete result for a deployment."""

from collections.abc import Mapping

from gemma_serving.contracts.verdicts import Severity, Verdict
from gemma_serving.planning.cost.running_costs import bill_text, running_costs
from gemma_serving.planning.cost.subject import Subject, examine, is_out_of_memory
from gemma_serving.planning.data.checkpoints import find_checkpoint
from gemma_serving.planning.data.overheads import STREAMER_THREADS
from gemma_serving.planning.memory.host_memory import streamer_buffer_bytes
from gemma_serving.planning.memory.margins import margin_of
from gemma_serving.planning.model.support import version_in_use
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import Figures, Plan
from gemma_serving.planning.rules.alternatives import served_as
from gemma_serving.planning.rules.findings import accepted_by, cheapest_place, detected_findings, findings_of
from gemma_serving.planning.rules.security.advisories import vulnerabilities
from gemma_serving.planning.settings.image import NO_IMAGE
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import XLA_CACHE_PATH, cuda_compatibility, vllm_environment
from gemma_serving.planning.speed.measured_starts import card_of


def plan(question: Question) -> Plan:
    """Return fit, start, speed, cost and findings. Raises PlanningError for an unknown name, a value out of range, or conflicting settings."""
    return plan_of(examine(question))


def plan_of(subject: Subject) -> Plan:
    """Return the plan of figures that are already computed."""
    resolved = subject.resolved
    findings, together = findings_of(subject)
    accepted = tuple(finding.id for finding in findings if finding.id in accepted_by(subject))
    verdict = _verdict(subject, {finding.id: finding.severity for finding in findings})
    return Plan(
        fits=verdict == "fits",
        verdict=verdict,
        model=resolved.model_id,
        platform=resolved.platform,
        quantization=resolved.scheme.name,
        weights_mode=resolved.weights_mode,
        margin=margin_of(subject.memory),
        bill=bill_text(subject),
        running=running_costs(subject),
        findings=findings,
        together=together,
        accepted=accepted,
        vllm=resolved.vllm,
        environment=_environment(resolved),
        vllm_version=version_in_use(resolved.accelerator, resolved.question.image_version),
        vulnerabilities=tuple(one.id for one in vulnerabilities(subject)),
        **{name: getattr(subject, name) for name in Figures.__struct_fields__},
    )


def original_note(subject: Subject) -> str:
    """Return whether Google's own checkpoint fits in place of an individual's repack, and at which price; empty for any other model."""
    resolved = subject.resolved
    served = find_checkpoint(resolved.model_id) if resolved.question.facts.model_spec is None else None
    if served is None or not served.is_personal:
        return ""
    card = card_of(resolved.accelerator.name)
    logs = f" Public logs show this repack running on {card}." if card in served.runs_on else ""
    server = examine(with_changes(resolved.question, served_as(served.architecture)))
    if _verdict(server, detected_findings(server)) == "fits":
        return f"Google's own {served.architecture} fits too (${server.cost.usd_per_hour:.2f}/h).{logs}"
    place = cheapest_place(server)
    elsewhere = f"; it fits on {place.title} (${place.usd_per_hour:.2f}/h)" if place and place.usd_per_hour else ""
    return f"Google's own {served.architecture} does not fit on {resolved.accelerator.name}{elsewhere}.{logs}"


def assumed_note(subject: Subject) -> str:
    """Return the settings of a question that the planner filled in, as a sentence: those that decide price, start and memory. Empty without any."""
    resolved, given = subject.resolved, subject.resolved.question
    words: list[str] = []
    if given.facts.weights_mode is None:
        words.append(f"weights by {resolved.weights_mode}")
    if resolved.platform == "cloud-run" and not given.cloud_run.memory_mib:
        words.append(f"{resolved.vcpu:g} vCPU and {resolved.host_memory_gib:g} GiB")
    if given.settings.vllm.max_model_len is None:
        words.append(f"{resolved.max_model_len:,} tokens per request")
    if given.settings.vllm.max_num_seqs is None:
        words.append(f"{resolved.max_num_seqs} requests at once")
    return f"Assumed: {', '.join(words)}." if words else ""


def _verdict(subject: Subject, found: Mapping[str, Severity]) -> Verdict:
    if is_out_of_memory(subject.memory):
        return "out-of-memory"
    accepted = accepted_by(subject)
    return "blocked" if any(one == "block" and name not in accepted for name, one in found.items()) else "fits"


def _environment(resolved: Resolved) -> tuple[tuple[str, str], ...]:
    run, image = resolved.question.cloud_run, resolved.question.settings.image
    compatibility = run.cuda_compatibility
    if run.region and image != NO_IMAGE and image.needs_cuda_13:
        compatibility = cuda_compatibility(resolved.accelerator.cloud_run.name, compatibility)
    values = vllm_environment(
        is_tpu=resolved.is_tpu,
        is_moe=resolved.spec.is_moe,
        cuda_compatibility=None if resolved.is_tpu else compatibility,
        xla_cache_path=None if resolved.question.tpu.compile_cache == "off" else XLA_CACHE_PATH,
    )
    if resolved.weights_mode == "streamer" and resolved.platform == "cloud-run":
        values |= {
            "RUNAI_STREAMER_CONCURRENCY": str(STREAMER_THREADS),
            "RUNAI_STREAMER_MEMORY_LIMIT": str(streamer_buffer_bytes(resolved)),
        }
    return tuple(sorted(values.items()))
