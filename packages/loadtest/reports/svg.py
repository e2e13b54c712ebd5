"""Chart renderer to SVG. Colors are variables of `charts.css`, for the light and the dark scheme."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from loadtest.reports.chart_model import ChartMark, LimitLine, LineChart, Series
from loadtest.reports.svg_axes import DrawnAxis, Labels, Place, log_ticks, nice_ticks, number

WIDTH: Final = 440
HEIGHT: Final = 290
LEFT: Final = 60
RIGHT: Final = 12
TOP: Final = 30
BOTTOM: Final = 46
PLOT_LEFT: Final = LEFT + 12
PLOT_RIGHT: Final = WIDTH - RIGHT - 12
PLOT_BOTTOM: Final = HEIGHT - BOTTOM
COLOURS: Final = 6
"""Distinct colors. More lines use shades of one color, in order."""
NEAR: Final = 4.0
"""Maximum factor by which limits, forecasts and invalid points extend an axis. More distant values are stated below the chart."""
NEAR_LOG: Final = 10.0
RADIUS: Final = 4.0
"""Radius of a mark, and of the area with its tooltip if only the line is visible."""
AROUND: Final[tuple[Place, ...]] = ((0, -8, "middle"), (0, 15, "middle"), (7, 4, "start"), (-7, 4, "end"))
"""Places of a tag around its mark."""
CAP: Final = 3
"""Half the width of the ends of an error bar."""


def legend_entries(chart: LineChart) -> list[tuple[str, str, bool]]:
    """Return name, color and dashed flag of each line. Empty for a single line, which the title names."""
    if len(chart.series) == 1:
        return []
    return [(line.name, stroke, line.is_dashed) for line, stroke in zip(chart.series, _strokes(chart), strict=True)]


def off_scale(chart: LineChart) -> list[str]:
    """Return the limits, forecasts and invalid points that are too far away to render; of a line without marks the furthest."""
    x_axis, y_axis = _axes(chart)
    axes = {"x": x_axis, "y": y_axis}
    texts = [limit.text for limit in chart.limits if not axes[limit.axis].holds(limit.value)]
    for line in chart.series:
        far = [mark.label for mark in line.marks if not (x_axis.holds(mark.x) and y_axis.holds(mark.y))]
        texts += far[-1:] if line.look == "plain" else far
    return texts


def _strokes(chart: LineChart) -> list[str]:
    """Return the color of each line: one of the distinct colors, or a shade for many lines."""
    names = [line.name for line in chart.series if not line.like]
    shades = [round(100 * index / max(1, len(names) - 1)) for index in range(len(names))]
    found = [f"color-mix(in oklab, var(--ramp-end) {shade}%, var(--ramp-start))" for shade in shades]
    if len(names) <= COLOURS:
        found = [f"var(--c{index})" for index in range(len(names))]
    return [found[names.index(line.like or line.name)] for line in chart.series]


def _titled(label: str) -> str:
    return f"<title>{escape(label)}</title>"


def chart_svg(chart: LineChart) -> str:
    """Return a chart as an `<svg>` element. Texts come last, because they avoid each other and the marks."""
    x_axis, y_axis = _axes(chart)
    labels = Labels(WIDTH, HEIGHT)
    name = escape(chart.title, quote=True)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}" xmlns="http://www.w3.org/2000/svg">']
    parts += [*_grid(x_axis, y_axis, labels), labels.place("label", chart.y_label, [(4, 14, "start")])]
    parts.append(labels.place("label", chart.x_label, [((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "middle")]))
    tags: list[tuple[float, float, str]] = []
    for line, stroke in zip(chart.series, _strokes(chart), strict=True):
        held = [mark for mark in line.marks if x_axis.holds(mark.x) and y_axis.holds(mark.y)]
        places = [(x_axis.at(mark.x), y_axis.at(mark.y)) for mark in held]
        parts.append(f'<g class="{line.look}" style="color:{stroke}">')
        if len(places) > 1:
            path = " ".join(f"{x},{y}" for x, y in places)
            parts.append(f'<polyline class="line{" dashed" if line.is_dashed else ""}" points="{path}"/>')
        for mark, (x, y) in zip(held, places, strict=True):
            labels.avoid(x, y, RADIUS)
            parts += _mark(mark, line, x, y, y_axis)
            tags += [(x, y, mark.tag)] if mark.tag else []
        parts.append("</g>")
    for limit in chart.limits:
        axis = x_axis if limit.axis == "x" else y_axis
        parts += _limit(limit, axis.at(limit.value), labels) if axis.holds(limit.value) else ()
    for x, y, tag in tags:
        parts.append(labels.place("tag", tag, [(x + right, y + down, anchor) for right, down, anchor in AROUND]))
    return "".join([*parts, "</svg>"])


def _axes(chart: LineChart) -> tuple[DrawnAxis, DrawnAxis]:
    """Return the x and the y axis. Valid measured points determine their scales."""
    marks = [mark for line in chart.series for mark in line.marks]
    sure = [mark for line in chart.series if not line.is_dashed for mark in line.marks if mark.valid] or marks
    limits = {axis: [limit.value for limit in chart.limits if limit.axis == axis] for axis in "xy"}
    x_log = chart.x_scale != "linear"
    if chart.x_scale == "levels":
        x_ticks = sorted({mark.x for mark in marks})
    else:
        x_ticks = _ticks([mark.x for mark in sure], [*limits["x"], *(mark.x for mark in marks)], log=x_log, zoom=True)
    y_sure = [y for mark in sure for y in (mark.y, *(mark.spread or ()))]
    y_all = [y for mark in marks for y in (mark.y, *(mark.spread or ()))]
    y_ticks = _ticks(y_sure, [*limits["y"], *y_all], log=chart.log_y)
    return (
        DrawnAxis(low=x_ticks[0], high=x_ticks[-1], start=PLOT_LEFT, end=PLOT_RIGHT, ticks=x_ticks, log=x_log),
        DrawnAxis(low=y_ticks[0], high=y_ticks[-1], start=PLOT_BOTTOM, end=TOP, ticks=y_ticks, log=chart.log_y),
    )


def _ticks(sure: Sequence[float], more: Sequence[float], *, log: bool, zoom: bool = False) -> list[float]:
    """Return ticks around the sure values, and around those further ones that are near them. With `zoom`, they may start above zero."""
    positive = [value for value in sure if value > 0] or [1.0]
    low, high = (min(positive) / NEAR_LOG, max(positive) * NEAR_LOG) if log else (0.0, max(positive) * NEAR)
    found = [*(positive if log else sure), *(value for value in more if low <= value <= high)]
    if log:
        return log_ticks(min(found), max(found))
    return nice_ticks(min(found) if zoom and min(found) > max(found) / 2 else 0.0, max(found) or 1.0)


def _grid(x_axis: DrawnAxis, y_axis: DrawnAxis, labels: Labels) -> Iterator[str]:
    """Return the grid and the ticks that fit, the ends of the x axis first."""
    for tick in y_axis.ticks:
        y = y_axis.at(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield labels.place("tick", number(tick), [(LEFT - 6, y + 4, "end")])
    ticks = [tick for tick in x_axis.ticks if x_axis.holds(tick)]
    for tick in dict.fromkeys((*ticks[-1:], *ticks)):
        x = x_axis.at(tick)
        text = labels.place("tick", number(tick), [(x, PLOT_BOTTOM + 17, "middle")])
        yield f'<line class="axis" x1="{x}" x2="{x}" y1="{PLOT_BOTTOM}" y2="{PLOT_BOTTOM + 4}"/>{text}' if text else ""
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{PLOT_BOTTOM}" y2="{PLOT_BOTTOM}"/>'


def _limit(limit: LimitLine, at: float, labels: Labels) -> tuple[str, str]:
    """Return a limit as a dashed line across the chart, and its text next to the line, at a place without other text."""
    places: list[Place] = []
    ends = f'x1="{at}" x2="{at}" y1="{TOP}" y2="{PLOT_BOTTOM}"'
    if limit.axis == "y":
        ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"'
        for y in (at - 4, at + 13):
            places.extend(((LEFT + 6, y, "start"), (PLOT_RIGHT, y, "end"), (WIDTH / 2, y, "middle")))
    else:
        for y in range(PLOT_BOTTOM - 6, TOP + 10, -15):
            places.extend(((at - 4, y, "end"), (at + 4, y, "start")))
    text = labels.place("limit-text", limit.text, places, over_marks=True)
    return f'<line class="limit" {ends}>{_titled(limit.text)}</line>', text


def _mark(mark: ChartMark, line: Series, x: float, y: float, y_axis: DrawnAxis) -> Iterator[str]:
    """Return a mark with its error bar and its tooltip. A mark of a plain line is invisible, but has its tooltip."""
    if mark.spread is not None:
        low, high = mark.spread
        top, bottom = y_axis.at(high), y_axis.at(low)
        bar = f"M{x},{top}V{bottom}M{x - CAP:.1f},{top}h{2 * CAP}M{x - CAP:.1f},{bottom}h{2 * CAP}"
        yield f'<path class="error{" dashed" if line.is_dashed else ""}" d="{bar}"/>'
    css = "" if line.look == "plain" else ' class="mark"' if mark.valid else ' class="mark hollow"'
    yield f'<circle{css} cx="{x}" cy="{y}" r="{RADIUS:g}">{_titled(mark.label)}</circle>'
