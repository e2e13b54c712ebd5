"""Bands: low and high end of each workload metric, from measured against planned values.

The table is learned from measured sweep points (`tests/planning/corpus/sweeps.csv`) that set no constant, planned with the rounds of their benchmark. Each
source is left out once: the others' band, as wide as here, holds nine of ten of its points. `tests/planning/test_bands.py` learns it
again and compares, so it changes with the corpus and the formulas.
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from gemma_serving.planning.machine.hardware import Accelerator
from gemma_serving.planning.question.extra_arguments import ignores_options
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import Band
from gemma_serving.planning.settings.vllm_args import SCALED_KV_SUFFIX
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.prefill import Prompt

Figure: TypeAlias = Literal["rate", "ttft", "tpot"]
"""`rate`: output tokens per second of all requests; queue time is part of `ttft`."""
Kind: TypeAlias = Literal["tpu-short", "tpu-long", "gpu"]
"""Classes of points: TPU with prompts below LONG_PROMPT_TOKENS, TPU with longer ones, GPU."""

LONG_PROMPT_TOKENS: Final = 4_096
LOW_PERCENTILE: Final = 5
HIGH_PERCENTILE: Final = 95


class Spread(Struct, frozen=True, kw_only=True):
    """Measured over planned, at the two percentiles."""

    low: float
    high: float
    points: int
    """Points of the corpus that it was learned from; 0 if it is assumed."""
    sources: int = 0
    """Published sources of those points. Without each of them, the others' band holds nine of ten of its points on average."""


BANDS: Final[Mapping[tuple[Figure, Kind], Spread]] = {
    # The corpus has too few points of GPUs with a time per token: assumed.
    ("tpot", "gpu"): Spread(low=0.7, high=2.0, points=0),
    # python -m judges.accuracy.bands
    ("rate", "gpu"): Spread(low=0.64, high=1.41, points=31, sources=4),
    ("rate", "tpu-long"): Spread(low=0.81, high=1.44, points=29, sources=4),
    ("rate", "tpu-short"): Spread(low=0.84, high=1.17, points=56, sources=7),
    ("tpot", "tpu-long"): Spread(low=0.7, high=1.12, points=29, sources=4),
    ("tpot", "tpu-short"): Spread(low=0.84, high=1.11, points=45, sources=5),
    ("ttft", "gpu"): Spread(low=0.58, high=2.33, points=22, sources=3),
    ("ttft", "tpu-long"): Spread(low=0.59, high=2.65, points=29, sources=4),
    ("ttft", "tpu-short"): Spread(low=0.58, high=2.93, points=45, sources=5),
}


WIDER: Final = (2.0, 1.5, 1.0)
"""Factor of both ends of a band on a card with no, one, and more public sources of its figure: assumed."""


def sources_of(figure: Figure, card: Accelerator | None) -> int:
    """Return how many public sources have a figure on a card, at most two; none has it on a custom card."""
    return 0 if card is None else card.prefill_sources if figure == "ttft" else card.decode_sources


def decode_sources(resolved: Resolved) -> int:
    """Return how many public sources have a time per token of such a deployment, at most two.

    A single publisher has one of a mixture of experts on a TPU, and only with 16 requests at the same time. None has one with an option whose
    effect the plan ignores.
    """
    if ignores_options(resolved):
        return 0
    known = resolved.accelerator.decode_sources
    return min(known, 1) if resolved.is_tpu and resolved.spec.is_moe else known


def not_measured(resolved: Resolved, workload: Workload) -> tuple[str, ...]:
    """Return as words what no public load test has: its effect under load follows from operations, or from single requests.

    The time of the processor and the encoder for an image, a video or audio is not planned at all.
    """
    parts = {
        "images, videos and audio": workload.images or workload.videos or workload.audio_s,
        "a KV cache with a scale per token and head": resolved.kv_dtype.endswith(SCALED_KV_SUFFIX),
        "eager mode": resolved.eager and not resolved.is_tpu,
    }
    return tuple(words for words, is_used in parts.items() if is_used)


def kind_of(resolved: Resolved, prompt: Prompt) -> Kind:
    """Return the class of a deployment with prompts of this length."""
    if not resolved.is_tpu:
        return "gpu"
    return "tpu-long" if prompt.tokens >= LONG_PROMPT_TOKENS else "tpu-short"


def band(figure: Figure, kind: Kind, typical: float, card: Accelerator) -> Band:
    """Return a planned value with the ends of its class, which are wider on a card with few sources."""
    spread, wider = BANDS[figure, kind], WIDER[sources_of(figure, card)]
    return Band(low=typical * spread.low / wider, typical=typical, high=typical * spread.high * wider)
