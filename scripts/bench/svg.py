"""Draw charts as inline SVG. Colours are the page's variables, so that one chart fits the light and the dark scheme."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from scripts.bench.charts import NOTHING, HeatMap, LineChart, Series

WIDTH: Final = 440
HEIGHT: Final = 280
LEFT: Final = 64
RIGHT: Final = 12
TOP: Final = 14
BOTTOM: Final = 46
TAG_ROOM: Final = 22
"""Tags closer than this would overlap: the later one is not drawn, and its tooltip stays."""
COLOURS: Final = 6
"""Distinct colours of the page. More lines are shades of one colour, in their order."""
MOST_X_TICKS: Final = 8


def number(value: float) -> str:
    """Return a number in short form for an axis."""
    size = abs(value)
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            scale = 1e3 if suffix == "k" else limit
            return f"{value / scale:.3g}{suffix}"
    return f"{value:,.4g}" if size >= 1000 else f"{value:.3g}"  # noqa: PLR2004 - a drawing's own threshold


def nice_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return round values from at most `low` to at least `high`."""
    span = high - low or abs(high) or 1.0
    raw = span / wanted
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw - 1e-12)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten around the range, with 2 and 5 between them if there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [10.0**power for power in range(first, last + 1)]
    if len(powers) > 3:  # noqa: PLR2004 - a drawing's own threshold
        return powers
    ticks = [factor * power for power in powers for factor in (1, 2, 5)]
    inside = [tick for tick in ticks if low <= tick <= high]
    below = [tick for tick in ticks if tick < low]
    above = [tick for tick in ticks if tick > high]
    return below[-1:] + inside + above[:1]


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        low, high, found = (
            math.log(v) if self.log else v for v in (self.low, self.high, max(value, self.low if self.log else value))
        )
        share = (found - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def colour(index: int, count: int) -> str:
    """Return the colour of a line: one of the page's colours, or a shade if there are many lines."""
    if count <= COLOURS:
        return f"var(--c{index})"
    share = round(100 * index / (count - 1))
    return f"color-mix(in oklab, var(--ramp-end) {share}%, var(--ramp-start))"


def line_chart(chart: LineChart) -> str:
    """Return a chart as an `<svg>` element."""
    marks = [mark for line in chart.series for mark in line.marks]
    xs, ys = [mark.x for mark in marks], [mark.y for mark in marks]
    y_ticks = log_ticks(min(ys), max(ys)) if chart.log_y else nice_ticks(0.0, max(ys) or 1.0)
    x_ticks = _levels(xs) if chart.log_x else nice_ticks(0.0, max(xs) or 1.0)
    x_low, x_high = (min(xs), max(xs)) if chart.log_x else (x_ticks[0], x_ticks[-1])
    bottom = HEIGHT - BOTTOM
    x_axis = _Axis(x_low, x_high, LEFT + 12, WIDTH - RIGHT - 12, chart.log_x)
    y_axis = _Axis(y_ticks[0], y_ticks[-1], bottom, TOP, chart.log_y)
    parts = [_opened(chart, HEIGHT)]
    for tick in y_ticks:
        y = y_axis.at(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{number(tick)}</text>')
    for tick in x_ticks:
        x = x_axis.at(tick)
        parts.append(f'<line class="axis" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{bottom + 18}" text-anchor="middle">{number(tick)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    parts += _labels(chart, x=(LEFT + WIDTH - RIGHT) / 2, below=HEIGHT - 10, y=(TOP + bottom) / 2, left=14)
    tagged: list[tuple[float, float]] = []
    for index, line in enumerate(chart.series):
        parts += _drawn(
            line, colour(index, len(chart.series)), (x_axis, y_axis), tagged, every=len(chart.series) <= COLOURS
        )
    return "".join([*parts, "</svg>"])


def _opened(chart: LineChart | HeatMap, height: int) -> str:
    title = escape(chart.title, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}" xmlns="http://www.w3.org/2000/svg">'


def _labels(chart: LineChart | HeatMap, *, x: float, below: float, y: float, left: int) -> list[str]:
    """Return the names of the axes: one below the chart at `x`, one left of it at `y`, upright."""
    turned = f'text-anchor="middle" transform="rotate(-90 {left} {y})"'
    return [
        f'<text class="label" x="{x}" y="{below}" text-anchor="middle">{escape(chart.x_label)}</text>',
        f'<text class="label" x="{left}" y="{y}" {turned}>{escape(chart.y_label)}</text>',
    ]


def _levels(xs: Sequence[float]) -> list[float]:
    levels = sorted(set(xs))
    step = math.ceil(len(levels) / MOST_X_TICKS)
    return levels[::step]


def _drawn(
    line: Series, stroke: str, axes: tuple[_Axis, _Axis], tagged: list[tuple[float, float]], *, every: bool
) -> list[str]:
    """Return one line with its marks. `every` mark has its tag, or only the last one in a chart of many lines."""
    x_axis, y_axis = axes
    places = [(x_axis.at(mark.x), y_axis.at(mark.y)) for mark in line.marks]
    parts: list[str] = []
    if len(places) > 1:
        path = " ".join(f"{x},{y}" for x, y in places)
        parts.append(f'<polyline class="line" points="{path}" style="stroke:{stroke}"/>')
    for index, (mark, (x, y)) in enumerate(zip(line.marks, places, strict=True)):
        fill = stroke if mark.valid else "var(--surface)"
        parts.append(
            f'<circle class="mark" cx="{x}" cy="{y}" r="4" style="stroke:{stroke};fill:{fill}"><title>{escape(mark.label)}</title></circle>'
        )
        wanted = line.tagged and (every or index == len(places) - 1)
        if wanted and all(
            abs(x - other_x) > TAG_ROOM or abs(y - other_y) > TAG_ROOM / 2 for other_x, other_y in tagged
        ):
            tagged.append((x, y))
            parts.append(
                f'<text class="tag" x="{x}" y="{y - 8}" text-anchor="middle">{escape(line.tags[index])}</text>'
            )
    return parts


def legend(chart: LineChart) -> str:
    """Return the names of the lines as an HTML list, which can wrap; empty for a single line."""
    if len(chart.series) < 2:  # noqa: PLR2004 - the title names a single line
        return ""
    items = "".join(
        f'<li><i style="background:{colour(index, len(chart.series))}"></i>{escape(line.name)}</li>'
        for index, line in enumerate(chart.series)
    )
    return f'<ul class="legend">{items}</ul>'


CELL_HEIGHT: Final = 24
WIDE_COLUMNS: Final = 8
"""A heat map of more columns needs smaller figures, and scrolls on a narrow screen."""


def heat_map(chart: HeatMap) -> str:
    """Return a heat map as an `<svg>` element. Darker cells have larger values, and every cell shows its value."""
    left, top = 68, 8
    cell = (WIDTH - left - 6) / len(chart.columns)
    height = top + CELL_HEIGHT * len(chart.rows) + 46
    highest = max((c.value for c in chart.cells if c.value is not None), default=1.0) or 1.0
    small = " small" if len(chart.columns) > WIDE_COLUMNS else ""
    parts = [_opened(chart, height)]
    for found in chart.cells:
        x, y = left + found.column * cell, top + (len(chart.rows) - 1 - found.row) * CELL_HEIGHT
        share = 0.0 if found.value is None else math.sqrt(found.value / highest)
        strong = " strong" if share > 0.6 else ""  # noqa: PLR2004 - a drawing's own threshold
        flag = f" {found.flag}" if found.flag else ""
        parts.append(
            f"<g><title>{escape(found.label)}</title>"
            f'<rect class="cell{flag}" x="{x + 1:.1f}" y="{y + 1}" width="{cell - 2:.1f}" height="{CELL_HEIGHT - 2}" rx="3"'
            f' style="fill-opacity:{0.06 + 0.94 * share:.2f}"/>'
            f'<text class="cell-text{strong}{small}" x="{x + cell / 2:.1f}" y="{y + CELL_HEIGHT / 2 + 4}" text-anchor="middle">'
            f"{NOTHING if found.value is None else number(found.value)}</text></g>"
        )
    for index, name in enumerate(chart.rows):
        y = top + (len(chart.rows) - 1 - index) * CELL_HEIGHT + CELL_HEIGHT / 2 + 4
        parts.append(f'<text class="tick{small}" x="{left - 6}" y="{y}" text-anchor="end">{escape(name)}</text>')
    bottom = top + CELL_HEIGHT * len(chart.rows)
    for index, name in enumerate(chart.columns):
        parts.append(
            f'<text class="tick{small}" x="{left + (index + 0.5) * cell:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(name)}</text>'
        )
    parts += _labels(chart, x=(left + WIDTH) / 2, below=bottom + 36, y=(top + bottom) / 2, left=12)
    return "".join([*parts, "</svg>"])
