"""Bands: low and high end of each workload metric, from measured against planned values.

The table is learned from measured sweep points (`tests/planning/corpus/sweeps.csv`) that set no constant, planned with the rounds of their benchmark. Each
publisher is left out once: nine of ten points are inside the others' band, as wide as here. One publisher has all points of TPUs, so their
bands are widened by the factor that the bands of GPUs need for that. What is unexplained moves the slow end in addition.
`make -C dev/judges test` learns the table again and compares, so it changes with the corpus and the formulas.
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from gemma_serving.planning.question.extra_arguments import ignores_options
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import Band
from gemma_serving.planning.settings.vllm_args import SCALED_KV_SUFFIX
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.steps import uses_flash_attention

Figure: TypeAlias = Literal["rate", "ttft", "tpot"]
"""`rate`: output tokens per second of all requests; queue time is part of `ttft`."""
Kind: TypeAlias = Literal["tpu", "gpu"]


class Spread(Struct, frozen=True, kw_only=True):
    """Measured over planned, at the two percentiles."""

    low: float
    high: float
    points: int
    """Points of the corpus that it was learned from; 0 if it is assumed."""
    publishers: int = 0
    """Publishers of those points. With several, nine of ten points are inside the band of all other publishers."""


BANDS: Final[Mapping[tuple[Figure, Kind], Spread]] = {
    # The corpus has too few points of GPUs with a time per token: assumed.
    ("tpot", "gpu"): Spread(low=0.7, high=2.0, points=0),
    # python -m dev.judges.accuracy.bands
    ("rate", "gpu"): Spread(low=0.53, high=1.44, points=41, publishers=4),
    ("rate", "tpu"): Spread(low=0.5, high=1.45, points=85, publishers=1),
    ("tpot", "tpu"): Spread(low=0.61, high=1.27, points=74, publishers=1),
    ("ttft", "gpu"): Spread(low=0.52, high=3.28, points=25, publishers=4),
    ("ttft", "tpu"): Spread(low=0.6, high=2.72, points=74, publishers=1),
}


_VERIFIED_TOKENS: Final = 8_192
WIDER: Final = 2.0
"""Factor of both ends of a band if no public load test has such a load: assumed."""


def not_measured(resolved: Resolved, workload: Workload) -> tuple[str, ...]:
    """Return as words the parts of a load that no public load test has: their effect under load follows from operations, or from single requests.

    The time of the processor and the encoder for an image, a video or audio is not planned at all.
    """
    torch_on_chips = resolved.runtime == "tpu-torch" and resolved.tp > 1
    verifies = bool(resolved.speculative_tokens) and not (resolved.is_tpu or uses_flash_attention(resolved))
    is_far = verifies and resolved.accelerator.generation != "hopper" and workload.input_tokens > _VERIFIED_TOKENS
    parts = {
        "the options of ARG05": ignores_options(resolved),
        "images, videos and audio": workload.images or workload.videos or workload.audio_s,
        "a KV cache with a scale per token and head": resolved.kv_dtype.endswith(SCALED_KV_SUFFIX),
        "eager mode": resolved.eager and not resolved.is_tpu,
        "several chips with vLLM's PyTorch path": torch_on_chips,
        f"a drafter with more than {_VERIFIED_TOKENS:,} tokens in, in the Triton kernel of this card": is_far,
    }
    return tuple(words for words, is_used in parts.items() if is_used)


def decode_sources(resolved: Resolved) -> int:
    """Return how many public sources have a time per token of such a deployment, at most two.

    A single publisher has one of a mixture of experts on a TPU, and only with 16 requests at the same time. None has one with an option whose
    effect the plan ignores.
    """
    if ignores_options(resolved):
        return 0
    known = resolved.accelerator.decode_sources
    return min(known, 1) if resolved.is_tpu and resolved.spec.is_moe else known


def band(figure: Figure, typical: float, resolved: Resolved, workload: Workload, unexplained: float = 0.0) -> Band:
    """Return a planned value with the ends of its class, which are wider if no public load test has such a load.

    `unexplained`: the share of a step that is in no typical value; the slow end has it.
    """
    spread = BANDS[figure, "tpu" if resolved.is_tpu else "gpu"]
    wider = WIDER if not_measured(resolved, workload) else 1.0
    low, high = typical * spread.low / wider, typical * spread.high * wider
    slower = 1 - unexplained
    is_rate = figure == "rate"
    return Band(low=low * slower if is_rate else low, typical=typical, high=high if is_rate else high / slower)
