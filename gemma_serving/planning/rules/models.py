"""Rules for models: unknown architectures, ids missing on the hub, base checkpoints, draft models that do not match."""

from collections.abc import Iterator
from typing import Final

from gemma_serving.contracts.chat_template import AGE_WORDS, TEMPLATE
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.data.checkpoints import Checkpoint, find_checkpoint, near_spellings, nearest_ids, owner_of
from gemma_serving.planning.model.catalog import absent_model
from gemma_serving.planning.model.spec import text_params
from gemma_serving.planning.question.drafters import drafter_mismatch, drafters_for, lacks_drafter, named_drafter
from gemma_serving.planning.rules.alternatives import served_as, smaller_models
from gemma_serving.planning.rules.registry import RuleResult, change, rule
from gemma_serving.planning.settings.finding import Remedy


@rule("MOD01")
def _unknown_architecture(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    spec = resolved.question.facts.model_spec
    if spec is None:
        return None
    billions, precision = text_params(spec) / 1e9, resolved.scheme.name
    size = f"{billions:.2f} billion parameters in {precision}, {subject.memory.checkpoint_gib:.2f} GiB of files"
    unknown = f" Unknown: {'; '.join(spec.unmodelled)}." if spec.unmodelled else ""
    is_known = find_checkpoint(resolved.question.settings.model) is not None
    near = () if is_known else near_spellings(resolved.question.settings.model)
    meant = f" Its id is close to {' and '.join(near)}." if near else ""
    return RuleResult(
        f"{spec.name} is planned from its config.json as {size}.{unknown}{meant}",
        advice="Compare the plan with the server's first log before you rely on it.",
    )


@rule("MOD02")
def _base_checkpoint(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    found = find_checkpoint(resolved.model_id) if resolved.question.facts.model_spec is None else None
    if found is None or found.kind != "base" or resolved.vllm.chat_template is not None:
        return None
    return RuleResult(
        f"{found.id} is a pre-trained model without a chat template. /v1/chat/completions will return 400, and the "
        "smoke checks will fail.",
        remedies=(change("model", found.architecture),),
        advice=f"Set {resolved.question.vllm_key('chat_template')}, or use /v1/completions.",
    )


_METHODS_OF_ASSISTANTS: Final = frozenset({"mtp", "gemma4_mtp", "draft_model"})
"""Methods that take one of Google's draft models; without one vLLM reads it from the model (vllm/config/speculative.py)."""


@rule("MOD03")
def _foreign_drafter(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    drafter, config = resolved.drafter, resolved.vllm.speculative_config
    if not config:
        return None
    why = drafter_mismatch(drafter, resolved.spec) if drafter is not None else None
    if drafter is not None and why is not None:
        text = f"{drafter.name} cannot draft for {resolved.model_id}: {why}. The server will not start."
    elif lacks_drafter(config):
        key = resolved.question.vllm_key("speculative_config")
        text = f"{key} names no draft model, but {resolved.model_id} has no heads that propose tokens by themselves."
    else:
        return None
    kept = {key: value for key, value in config.items() if key != "method" or value in _METHODS_OF_ASSISTANTS}
    fitting = [change("vllm.speculative_config", {**kept, "model": one}) for one in drafters_for(resolved.spec)]
    return RuleResult(text, remedies=(*fitting, change("vllm.speculative_config", None)))


@rule("MOD04")
def _absent_checkpoint(subject: Subject) -> RuleResult | None:
    question = subject.resolved.question
    config, drafter = subject.resolved.vllm.speculative_config, named_drafter(subject.resolved.vllm)
    model, draft = _absent(question.settings.model), _absent(drafter)
    found = model or draft
    if found is None or found.absent is None:
        return None
    if model is not None:
        remedies: Iterator[Remedy] = (
            Remedy(changes=served_as(one)) for one in nearest_ids(model) if question.facts.model_spec is None
        )
        last_resorts = smaller_models(subject)
    else:
        fitting = drafters_for(subject.resolved.spec)
        remedies = (change("vllm.speculative_config", {**(config or {}), "model": one}) for one in fitting)
        last_resorts = iter((change("vllm.speculative_config", None),))
    return RuleResult(
        absent_model(found, found.absent),
        remedies=remedies,
        last_resorts=last_resorts,
        advice="If files of that name are already in your bucket or image, accept this finding.",
        source=f"{found.absent.url}, {found.absent.date}",
    )


@rule("MOD07")
def _foreign_commit(subject: Subject) -> RuleResult | None:
    question = subject.resolved.question
    commit, known = question.settings.model_revision or "", find_checkpoint(question.settings.model)
    owner = owner_of(commit)
    if owner is None or owner is known:
        return None
    own_commit = (known and known.commit) or None
    advice = "To find the commit of its main branch, run `gemma doctor STACK`."
    if known is None:
        advice += f" If {question.settings.model} is a copy of {owner.id} with its history, accept this finding."
    return RuleResult(
        f"modelRevision is {commit}, which is a commit of {owner.id}, not of {question.settings.model}. "
        "Its weights cannot be loaded.",
        remedies=(change("model_revision", own_commit),),
        advice="" if own_commit else advice,
    )


@rule("MOD08")
def _old_template(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    question, known = resolved.question, find_checkpoint(resolved.question.settings.model)
    own = question.settings.vllm.own_template
    is_stack = question.is_of_stack and resolved.spec.is_gemma4
    if not is_stack or question.settings.vllm.chat_template != own:  # a template of the image has no record
        return None
    age = question.settings.bucket.templates.get(own or TEMPLATE)
    if age is None and own is None and known is not None and known.commit == question.settings.model_revision:
        age = known.template
    age = age or "unknown"
    if age == "2026-07":
        return None
    return RuleResult(
        f"The chat template {own or f'of {question.settings.model}'} {AGE_WORDS[age]}.",
        severity="info" if age == "unknown" else "warn",
        advice=f"To serve Google's current one, save it in the project, set {question.vllm_key('chat_template')}: ./{TEMPLATE} "
        "(weights: bucket), and run gemma stage_model, which records its age.",
    )


def _absent(name: str | None) -> Checkpoint | None:
    found = find_checkpoint(name) if name else None
    return found if found is not None and found.absent is not None else None
