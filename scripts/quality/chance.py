"""How much of a share, and of a difference of two shares, is chance. Pure functions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_Z: Final = 1.959963984540054
"""Two-sided 95% quantile of the normal distribution."""
SIGNIFICANT: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RightShare:
    """Right answers among those that were judged, with Wilson's 95% interval."""

    right: int
    judged: int

    @property
    def value(self) -> float | None:
        """The share; None if nothing was judged."""
        return self.right / self.judged if self.judged else None

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the interval, which is 0 to 1 if nothing was judged."""
        if not self.judged:
            return 0.0, 1.0
        share, count, square = self.right / self.judged, self.judged, _Z * _Z
        middle = share + square / (2 * count)
        half = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
        whole = 1 + square / count
        return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)


def paired_p(only_first: int, only_second: int) -> float:
    """Return McNemar's exact two-sided p-value: the chance of such a split of the items that only one of the two answered right."""
    count = only_first + only_second
    tail = sum(math.comb(count, number) for number in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**count)


def corrected(values: Sequence[float]) -> list[float]:
    """Return the p-values of several comparisons, corrected by Holm's method for their number."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found, highest = [1.0] * len(values), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, values[at] * (len(values) - rank)))
        found[at] = highest
    return found
