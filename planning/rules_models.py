"""Rules of models: what is not known of an architecture, checkpoints that answer no chat, drafters that do not fit."""

from collections.abc import Iterator

from planning.checkpoints import find_checkpoint
from planning.drafters import drafters_for, mismatch
from planning.model import text_params
from planning.registry import RuleResult, change, rule
from planning.subject import Subject
from planning.types import Remedy


@rule(
    "MOD01",
    "info",
    source="planning.hf_config",
    what="a model outside the catalog, and what the planner does not know of it",
)
def unknown_architecture(subject: Subject) -> RuleResult | None:
    """Find a model that is planned from its config.json."""
    resolved = subject.resolved
    spec = resolved.deployment.model_spec
    if spec is None:
        return None
    size = f"{text_params(spec) / 1e9:.2f} billion parameters in {resolved.scheme.name}, {subject.memory.checkpoint_gib:.2f} GiB of files"
    unknown = f" Not known: {'; '.join(spec.unmodelled)}." if spec.unmodelled else ""
    return RuleResult(
        message=f"{spec.name} is planned from its config.json as {size}.{unknown}",
        advice="Compare the plan with the server's first log before you rely on it.",
    )


@rule(
    "MOD02",
    "warn",
    source="vLLM, OpenAI-compatible server: chat template",
    what="a base checkpoint, which has no chat template",
)
def base_checkpoint(subject: Subject) -> RuleResult | None:
    """Find a checkpoint that was not trained to follow instructions."""
    resolved = subject.resolved
    found = find_checkpoint(resolved.model_id) if resolved.deployment.model_spec is None else None
    if found is None or found.kind != "base" or resolved.vllm.chat_template is not None:
        return None
    return RuleResult(
        message=(
            f"{found.id} is the pre-trained model: it has no chat template, so /v1/chat/completions answers 400, and the smoke "
            "checks fail."
        ),
        remedies=(change("model", found.architecture),),
        advice="Set `vllm.chat_template`, or use /v1/completions.",
    )


@rule(
    "MOD03",
    "block",
    source="vllm-project/vllm#41745; vLLM, speculative decoding (one vocabulary)",
    what="a drafter for another model",
)
def foreign_drafter(subject: Subject) -> RuleResult | None:
    """Find a drafter whose vocabulary or hidden states are not those of the served model."""
    resolved = subject.resolved
    drafter, config = resolved.drafter, resolved.vllm.speculative_config
    why = mismatch(drafter, resolved.spec) if drafter is not None else None
    if drafter is None or config is None or why is None:
        return None

    def remedies() -> Iterator[Remedy]:
        for fitting in drafters_for(resolved.spec):
            yield change("vllm.speculative_config", {**config, "model": fitting})
        yield change("vllm.speculative_config", None)

    return RuleResult(
        message=f"{drafter.name} cannot draft for {resolved.model_id}: {why}. The server stops at start.",
        remedies=remedies(),
    )
