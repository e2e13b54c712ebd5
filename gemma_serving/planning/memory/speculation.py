"""Speculative decoding: size of the draft model, cost of its proposals, and tokens per step.

A step verifies `num_speculative_tokens` proposals of each sequence together. Its output is the accepted ones and one more token, so
a step generates 1 + proposals x accepted share tokens (vLLM's own definition of the acceptance rate: accepted over proposed tokens).
"""

import dataclasses
from typing import Final

from msgspec import Struct
from msgspec.structs import replace as replace_struct

from gemma_serving.planning.data.quantization import FULL_BYTES, SCHEMES
from gemma_serving.planning.memory.weights import weights_of
from gemma_serving.planning.model.spec import linear_params
from gemma_serving.planning.question.drafters import named_drafter
from gemma_serving.planning.question.resolved import Resolved

_ACCEPTED_NGRAM: Final = 0.25
"""Default accepted share: prompts that are not quoted back seldom repeat (assumed)."""
_ACCEPTED_DRAFTER: Final = 0.60
"""The same with a draft model made for the model (assumed; draft models of other families are reported at 0.5 to 0.8)."""


class Drafter(Struct, frozen=True, kw_only=True):
    """The speculative part of a deployment."""

    model: str | None
    """Id as written; None for n-grams."""
    resolved: Resolved | None
    """The draft model as a separate deployment; None for n-grams and for a model outside the catalog."""
    proposals: int

    def accepted_share(self, stated: float | None) -> float:
        """Return the share of proposals that the model accepts: the stated one, otherwise a typical one."""
        if stated is not None:
            return stated
        return _ACCEPTED_NGRAM if self.model is None else _ACCEPTED_DRAFTER


def speculation_of(resolved: Resolved) -> Drafter | None:
    """Return the speculative part of a deployment; None without speculative decoding."""
    if resolved.vllm.speculative_config is None or resolved.speculative_tokens <= 0:
        return None
    model = named_drafter(resolved.vllm)
    spec = resolved.drafter
    drafter = None
    if model is not None and spec is not None:
        drafter = replace_struct(
            resolved,
            spec=replace_struct(
                spec, vision=None, other_vision_params=0, audio_params=0, is_multimodal=False, accepts_audio=False
            ),
            scheme=SCHEMES[spec.native_quantization or "bf16"],
            drafter=None,
            runtime="cuda" if not resolved.is_tpu else "tpu-torch" if spec.tpu_torch_path else "tpu-jax",
            speculative_tokens=0,
            vllm=dataclasses.replace(resolved.vllm, speculative_config=None),
        )
    return Drafter(model=model, resolved=drafter, proposals=resolved.speculative_tokens)


def drafter_bytes(resolved: Resolved) -> float:
    """Return the weights of the draft model on one device in bytes; 0 without one, and a reserve for an unknown one."""
    drafter = speculation_of(resolved)
    if drafter is None or drafter.resolved is None:
        return unknown_drafter_bytes(resolved)
    return weights_of(drafter.resolved).device


def unknown_drafter_bytes(resolved: Resolved) -> float:
    """Return the reserve for a draft model outside the catalog on one device; 0 for any other.

    One decoder layer of the served model in bf16, with an output head for its vocabulary. An EAGLE head has one layer, and its
    head or its embeddings are its own (vLLM's llama_eagle3.py). Its size is assumed.
    """
    if not resolved.has_unknown_drafter:
        return 0.0
    spec = resolved.spec
    largest = max(
        linear_params(replace_struct(spec, groups=(replace_struct(group, count=1),))) for group in spec.groups
    )
    return (largest + spec.vocab * spec.hidden) * FULL_BYTES / resolved.tp
