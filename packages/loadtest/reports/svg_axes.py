"""Axes of rendered charts: round values, short numbers, and positions of values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MOST_X_TICKS: Final = 8
FEW_POWERS: Final = 3
"""Number of powers of ten above which an axis has no ticks between them."""
THOUSAND: Final = 1000.0


def number(value: float) -> str:
    """Return a number in short form for an axis."""
    size = abs(value)
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            scale = 1e3 if suffix == "k" else limit
            return f"{value / scale:.3g}{suffix}"
    return f"{value:,.4g}" if size >= THOUSAND else f"{value:.3g}"


def nice_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return round values from at most `low` to at least `high`."""
    span = high - low or abs(high) or 1.0
    raw = span / wanted
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw - 1e-12)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten around the range, with 2 and 5 between them if they are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [10.0**power for power in range(first, last + 1)]
    if len(powers) > FEW_POWERS:
        return powers
    ticks = [factor * power for power in powers for factor in (1, 2, 5)]
    inside = [tick for tick in ticks if low <= tick <= high]
    below = [tick for tick in ticks if tick < low]
    above = [tick for tick in ticks if tick > high]
    return below[-1:] + inside + above[:1]


def level_ticks(xs: Sequence[float]) -> list[float]:
    """Return the loads that have a tick, each `step`-th if there are many."""
    levels = sorted(set(xs))
    step = math.ceil(len(levels) / MOST_X_TICKS)
    return levels[::step]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnAxis:
    """An axis from `low` at `start` to `high` at `end`, in units of the SVG."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value."""
        low, high, found = (
            math.log(v) if self.log else v for v in (self.low, self.high, max(value, self.low if self.log else value))
        )
        share = (found - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    def holds(self, value: float) -> bool:
        """Return whether a value is on the axis."""
        return self.low <= value <= self.high
