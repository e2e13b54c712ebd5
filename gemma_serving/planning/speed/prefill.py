"""Cost of a prompt before its first token: computation of its tokens, in chunks that share steps with decoding.

vLLM fills each step up to max-num-batched-tokens: first one token per running request, then prompts, in chunks. A chunk's computation
is hidden behind the weights that the step reads anyway, up to that time.

Images, videos and audio add tokens for the language model, and work for the encoder: transformers' Gemma 4 processors (`max_soft_tokens`, 32 frames
of 70 tokens, 25 audio tokens per second), and vLLM's gemma4_mm.py, which adds a start and an end token to each image, and also a timestamp to each frame.
"""

import math
from typing import Final

from msgspec import Struct

from gemma_serving.planning.data.overheads import AUDIO_TOKENS, FRAME_TOKENS, VIDEO_FRAMES, VIDEO_TOKENS, constant
from gemma_serving.planning.model.spec import ModelSpec, active_params
from gemma_serving.planning.question.records import loses_prefix_cache
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.steps import (
    FLOP_PER_PARAM,
    StepTime,
    all_reduced_s,
    attention_flops_per_s,
    expert_rows_s,
    flops_per_s,
    products_s,
)

_MARKS: Final = 2
"""Tokens around an image: its start and its end."""
_AUDIO_TOKENS_PER_S: Final = AUDIO_TOKENS / 30
_FLOP_PER_PAIR: Final = 4
"""A query and a key: a product and a weighted sum of values, two operations each."""


class Prompt(Struct, frozen=True, kw_only=True):
    """A prompt of a workload."""

    tokens: int
    cached: int
    """Tokens whose KV is already computed by another request."""
    computed: int
    """Tokens to compute."""
    compute_s: float
    """Computation of the uncached tokens, on one device."""
    encoder_s: float
    """Computation of the towers. It runs before its chunk, with separate weights, and so is not hidden."""
    lookup_s: float
    """Remaining cost of the cached tokens, at most their computation."""
    steps: float
    """Steps that it fills on an idle server, as a fraction, because a short prompt shares its step with others."""

    def extra_s(self, hidden_s: float, *, steps: float, per_step: float) -> float:
        """Return the total time that it adds to the `steps` that it fills.

        `hidden_s`: computation that a step hides behind its reads. `per_step`: prompts that are computed per step.
        """
        chunk_s = self.compute_s / max(steps, 1.0)
        full = math.ceil(steps) - 1
        last_s = self.compute_s - full * chunk_s
        one_by_one_s = full * max(chunk_s - hidden_s, 0.0) + max(last_s - hidden_s, 0.0)
        # More frequent prompts share the hidden computation of a step.
        return self.encoder_s + max(one_by_one_s, self.compute_s - hidden_s / per_step)

    def service_s(self, alone: StepTime) -> float:
        """Return the prompt's time on a server that computes only prompts."""
        return self.encoder_s + max(self.compute_s, self.steps * alone.memory_s)


def prompt_of(resolved: Resolved, workload: Workload) -> Prompt:
    """Return the cost of one prompt of the workload on this deployment."""
    tokens = prompt_tokens(workload)
    cached = cached_tokens(resolved, workload)
    budget = max(resolved.max_num_batched_tokens - 1, 1)
    computed = tokens - cached
    rate = flops_per_s(resolved) * resolved.tp
    attention_s = attention_flops(resolved.spec, tokens=tokens, computed=computed) / (
        attention_flops_per_s(resolved) * resolved.tp
    )
    token_s = products_s(resolved, body_params(resolved.spec), 1) / resolved.tp + expert_rows_s(resolved, 1)
    token_s += all_reduced_s(resolved, 1)
    return Prompt(
        tokens=tokens,
        cached=cached,
        computed=computed,
        compute_s=token_s * computed + attention_s,
        encoder_s=encoder_flops(resolved.spec, workload) / rate,
        lookup_s=cached * min(constant("CACHED_TOKEN_S"), token_s),
        steps=computed / budget,
    )


def cached_tokens(resolved: Resolved, workload: Workload) -> int:
    """Return the tokens of a prompt in the prefix cache: whole blocks, and never the last token; 0 if a record says that it stays empty."""
    if resolved.vllm.enable_prefix_caching is False or workload.prefix_share == 0 or loses_prefix_cache(resolved):
        return 0
    shared = min(int(workload.prefix_share * workload.input_tokens), prompt_tokens(workload) - 1)
    return shared // resolved.block_size * resolved.block_size


def body_params(spec: ModelSpec) -> int:
    """Return the parameters that each prompt token uses: a decoded token's without the output head."""
    return active_params(spec) - spec.vocab * spec.hidden


def attention_flops(spec: ModelSpec, *, tokens: int, computed: int) -> float:
    """Return the attention operations for the last `computed` of `tokens` tokens: pairs in each layer's window, times heads."""
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


def media_tokens(workload: Workload) -> int:
    """Return the tokens that images, videos and audio add to a prompt."""
    return (
        workload.images * (workload.tokens_of_image + _MARKS)
        + workload.videos * VIDEO_TOKENS
        + round(workload.audio_s * _AUDIO_TOKENS_PER_S)
    )


def prompt_tokens(workload: Workload) -> int:
    """Return the tokens of a whole prompt."""
    return workload.input_tokens + media_tokens(workload)


def request_tokens(workload: Workload) -> int:
    """Return the tokens of a request of the workload: those of its prompt and of its response."""
    return prompt_tokens(workload) + workload.output_tokens


def encoder_flops(spec: ModelSpec, workload: Workload) -> float:
    """Return the operations of the towers for one prompt; a model without towers projects patches, at negligible cost."""
    frames = VIDEO_FRAMES * workload.videos
    pictures = workload.images * _picture_flops(spec, workload.tokens_of_image)
    pictures += frames * _picture_flops(spec, FRAME_TOKENS)
    return pictures + FLOP_PER_PARAM * spec.audio_params * workload.audio_s * _AUDIO_TOKENS_PER_S


def _picture_flops(spec: ModelSpec, tokens: int) -> float:
    tower = spec.vision
    if tower is None:
        return float(FLOP_PER_PARAM * spec.other_vision_params * tokens)
    patches = tokens * tower.patches_per_token
    params = tower.layers * (4 * tower.hidden**2 + 3 * tower.hidden * tower.intermediate)
    return patches * (FLOP_PER_PARAM * params + _FLOP_PER_PAIR * tower.layers * tower.hidden * patches)
