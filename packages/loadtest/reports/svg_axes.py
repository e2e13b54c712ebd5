"""Axes and texts of rendered charts: round values, positions of values, and labels that do not overlap."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final, Literal

FEW_POWERS: Final = 3
"""Number of powers of ten above which an axis has no ticks between them."""
SIZES: Final = {"tick": 12.5, "label": 12.5, "limit-text": 12.5, "tag": 11.0}
"""Font sizes by class on a narrow screen, as in `charts.css`. On a wide one texts are smaller."""
GLYPH: Final = 0.62
"""Mean width of a character, as a share of the font size."""
GAP: Final = 1.0
"""Minimum distance between two texts."""


def number(value: float) -> str:
    """Return a number in short form for an axis."""
    size = abs(value)
    for limit, scale, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= limit:
            return f"{value / scale:.3g}{suffix}"
    return f"{value:,.{4 if size >= 1e3 else 3}g}"  # noqa: PLR2004 - 1,234 has four digits


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
    factors = (1,) if last - first >= FEW_POWERS else (1, 2, 5)
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    below = [tick for tick in ticks if tick < low]
    above = [tick for tick in ticks if tick > high]
    return [*below[-1:], *(tick for tick in ticks if low <= tick <= high), *above[:1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnAxis:
    """An axis from `low` at `start` to `high` at `end`, in units of the SVG."""

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[float]
    log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value, at most at the ends of the axis."""
        scale = math.log if self.log else float
        low, high = scale(self.low), scale(self.high)
        found = scale(min(self.high, max(self.low, value)))
        share = (found - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    def holds(self, value: float) -> bool:
        """Return whether a value is on the axis."""
        return self.low <= value <= self.high


Place = tuple[float, float, Literal["start", "middle", "end"]]
"""Position of a text: x of its anchor and y of its base line."""
Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


def width_of(text: str, css: str) -> float:
    """Return the width of a text of a class, at most."""
    return GLYPH * SIZES[css] * len(text)


@dataclass(frozen=True, slots=True)
class Labels:
    """Texts of one chart. A text is placed inside the chart and overlaps no other one, even on a narrow screen."""

    width: float
    height: float
    texts: list[Box] = field(default_factory=list[Box])
    marks: list[Box] = field(default_factory=list[Box])

    def avoid(self, x: float, y: float, radius: float) -> None:
        """Keep texts away from a mark."""
        self.marks.append((x - radius, y - radius, x + radius, y + radius))

    def place(self, css: str, text: str, places: Sequence[Place], *, over_marks: bool = False) -> str:
        """Return a text at the first free place, or an empty string. With `over_marks`, it may cover marks if no place is free."""
        for taken in (self.texts + self.marks, self.texts)[: 1 + over_marks]:
            for x, y, anchor in places:
                left = x - width_of(text, css) * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
                box = (left, y - 0.8 * SIZES[css], left + width_of(text, css), y + 0.2 * SIZES[css])
                if self._is_inside(box) and not any(_overlap(box, other) for other in taken):
                    self.texts.append(box)
                    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
        return ""

    def _is_inside(self, box: Box) -> bool:
        return box[0] >= 0 and box[1] >= 0 and box[2] <= self.width and box[3] <= self.height


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] + GAP and other[0] < one[2] + GAP and one[1] < other[3] + GAP and other[1] < one[3] + GAP
