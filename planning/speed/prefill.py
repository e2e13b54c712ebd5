"""What a prompt costs before its first token: arithmetic of its tokens, in chunks that share steps with decoding.

vLLM fills each step up to max-num-batched-tokens: first one token of each running request, then prompts, in chunks. A chunk's arithmetic
hides behind the weights that the step reads anyway, until it is longer than that.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from planning.data import overheads
from planning.model.spec import ModelSpec, active_params
from planning.question.resolved import Resolved
from planning.question.workload import Workload
from planning.speed.multimodal import encoder_flops, prompt_tokens
from planning.speed.steps import FLOP_PER_PARAM, StepTime, flops_per_s

_FLOP_PER_PAIR: Final = 4
"""A query and a key: a product and a weighted sum of values, two operations each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt of a workload."""

    tokens: int
    cached: int
    """Tokens whose KV another request has computed already."""
    compute_s: float
    """Arithmetic of the tokens that are computed, on one device."""
    encoder_s: float
    """Arithmetic of the towers. It runs before its chunk, with weights of its own, and so hides behind nothing."""
    lookup_s: float
    """What the cached tokens cost nevertheless, at most their computation."""
    steps: float
    """Steps that it fills, as a fraction: a short prompt shares its step with others."""
    whole_steps: int
    """Steps that it takes at least."""

    @property
    def computed(self) -> int:
        """Tokens that have to be computed."""
        return self.tokens - self.cached

    def extra_s(self, hidden_s: float, *, per_step: float) -> float:
        """Return how much longer it makes the steps that it shares, in all.

        `hidden_s`: arithmetic that a step hides behind what it reads. `per_step`: prompts that arrive for each step.
        """
        chunk_s = self.compute_s / max(self.steps, 1.0)
        full = self.whole_steps - 1
        last_s = self.compute_s - full * chunk_s
        one_by_one_s = full * max(chunk_s - hidden_s, 0.0) + max(last_s - hidden_s, 0.0)
        # Prompts that come more often share what a step hides.
        return self.encoder_s + max(one_by_one_s, self.compute_s - hidden_s / per_step)

    def cached_s(self, hidden_s: float) -> float:
        """Return how long the cached tokens delay the first token; a part hides behind a step's reading."""
        return max(self.lookup_s - hidden_s, 0.0)

    def service_s(self, alone: StepTime) -> float:
        """Return what the prompt takes of a server that computes nothing but prompts."""
        return self.encoder_s + max(self.compute_s, self.steps * alone.memory_s)


def prompt_of(resolved: Resolved, workload: Workload) -> Prompt:
    """Return what one prompt of the workload costs on this deployment."""
    tokens = prompt_tokens(workload)
    cached = cached_tokens(resolved, workload)
    budget = max(resolved.max_num_batched_tokens - 1, 1)
    computed = tokens - cached
    flops = FLOP_PER_PARAM * body_params(resolved.spec) * computed + attention_flops(
        resolved.spec, tokens=tokens, computed=computed
    )
    rate = flops_per_s(resolved.accelerator) * resolved.tp
    return Prompt(
        tokens=tokens,
        cached=cached,
        compute_s=flops / rate,
        encoder_s=encoder_flops(resolved.spec, workload) / rate,
        lookup_s=cached * min(overheads.CACHED_TOKEN_S, FLOP_PER_PARAM * body_params(resolved.spec) / rate),
        steps=computed / budget,
        whole_steps=math.ceil(computed / budget),
    )


def cached_tokens(resolved: Resolved, workload: Workload) -> int:
    """Return the tokens of a prompt that the prefix cache holds: whole blocks, and never the last token."""
    if resolved.vllm.enable_prefix_caching is False or workload.prefix_share == 0:
        return 0
    shared = min(int(workload.prefix_share * workload.input_tokens), prompt_tokens(workload) - 1)
    return shared // resolved.block_size * resolved.block_size


@lru_cache(maxsize=64)
def body_params(spec: ModelSpec) -> int:
    """Return the parameters that each token of a prompt uses: those of a decoded token without the output head."""
    return active_params(spec) - spec.vocab * spec.hidden


def attention_flops(spec: ModelSpec, *, tokens: int, computed: int) -> float:
    """Return the arithmetic of attention for the last `computed` of `tokens` tokens: pairs that each layer looks at, by heads."""
    total = 0.0
    for group in spec.groups:
        attention = group.attention
        pairs = _pairs(tokens, attention.window) - _pairs(tokens - computed, attention.window)
        total += group.count * _FLOP_PER_PAIR * attention.heads * attention.head_dim * pairs
    return total


def _pairs(tokens: int, window: int | None) -> float:
    """Return the sum of min(position, window) over the positions 1 to `tokens`."""
    if window is None or tokens <= window:
        return tokens * (tokens + 1) / 2
    return window * (window + 1) / 2 + (tokens - window) * window
