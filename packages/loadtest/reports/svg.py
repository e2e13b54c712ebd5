"""Chart renderer to SVG, for the page and as files. Colors are variables of `charts.css`, for the light and the dark scheme."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

from loadtest.reports.chart_model import Chart, HeatMap, IntervalChart, LimitLine, LineChart, Series
from loadtest.reports.svg_axes import DrawnAxis, level_ticks, log_ticks, nice_ticks, number
from loadtest.reports.svg_frame import BOTTOM, LEFT, RIGHT, TOP, WIDTH, axis_labels, closed, opened
from loadtest.reports.svg_rows import heat_map, interval_chart

HEIGHT: Final = 280
PLOT_LEFT: Final = LEFT + 12
PLOT_RIGHT: Final = WIDTH - RIGHT - 12
PLOT_BOTTOM: Final = HEIGHT - BOTTOM
TAG_ROOM: Final = 22
"""Distance below which tags overlap. The later one is not rendered, but its tooltip stays."""
COLOURS: Final = 6
"""Distinct colors. More lines use shades of one color, in order."""
NEAR_LIMIT: Final = 2.0
"""Maximum factor by which a limit extends an axis. A limit further away is stated below the chart."""
NEAR_LIMIT_LOG: Final = 10.0
CAP: Final = 3
"""Half the width of the ends of an error bar."""
TICK_ROOM: Final = 24
"""Distance below which ticks of the x axis overlap. The later one is not rendered."""
CHARACTER: Final = 5.8
"""Mean width of a character."""
CUT_TEXT_ROOM: Final = 60
TALL_ENOUGH: Final = 24

STYLE: Final = Path(__file__).with_name("charts.css")


def colour(index: int, count: int) -> str:
    """Return the color of a line: one of the distinct colors, or a shade if there are many lines."""
    if count <= COLOURS:
        return f"var(--c{index})"
    share = round(100 * index / (count - 1))
    return f"color-mix(in oklab, var(--ramp-end) {share}%, var(--ramp-start))"


def chart_svg(chart: Chart) -> str:
    """Return a chart as an `<svg>` element."""
    if isinstance(chart, HeatMap):
        return heat_map(chart)
    return interval_chart(chart) if isinstance(chart, IntervalChart) else line_chart(chart)


def legend_entries(chart: Chart) -> list[tuple[str, str, bool]]:
    """Return name, color and dashed flag of each line. Empty for a single line, which the title names."""
    if not isinstance(chart, LineChart) or len(chart.series) == 1:
        return []
    count = len(chart.series)
    return [(line.name, colour(index, count), line.is_dashed) for index, line in enumerate(chart.series)]


def far_limits(chart: Chart) -> list[str]:
    """Return the limits that are too far away to render."""
    if not isinstance(chart, LineChart):
        return []
    axes = _axes(chart)
    return [limit.text for limit in chart.limits if not axes[limit.axis].holds(limit.value)]


def line_chart(chart: LineChart) -> str:
    """Return a chart of lines as an `<svg>` element."""
    axes = _axes(chart)
    x_axis, y_axis = axes["x"], axes["y"]
    parts = [opened(chart.title, HEIGHT)]
    for cut in chart.cuts:
        left, right = (min(PLOT_RIGHT, max(PLOT_LEFT, x_axis.at(value))) for value in (cut.start, cut.end))
        if right > left:
            parts.append(
                f'<rect class="cut" x="{left}" y="{TOP}" width="{right - left:.1f}" height="{PLOT_BOTTOM - TOP}"/>'
            )
            if right - left > CUT_TEXT_ROOM:
                parts.append(
                    f'<text class="tag" x="{(left + right) / 2:.1f}" y="{TOP + 11}" text-anchor="middle">{escape(cut.text)}</text>'
                )
    parts += _grid(chart, x_axis, y_axis)
    parts += axis_labels(chart, x=(LEFT + WIDTH - RIGHT) / 2, below=HEIGHT - 10, y=(TOP + PLOT_BOTTOM) / 2)
    drawn_limits = [limit for limit in chart.limits if axes[limit.axis].holds(limit.value)]
    parts += [_limit_line(limit, axes[limit.axis].at(limit.value)) for limit in drawn_limits]
    tagged: list[tuple[float, float]] = []
    count = len(chart.series)
    for index, line in enumerate(chart.series):
        parts += _drawn(line, colour(index, count), axes, tagged, every=count <= COLOURS)
    parts += [_limit_text(limit, axes[limit.axis].at(limit.value)) for limit in drawn_limits]
    return closed(parts)


def _axes(chart: LineChart) -> Mapping[str, DrawnAxis]:
    marks = [mark for line in chart.series for mark in line.marks]
    xs = [mark.x for mark in marks]
    ys = [value for mark in marks for value in (mark.y, *(mark.spread or ()))]
    y_values = _with_limits(ys, [limit.value for limit in chart.limits if limit.axis == "y"], log=chart.log_y)
    y_ticks = _ticks(y_values, log=chart.log_y)
    if chart.x_range is not None:
        x_low, x_high = chart.x_range
    elif chart.log_x and chart.ticks_at_marks:
        x_low, x_high = min(xs), max(xs)
    else:
        x_values = _with_limits(xs, [limit.value for limit in chart.limits if limit.axis == "x"], log=chart.log_x)
        x_ticks = _ticks(x_values, log=chart.log_x)
        x_low, x_high = x_ticks[0], x_ticks[-1]
    return {
        "x": DrawnAxis(low=x_low, high=x_high, start=PLOT_LEFT, end=PLOT_RIGHT, log=chart.log_x),
        "y": DrawnAxis(low=y_ticks[0], high=y_ticks[-1], start=PLOT_BOTTOM, end=TOP, log=chart.log_y),
    }


def _ticks(values: Sequence[float], *, log: bool) -> list[float]:
    return log_ticks(min(values), max(values)) if log else nice_ticks(0.0, max(values) or 1.0)


def _with_limits(values: Sequence[float], limits: Sequence[float], *, log: bool) -> list[float]:
    """Return the values including limits near enough to render."""
    factor = NEAR_LIMIT_LOG if log else NEAR_LIMIT
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive) / factor if log else 0.0, max(positive) * factor
    return [*(positive if log else values), *(limit for limit in limits if low <= limit <= high)]


def _grid(chart: LineChart, x_axis: DrawnAxis, y_axis: DrawnAxis) -> list[str]:
    xs = [mark.x for line in chart.series for mark in line.marks]
    x_ticks = (
        level_ticks(xs) if chart.log_x and chart.ticks_at_marks else _ticks([x_axis.low, x_axis.high], log=x_axis.log)
    )
    parts: list[str] = []
    for tick in _ticks([y_axis.low, y_axis.high], log=y_axis.log):
        if y_axis.holds(tick):
            y = y_axis.at(tick)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{number(tick)}</text>')
    x_ticks = [tick for tick in x_ticks if x_axis.holds(tick)]
    last = x_axis.at(x_ticks[-1])
    free = -math.inf
    for tick in x_ticks:
        x = x_axis.at(tick)
        text = number(tick)
        room = max(TICK_ROOM, CHARACTER * len(text) + 8)
        if x >= free and (x == last or x <= last - room):
            free = x + room
            parts.append(f'<line class="axis" x1="{x}" x2="{x}" y1="{PLOT_BOTTOM}" y2="{PLOT_BOTTOM + 4}"/>')
            parts.append(f'<text class="tick" x="{x}" y="{PLOT_BOTTOM + 18}" text-anchor="middle">{text}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{PLOT_BOTTOM}" y2="{PLOT_BOTTOM}"/>')
    return parts


def _limit_line(limit: LimitLine, place: float) -> str:
    """Return a limit as a dashed line across the chart."""
    if limit.axis == "y":
        return f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place}" y2="{place}"/>'
    return f'<line class="limit" x1="{place}" x2="{place}" y1="{TOP}" y2="{PLOT_BOTTOM}"/>'


def _limit_text(limit: LimitLine, place: float) -> str:
    """Return the text of a limit, next to its line and inside the chart."""
    if limit.axis == "y":
        x, y, anchor = LEFT + 6, place + 12 if place < TOP + TALL_ENOUGH / 2 else place - 4, "start"
    else:
        is_right = place > (PLOT_LEFT + PLOT_RIGHT) / 2
        x, y, anchor = place - 4 if is_right else place + 4, PLOT_BOTTOM - 6, "end" if is_right else "start"
    return f'<text class="limit-text" x="{x}" y="{y}" text-anchor="{anchor}">{escape(limit.text)}</text>'


def _drawn(
    line: Series, stroke: str, axes: Mapping[str, DrawnAxis], tagged: list[tuple[float, float]], *, every: bool
) -> list[str]:
    """Return one line and the marks on it. With `every`, each mark has its tag, otherwise only the last one."""
    places = [(axes["x"].at(mark.x), axes["y"].at(mark.y)) for mark in line.marks]
    parts: list[str] = []
    if line.look != "dots" and len(places) > 1:
        path = " ".join(f"{x},{y}" for x, y in places)
        dashed = " dashed" if line.is_dashed else ""
        parts.append(f'<polyline class="line{dashed}" points="{path}" style="stroke:{stroke}"/>')
    if line.look == "plain" and len(places) > 1:
        return parts
    radius = 4 if line.look == "marked" else 2.5
    for index, (mark, (x, y)) in enumerate(zip(line.marks, places, strict=True)):
        if mark.spread is not None:
            top, bottom = (axes["y"].at(value) for value in reversed(mark.spread))
            parts.append(
                f'<path class="error" d="M{x},{top}V{bottom}M{x - CAP},{top}h{2 * CAP}M{x - CAP},{bottom}h{2 * CAP}" style="stroke:{stroke}"/>'
            )
        fill = stroke if mark.valid else "var(--surface)"
        parts.append(
            f'<circle class="mark" cx="{x}" cy="{y}" r="{radius}" style="stroke:{stroke};fill:{fill}"><title>{escape(mark.label)}</title></circle>'
        )
        if line.tags and (every or index == len(places) - 1) and _is_free(x, y, tagged):
            tagged.append((x, y))
            parts.append(
                f'<text class="tag" x="{x}" y="{y - 8}" text-anchor="middle">{escape(line.tags[index])}</text>'
            )
    return parts


def _is_free(x: float, y: float, tagged: Sequence[tuple[float, float]]) -> bool:
    return all(abs(x - other_x) > TAG_ROOM or abs(y - other_y) > TAG_ROOM / 2 for other_x, other_y in tagged)


TITLE_ROOM: Final = 26
ROW: Final = 16
LEGEND_END: Final = 6
SWATCH: Final = 26


def chart_file(chart: Chart, *, suffix: str = "") -> str:
    """Return a chart as a separate file, with its title, legend and colors. `suffix` follows the title."""
    drawing = chart_svg(chart)
    height = int(drawing.partition('viewBox="0 0 ')[2].partition('"')[0].split()[1])
    rows = _legend_rows(chart)
    total = TITLE_ROOM + height + ROW * len(rows) + (LEGEND_END if rows else 0)
    title = escape(f"{chart.title} ({suffix})" if suffix else chart.title)
    inner = drawing.partition(">")[2].removesuffix("</svg>")
    legend = "".join(
        part for number_, row in enumerate(rows) for part in _legend_row(row, TITLE_ROOM + height + ROW * number_ + 8)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" width="{2 * WIDTH}" height="{2 * total}" role="img"'
        f' font-family="system-ui, sans-serif"><title>{title}</title><style>{escape(STYLE.read_text(encoding="utf-8"), quote=False)}</style>'
        f'<rect class="page" width="{WIDTH}" height="{total}"/><text class="title" x="{WIDTH / 2}" y="18" text-anchor="middle">{title}</text>'
        f'<g transform="translate(0 {TITLE_ROOM})">{inner}</g>{legend}</svg>\n'
    )


def _legend_rows(chart: Chart) -> list[list[tuple[float, str, str, bool]]]:
    """Return the legend in rows that fit, each entry with its position."""
    rows: list[list[tuple[float, str, str, bool]]] = []
    x = float(WIDTH)
    for name, stroke, dashed in legend_entries(chart):
        width = SWATCH + CHARACTER * len(name) + 12
        if x + width > WIDTH - RIGHT:
            rows.append([])
            x = float(RIGHT)
        rows[-1].append((x, name, stroke, dashed))
        x += width
    return rows


def _legend_row(row: Sequence[tuple[float, str, str, bool]], y: float) -> list[str]:
    return [
        f'<line class="line{" dashed" if dashed else ""}" x1="{x}" x2="{x + SWATCH - 8}" y1="{y}" y2="{y}" style="stroke:{stroke}"/>'
        f'<text class="tick" x="{x + SWATCH - 2:.1f}" y="{y + 4}">{escape(name)}</text>'
        for x, name, stroke, dashed in row
    ]
