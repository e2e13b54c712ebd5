"""Draft models: which one the options name, and whether it matches the served model.

A draft model is a separate checkpoint (`speculative_config` with a `model`). N-gram and suffix lookups have none.
"""

from collections.abc import Mapping

from gemma_serving.planning.data.checkpoints import CHECKPOINTS, find_checkpoint, similar_ids
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.model.catalog import spec_of
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.settings.vllm_args import VllmOptions

LOOKUPS = frozenset({"ngram", "[ngram]", "ngram_gpu", "suffix"})
"""Methods of vLLM that look proposals up and load no model (vllm/config/speculative.py)."""


def named_drafter(options: VllmOptions) -> str | None:
    """Return the id or path of the draft model that the options name; None if they name none."""
    config = options.speculative_config
    named = config.get("model") if config is not None else None
    if config is None or not isinstance(named, str) or str(config.get("method", "")) in LOOKUPS:
        return None
    return named


def names_speculator(options: VllmOptions) -> bool:
    """Return whether the draft model is an EAGLE or DFlash one, by its name or the method."""
    named = named_drafter(options)
    words = f"{named} {(options.speculative_config or {}).get('method')}".lower()
    return named is not None and any(word in words for word in ("eagle", "dflash"))


def lacks_drafter(config: Mapping[str, object]) -> bool:
    """Return whether a `speculative_config` needs a draft model and names none: no Gemma 4 has heads for proposals of its own."""
    return not config.get("model") and str(config.get("method", "")) not in LOOKUPS


def drafter_of(options: VllmOptions, given: ModelSpec | None = None) -> ModelSpec | None:
    """Return the architecture of the draft model that the options name; None if they name none, or one outside the catalog.

    `given` is an architecture from the draft model's own config.json. The weights are stored as `native_quantization` states.
    Raises PlanningError if `given` is passed but the options name no draft model.
    """
    named = named_drafter(options)
    if named is None:
        if given is not None:
            raise PlanningError(
                "A config.json of a draft model was passed, but vllm.speculativeConfig names no model. Add its id as "
                '{"model": "ORG/NAME", "num_speculative_tokens": 3}.'
            )
        return None
    found = find_checkpoint(named)
    return given if given is not None else spec_of(found.id) if found is not None else None


def likely_drafters(name: str, target: ModelSpec) -> tuple[str, ...]:
    """Return the draft models of a model that a wrong spelling may mean, the most likely first."""
    fitting = drafters_for(target)
    return tuple(one for one in similar_ids(name, drafters=True) if one in fitting)


def drafter_mismatch(drafter: ModelSpec, target: ModelSpec) -> str | None:
    """Return why a draft model cannot draft for a model, as a clause; None if it can.

    Proposals are token ids, so both need the same vocabulary. A draft model that reads hidden states needs states of the same width.
    """
    if drafter.vocab != target.vocab:
        return f"its vocabulary has {drafter.vocab:,} tokens, but {target.name} has {target.vocab:,}"
    if drafter.target_hidden and drafter.target_hidden != target.hidden:
        return f"it reads hidden states {drafter.target_hidden:,} wide, but {target.name} has {target.hidden:,}"
    return None


def drafters_for(target: ModelSpec) -> tuple[str, ...]:
    """Return the ids of the catalog's draft models that match a model."""
    return tuple(
        one.id for one in CHECKPOINTS.values() if one.is_drafter and drafter_mismatch(spec_of(one.id), target) is None
    )
