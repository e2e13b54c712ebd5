"""Upper limits of an accelerator with a model, to detect impossible metrics.

Two lower bounds of the time that tokens take: their floating-point operations over the peak rate, and, for output tokens, the weights
that a step reads over the memory bandwidth. A real server does more than that, so a faster result is wrong: it counts cached
prompts, names another model, or estimates tokens by characters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MOST_OF_PEAK: Final = 0.80
"""A result above this share of the peak FLOPS is impossible. The best published figure for serving is 76 %, for the input tokens of
very large batches (Pope et al., Efficiently Scaling Transformer Inference, 2022)."""


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
        """Return one sentence if a point's metrics are impossible, or None."""
        duration, requests = figures["duration"], figures["completed"]
        if not duration or not requests:
            return None
        tokens_in, tokens_out = figures["total_input_tokens"], figures["total_output_tokens"]
        computed = max(0.0, tokens_in - cached_tokens)
        flops = self.flops(computed, tokens_out, (tokens_in + tokens_out) / requests)
        share = flops / duration / self.peak_flops_per_s
        if share > MOST_OF_PEAK:
            return (
                f"{figures['total_token_throughput']:.0f} tok/s is impossible on {self.accelerator}: {self.model} would need {share:.0%} of its peak FLOPS,"
                f" but no server reaches {MOST_OF_PEAK:.0%}; check whether cached prompts were counted"
            )
        # Without speculative decoding a request gets one token per step, and each step reads the active weights at least once.
        fastest = figures["max_concurrent_requests"] * self.bandwidth_bytes_per_s / self.bytes_per_step
        if figures["output_throughput"] > fastest:
            return (
                f"{figures['output_throughput']:.0f} output tok/s is impossible on {self.accelerator} without speculative decoding: reading the weights of"
                f" {self.model} once per step allows {fastest:.0f}"
            )
        return None
