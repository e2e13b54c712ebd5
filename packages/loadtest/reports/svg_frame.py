"""Frame of all rendered charts: the element and the axis names."""

from collections.abc import Sequence
from html import escape
from typing import Final

from loadtest.reports.chart_model import Chart

WIDTH: Final = 440
LEFT: Final = 64
RIGHT: Final = 12
TOP: Final = 14
BOTTOM: Final = 46


def opened(title: str, height: int) -> str:
    """Return the start of the element."""
    name = escape(title, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}" xmlns="http://www.w3.org/2000/svg">'


def closed(parts: Sequence[str]) -> str:
    """Return the whole element."""
    return "".join([*parts, "</svg>"])


def axis_labels(chart: Chart, *, x: float, below: float, y: float, left: int = 14) -> list[str]:
    """Return the axis names: one below the chart at `x`, one left of it at `y`, upright."""
    turned = f'text-anchor="middle" transform="rotate(-90 {left} {y})"'
    return [
        f'<text class="label" x="{x}" y="{below}" text-anchor="middle">{escape(chart.x_label)}</text>',
        f'<text class="label" x="{left}" y="{y}" {turned}>{escape(chart.y_label)}</text>' if chart.y_label else "",
    ]
