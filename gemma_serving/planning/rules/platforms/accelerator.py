"""Rules for accelerators of which something is unknown."""

from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.question.types import figures_words
from gemma_serving.planning.rules.alternatives import other_accelerators
from gemma_serving.planning.rules.registry import RuleResult, rule


@rule("ACC01")
def _cannot_be_deployed(subject: Subject) -> RuleResult | None:
    accelerator, question = subject.resolved.accelerator, subject.resolved.question
    # Only a stack names its place. Any other question is about a plan.
    if question.facts.platform is None or not (question.tpu.zones or question.cloud_run.region):
        return None
    reason = accelerator.plan_only
    if not reason and subject.unknown:
        reason = f"{figures_words(subject.unknown)}, so no check can tell a healthy server from a failed one"
    if not reason and not subject.cost.is_known:
        reason = "its price is unknown, so no limit on costs can be checked"
    if not reason:
        return None
    measured = (one.name for one in ACCELERATORS.values() if one.is_tpu and not one.plan_only and one.decode_sources)
    return RuleResult(
        f"{accelerator.name} cannot be deployed: {reason}.",
        remedies=other_accelerators(subject),
        advice=f"Or set one of {', '.join(measured)}.",
    )


@rule("ACC02")
def _never_measured(subject: Subject) -> RuleResult | None:
    if not subject.unknown:
        return None
    resolved = subject.resolved
    uncounted = resolved.unpacks_int4 and not resolved.accelerator.has_measured("TPU_W4A16_PROGRAM_GIB")
    memory = (
        "Memory is planned without the 4-bit programs, which were not measured either."
        if uncounted
        else "Memory is planned."
    )
    return RuleResult(
        f"{subject.unknown_words} No figure of another generation is used.",
        advice=f"{memory} Measured constants belong in its row of gemma_serving/planning/data/machines.json.",
    )
