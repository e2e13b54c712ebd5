"""Compute the upper limits of an accelerator with a model, to detect impossible figures.

Two lower bounds of the time that tokens take: their floating-point operations over the peak rate, and, for output tokens, the weights
that a step reads over the memory bandwidth. A real server does more than that, so that a faster result is wrong: it counts cached
prompts, names another model, or estimates tokens by characters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from planning.machine.hardware import find_accelerator
from planning.model.catalog import find_id, spec_of
from planning.model.spec import LayerGroup, tensors

MOST_OF_PEAK: Final = 0.80
"""A result above this share of the peak FLOPS is impossible. The best published figure for serving is 76 %, for the input tokens of
very large batches (Pope et al., Efficiently Scaling Transformer Inference, 2022)."""
BYTES_PER_PARAM: Final = {"bf16": 2.0, "fp8": 1.0, "w4a16": 0.5}
"""Of the weights that can be quantized; the scales are left out."""
PEAK_GAIN: Final = {"fp8": 2.0, "nvfp4": 4.0, "nvfp4-mlp": 4.0}
"""fp8 matrix units run at twice the bf16 rate on the accelerators that have them, fp4 units at four times."""
_MATRICES: Final = frozenset({"attention", "mlp", "experts", "router"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """Attention layers of one kind. Their operations grow with the number of earlier tokens."""

    flops_per_token_pair: float
    window: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """One model on one accelerator, all devices together."""

    model: str
    accelerator: str
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    flops_per_prompt_token: float
    flops_per_output_token: float
    attention: tuple[Attended, ...]
    bytes_per_step: float
    """Bytes of weights that one decoding step of one request reads."""

    def flops(self, prompt_tokens: float, output_tokens: float, mean_length: float) -> float:
        """Return the operations of computed prompt tokens and output tokens, for requests of `mean_length` tokens on average."""
        looked_back = sum(
            part.flops_per_token_pair * min(mean_length / 2, part.window or mean_length / 2) for part in self.attention
        )
        return prompt_tokens * (self.flops_per_prompt_token + looked_back) + output_tokens * (
            self.flops_per_output_token + looked_back
        )

    def impossible(self, figures: Mapping[str, Any], *, cached_tokens: float) -> str | None:
        """Return why a point's figures are impossible, in one sentence; None if they are possible."""
        duration, requests = figures["duration"], figures["completed"]
        if not duration or not requests:
            return None
        tokens_in, tokens_out = figures["total_input_tokens"], figures["total_output_tokens"]
        computed = max(0.0, tokens_in - cached_tokens)
        flops = self.flops(computed, tokens_out, (tokens_in + tokens_out) / requests)
        share = flops / duration / self.peak_flops_per_s
        if share > MOST_OF_PEAK:
            return (
                f"{figures['total_token_throughput']:.0f} tok/s cannot be true on {self.accelerator}: {self.model} would need {share:.0%} of its peak FLOPS,"
                f" and no server reaches {MOST_OF_PEAK:.0%}; were cached prompts counted?"
            )
        # Without speculative decoding a request gets one token per step, and each step reads the active weights at least once.
        fastest = figures["max_concurrent_requests"] * self.bandwidth_bytes_per_s / self.bytes_per_step
        if figures["output_throughput"] > fastest:
            return (
                f"{figures['output_throughput']:.0f} output tok/s cannot be true on {self.accelerator} without speculative decoding: reading the weights of"
                f" {self.model} once a step allows {fastest:.0f}"
            )
        return None


def roofline_of(model: str, accelerator: str, quantization: str | None = None) -> Roofline | None:
    """Return the roofline from the planner's catalog; None if the model or the accelerator is not in it."""
    device, model_id = find_accelerator(accelerator), find_id(model)
    if device is None or model_id is None:
        return None
    spec = spec_of(model_id, quantization)
    precision = quantization or spec.native_quantization or "bf16"
    active = {"matrices": 0.0, "head": 0.0}
    step_bytes = 0.0
    for tensor in tensors(spec):
        read = tensor.params * tensor.active_share
        if tensor.role in _MATRICES and not tensor.copy:
            active["matrices"] += read
        elif tensor.role in {"embedding", "lm-head"}:
            active["head"] += read
        else:
            continue
        step_bytes += read * (BYTES_PER_PARAM.get(precision, 0.5) if tensor.quantizable else 2.0)
    # Layers that share another layer's keys and values skip prompt tokens (vLLM's fast prefill).
    own = sum(group.count for group in spec.groups if group.owns_kv) / spec.layers
    gain = PEAK_GAIN.get(precision, 1.0)
    return Roofline(
        model=model_id,
        accelerator=device.name,
        peak_flops_per_s=device.devices * device.bf16_tflops * 1e12 * gain,
        bandwidth_bytes_per_s=device.devices * device.bandwidth_gb_per_s * 1e9,
        flops_per_prompt_token=2 * active["matrices"] * own,
        flops_per_output_token=2 * (active["matrices"] + active["head"]),
        attention=tuple(_attended(group) for group in spec.groups if group.owns_kv),
        bytes_per_step=step_bytes,
    )


def _attended(group: LayerGroup) -> Attended:
    # Scores and their product with the values: two multiply-adds per element of each head.
    attention = group.attention
    return Attended(
        flops_per_token_pair=4.0 * group.count * attention.heads * attention.head_dim, window=attention.window
    )
