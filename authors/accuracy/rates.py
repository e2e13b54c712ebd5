"""Sweep points and their predictions, summarized by context and users. `bands` compares, this module summarizes."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from authors.accuracy.bands import BandComparison, share_within
from authors.accuracy.corpus.errors import percentile

CONTEXTS: Final[Mapping[str, tuple[int, int]]] = {
    "up to 1,500": (0, 1_500),
    "to 5,000": (1_500, 5_000),
    "to 20,000": (5_000, 20_000),
    "to 70,000": (20_000, 70_000),
}
USERS: Final[Mapping[str, tuple[int, int]]] = {
    "1": (0, 1),
    "2 to 8": (1, 8),
    "9 to 32": (8, 32),
    "33 and more": (32, 2**31),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSpread:
    """Distance of predicted from measured values. A factor is the larger of the two divided by the smaller."""

    count: int
    bias: float
    """Median of predicted divided by measured."""
    typical: float
    """Median factor."""
    within_30_percent: float
    """Share of points whose factor is at most 1.3."""
    within_1_5: float
    within_2: float
    p90: float


def rate_spread_of(found: Sequence[BandComparison]) -> RateSpread:
    """Return the distribution of at least one comparison."""
    factors = sorted(max(one.ratio, 1 / one.ratio) for one in found)
    return RateSpread(
        count=len(factors),
        bias=statistics.median(1 / one.ratio for one in found),
        typical=statistics.median(factors),
        within_30_percent=share_within(found, 1.3),
        within_1_5=share_within(found, 1.5),
        within_2=share_within(found, 2),
        p90=percentile(factors, 90),
    )


def by_class(found: Sequence[BandComparison]) -> Mapping[tuple[str, str], tuple[BandComparison, ...]]:
    """Return the comparisons by context and users, without empty classes."""
    classes = {
        (context, users): tuple(
            one for one in found if low < one.point.input_tokens <= high and least < one.point.users <= most
        )
        for context, (low, high) in CONTEXTS.items()
        for users, (least, most) in USERS.items()
    }
    return {key: members for key, members in classes.items() if members}
