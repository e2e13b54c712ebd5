"""The model that drafts for another: which one the options name, and whether the two fit together.

A drafter is a checkpoint of its own beside the served one (`speculative_config` with a `model`). N-gram and suffix lookups, and heads
that are part of the served checkpoint, have none.
"""

from planning.data.checkpoints import CHECKPOINTS, find_checkpoint, similar_ids
from planning.errors import PlanningError
from planning.model.catalog import spec_of
from planning.model.spec import ModelSpec
from planning.question.vllm_args import VllmOptions

_WITHOUT_DRAFTER = frozenset({"ngram", "[ngram]", "ngram_gpu", "suffix"})
"""Methods of vLLM that look proposals up and load no model (vllm/config/speculative.py)."""


def named_drafter(options: VllmOptions) -> str | None:
    """Return the id or path of the drafter that the options name; None if they name none."""
    config = options.speculative_config
    named = config.get("model") if config is not None else None
    if config is None or not isinstance(named, str) or str(config.get("method", "")) in _WITHOUT_DRAFTER:
        return None
    return named


def drafter_of(options: VllmOptions, given: ModelSpec | None = None) -> ModelSpec | None:
    """Return the architecture of the drafter that the options name; None if they name none, or one that the catalog does not know.

    `given` is an architecture from the drafter's own config.json. The weights are held as `native_quantization` says.

    Raises:
        PlanningError: if `given` belongs to no drafter.
    """
    named = named_drafter(options)
    if named is None:
        if given is not None:
            raise PlanningError(
                "A config.json of a drafter was given, and `vllm.speculative_config` names no drafter; add its id as "
                '{"model": "ORG/NAME", "num_speculative_tokens": 3}.'
            )
        return None
    found = find_checkpoint(named)
    return given if given is not None else spec_of(found.id) if found is not None else None


def likely_drafters(name: str, target: ModelSpec) -> tuple[str, ...]:
    """Return the drafters of a model that a wrong spelling may mean, the most likely first."""
    fitting = drafters_for(target)
    return tuple(one for one in similar_ids(name, drafters=True) if one in fitting)


def mismatch(drafter: ModelSpec, target: ModelSpec) -> str | None:
    """Return why a drafter cannot draft for a model, as a clause; None if it can.

    Proposals are token ids, so both need one vocabulary; a drafter that reads hidden states needs states of its own width.
    """
    if drafter.vocab != target.vocab:
        return f"it has a vocabulary of {drafter.vocab:,} tokens, and {target.name} one of {target.vocab:,}"
    if drafter.target_hidden and drafter.target_hidden != target.hidden:
        return f"it reads hidden states {drafter.target_hidden:,} wide, and those of {target.name} are {target.hidden:,} wide"
    return None


def drafters_for(target: ModelSpec) -> tuple[str, ...]:
    """Return the ids of the catalog's drafters that fit a model."""
    return tuple(one.id for one in CHECKPOINTS.values() if one.is_drafter and mismatch(spec_of(one.id), target) is None)
