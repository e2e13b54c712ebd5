"""Bands: low and high end of each workload metric, from measured against planned values.

The table is learned from measured sweep points (`authors/accuracy/sweeps.csv`) that set no constant. Each source is left out once: the others'
band, as wide as here, holds nine of ten of its points. `tests/planning/test_bands.py` learns it again and compares, so it changes with the
corpus and the formulas.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from planning.question.resolved import Resolved
from planning.question.types import Band
from planning.speed.prefill import Prompt

Figure: TypeAlias = Literal["rate", "ttft", "tpot"]
"""`rate`: output tokens per second of all requests; queue time is part of `ttft`."""
Kind: TypeAlias = Literal["tpu-short", "tpu-long", "gpu"]
"""Classes of points: TPU with prompts below LONG_PROMPT_TOKENS, TPU with longer ones, GPU."""

LONG_PROMPT_TOKENS: Final = 4_096
LOW_PERCENTILE: Final = 5
HIGH_PERCENTILE: Final = 95


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
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
    # python -m authors.accuracy.bands
    ("rate", "gpu"): Spread(low=0.55, high=1.42, points=31, sources=4),
    ("rate", "tpu-long"): Spread(low=0.82, high=1.45, points=29, sources=4),
    ("rate", "tpu-short"): Spread(low=0.86, high=1.16, points=56, sources=7),
    ("tpot", "tpu-long"): Spread(low=0.7, high=1.23, points=29, sources=4),
    ("tpot", "tpu-short"): Spread(low=0.82, high=1.12, points=45, sources=5),
    ("ttft", "gpu"): Spread(low=0.59, high=3.26, points=22, sources=3),
    ("ttft", "tpu-long"): Spread(low=0.36, high=2.71, points=29, sources=4),
    ("ttft", "tpu-short"): Spread(low=0.38, high=2.12, points=45, sources=5),
}


UNMEASURED: Final = (0.5, 2.0)
"""Measured over planned decoding of one request on a card without a public row: assumed."""


def kind_of(resolved: Resolved, prompt: Prompt) -> Kind:
    """Return the class of a deployment with prompts of this length."""
    if not resolved.is_tpu:
        return "gpu"
    return "tpu-long" if prompt.tokens >= LONG_PROMPT_TOKENS else "tpu-short"


def band(figure: Figure, kind: Kind, typical: float) -> Band:
    """Return a planned value with the ends of its class."""
    spread = BANDS[figure, kind]
    return Band(low=typical * spread.low, typical=typical, high=typical * spread.high)
