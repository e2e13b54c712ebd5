"""Bands: low and high end of each workload metric, from measured against planned values.

The table is fitted to the corpus of measured sweep points (`authors/accuracy/sweeps.csv`): nine of ten points of a class are inside.
`tests/planning/test_bands.py` fits it again and compares, so it changes with the corpus and the formulas.
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
    # The corpus has too few GPU points: half to 1.2 times the rate has been the planner's stated accuracy since its first field reports.
    ("rate", "gpu"): Spread(low=0.5, high=1.2, points=0),
    ("tpot", "gpu"): Spread(low=0.7, high=2.0, points=0),
    ("ttft", "gpu"): Spread(low=0.4, high=3.0, points=0),
    # authors/benchmarks/accuracy, points=N of sweeps.csv
    ("rate", "tpu-long"): Spread(low=0.77, high=1.46, points=142),
    ("rate", "tpu-short"): Spread(low=0.83, high=1.10, points=241),
    ("tpot", "tpu-long"): Spread(low=0.73, high=1.15, points=104),
    ("tpot", "tpu-short"): Spread(low=0.92, high=1.14, points=231),
    ("ttft", "tpu-long"): Spread(low=0.45, high=2.01, points=104),
    ("ttft", "tpu-short"): Spread(low=0.58, high=1.86, points=230),
}


def kind_of(resolved: Resolved, prompt: Prompt) -> Kind:
    """Return the class of a deployment with prompts of this length."""
    if not resolved.is_tpu:
        return "gpu"
    return "tpu-long" if prompt.tokens >= LONG_PROMPT_TOKENS else "tpu-short"


def band(figure: Figure, kind: Kind, typical: float) -> Band:
    """Return a planned value with the ends of its class."""
    spread = BANDS[figure, kind]
    return Band(low=typical * spread.low, typical=typical, high=typical * spread.high)
