"""Renderer of charts with rows: heat maps, and values with their intervals."""

import math
from html import escape
from typing import Final

from loadtest.reports.chart_model import NOTHING, HeatMap, IntervalChart
from loadtest.reports.svg_axes import DrawnAxis, nice_ticks, number
from loadtest.reports.svg_frame import RIGHT, WIDTH, axis_labels, closed, opened

CELL_HEIGHT: Final = 24
LEAST_HEIGHT: Final = 96
"""Space for the name of the upright axis."""
WIDE_COLUMNS: Final = 8
"""Columns above which a heat map uses smaller numbers and scrolls on a narrow screen."""
STRONG_SHARE: Final = 0.6
"""Color share above which a cell's text has the color of the page."""
ROW_HEIGHT: Final = 32
WIDEST_PERCENT: Final = 200.0
"""End of intervals in the chart."""


def heat_map(chart: HeatMap) -> str:
    """Return a heat map as an `<svg>` element. Darker cells have larger values, and every cell shows its value."""
    left, top = 68, 8
    cell = (WIDTH - left - 6) / len(chart.columns)
    high = max(CELL_HEIGHT, LEAST_HEIGHT // len(chart.rows))
    bottom = top + high * len(chart.rows)
    highest = max((c.value for c in chart.cells if c.value is not None), default=1.0) or 1.0
    small = " small" if len(chart.columns) > WIDE_COLUMNS else ""
    parts = [opened(chart.title, bottom + 46)]
    for found in chart.cells:
        x, y = left + found.column * cell, top + (len(chart.rows) - 1 - found.row) * high
        share = 0.0 if found.value is None else math.sqrt(found.value / highest)
        strong = " strong" if share > STRONG_SHARE else ""
        flag = f" {found.flag}" if found.flag else ""
        parts.append(
            f"<g><title>{escape(found.label)}</title>"
            f'<rect class="cell{flag}" x="{x + 1:.1f}" y="{y + 1}" width="{cell - 2:.1f}" height="{high - 2}" rx="3"'
            f' style="fill-opacity:{0.06 + 0.94 * share:.2f}"/>'
            f'<text class="cell-text{strong}{small}" x="{x + cell / 2:.1f}" y="{y + high / 2 + 4}" text-anchor="middle">'
            f"{NOTHING if found.value is None else number(found.value)}</text></g>"
        )
    for index, name in enumerate(chart.rows):
        y = top + (len(chart.rows) - 1 - index) * high + high / 2 + 4
        parts.append(f'<text class="tick{small}" x="{left - 6}" y="{y}" text-anchor="end">{escape(name)}</text>')
    for index, name in enumerate(chart.columns):
        parts.append(
            f'<text class="tick{small}" x="{left + (index + 0.5) * cell:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(name)}</text>'
        )
    parts += axis_labels(chart, x=(left + WIDTH) / 2, below=bottom + 36, y=(top + bottom) / 2, left=12)
    return closed(parts)


def interval_chart(chart: IntervalChart) -> str:
    """Return values with their intervals as an `<svg>` element, each below its name, around a line at zero."""
    top, left, right = 6, 16, WIDTH - RIGHT - 4
    bottom = top + ROW_HEIGHT * len(chart.rows)
    bounds = [0.0, chart.threshold, -chart.threshold]
    for row in chart.rows:
        bounds += [min(WIDEST_PERCENT, max(-100.0, value)) for value in (row.low, row.value, row.high)]
    ticks = nice_ticks(min(bounds), max(bounds))
    axis = DrawnAxis(low=ticks[0], high=ticks[-1], start=left, end=right)
    parts = [opened(chart.title, bottom + 46)]
    for tick in ticks:
        x = axis.at(tick)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{bottom + 16}" text-anchor="middle">{number(tick)}</text>')
    zero = axis.at(0.0)
    parts.append(f'<line class="axis" x1="{zero}" x2="{zero}" y1="{top}" y2="{bottom}"/>')
    for limit in (-chart.threshold, chart.threshold):
        x = axis.at(limit)
        parts.append(f'<line class="limit" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>')
    for index, row in enumerate(chart.rows):
        y = top + ROW_HEIGHT * index
        low, value, high = (axis.at(min(axis.high, max(axis.low, found))) for found in (row.low, row.value, row.high))
        said = f"{row.name}: {row.value:+.1f} %, {row.verdict}"
        parts.append(
            f'<g class="verdict {escape(row.verdict)}"><title>{escape(said)}</title><text class="tick" x="{left}" y="{y + 12}">{escape(said)}</text>'
            f'<path class="error" d="M{low},{y + 22}H{high}"/><circle class="mark" cx="{value}" cy="{y + 22}" r="4"/></g>'
        )
    parts += axis_labels(chart, x=(left + right) / 2, below=bottom + 36, y=0)
    return closed(parts)
