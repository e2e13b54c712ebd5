"""Chart renderer to SVG, for the page and as files. Colors are variables of `charts.css`, for the light and the dark scheme."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain
from pathlib import Path
from typing import Final

from loadtest.reports.chart_model import Chart, IntervalChart, LimitLine, LineChart, Mark, Series, Span
from loadtest.reports.svg_axes import Anchor, DrawnAxis, Labels, Place, log_ticks, nice_ticks, number, width_of

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
NEAR: Final = 2.0
"""Maximum factor by which limits, forecasts and invalid points extend an axis. What is further away is stated below the chart."""
NEAR_LOG: Final = 10.0
RADII: Final = {"marked": 4.0, "plain": 4.0, "dots": 2.5}
"""Radius of a mark, and of the area with its tooltip if only the line is visible."""
CAP: Final = 3
"""Half the width of the ends of an error bar."""
ROW_HEIGHT: Final = 32
WIDEST_PERCENT: Final = 200.0
"""End of intervals in a chart of changes."""
TITLE_ROOM: Final = 26
LEGEND_ROW: Final = 16
SWATCH: Final = 26

STYLE: Final = Path(__file__).with_name("charts.css")


def chart_svg(chart: Chart) -> str:
    """Return a chart as an `<svg>` element."""
    return _interval_chart(chart) if isinstance(chart, IntervalChart) else _line_chart(chart)


def legend_entries(chart: Chart) -> list[tuple[str, str, bool]]:
    """Return name, color and dashed flag of each line. Empty for a single line, which the title names."""
    if not isinstance(chart, LineChart) or len(chart.series) == 1:
        return []
    return [(line.name, stroke, line.is_dashed) for line, stroke in zip(chart.series, _strokes(chart), strict=True)]


def off_scale(chart: Chart) -> list[str]:
    """Return the limits, forecasts and invalid points that are too far away to render; of a line without marks the furthest."""
    if not isinstance(chart, LineChart):
        return []
    x_axis, y_axis = _axes(chart)
    texts = [limit.text for limit in chart.limits if not {"x": x_axis, "y": y_axis}[limit.axis].holds(limit.value)]
    texts += [span.label for span in chart.spans if span.start > x_axis.high or span.end < x_axis.low]
    for line in chart.series:
        far = [mark.label for mark in line.marks if not _is_held(mark, x_axis, y_axis)]
        texts += far[-1:] if line.look == "plain" else far
    return texts


def _strokes(chart: LineChart) -> list[str]:
    """Return the color of each line: one of the distinct colors, or a shade if there are many lines."""
    names = [line.name for line in chart.series if not line.like]
    if len(names) <= COLOURS:
        found = [f"var(--c{index})" for index in range(len(names))]
    else:
        shares = (round(100 * index / (len(names) - 1)) for index in range(len(names)))
        found = [f"color-mix(in oklab, var(--ramp-end) {share}%, var(--ramp-start))" for share in shares]
    return [found[names.index(line.like or line.name)] for line in chart.series]


def _opened(title: str, height: int) -> str:
    name = escape(title, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}" xmlns="http://www.w3.org/2000/svg">'


def _titled(label: str) -> str:
    return f"<title>{escape(label)}</title>"


def _line_chart(chart: LineChart) -> str:
    """Return a chart of lines. Texts come last, because they avoid each other and the marks."""
    x_axis, y_axis = _axes(chart)
    labels = Labels(WIDTH, HEIGHT)
    parts = [_opened(chart.title, HEIGHT), *(_span(span, x_axis) for span in chart.spans)]
    parts += [*_grid(x_axis, y_axis, labels), labels.place("label", chart.y_label, [(4, 14, "start")])]
    parts.append(labels.place("label", chart.x_label, [((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "middle")]))
    limits = [limit for limit in chart.limits if {"x": x_axis, "y": y_axis}[limit.axis].holds(limit.value)]
    parts += [_limit_line(limit, x_axis, y_axis) for limit in limits]
    tags: list[tuple[float, float, str]] = []
    for line, stroke in zip(chart.series, _strokes(chart), strict=True):
        held = [mark for mark in line.marks if _is_held(mark, x_axis, y_axis)]
        places = [(x_axis.at(mark.x), y_axis.at(mark.y)) for mark in held]
        parts.append(f'<g style="color:{stroke}">')
        if line.look != "dots" and len(places) > 1:
            path = " ".join(f"{x},{y}" for x, y in places)
            parts.append(f'<polyline class="line{" dashed" if line.is_dashed else ""}" points="{path}"/>')
        for mark, (x, y) in zip(held, places, strict=True):
            labels.avoid(x, y, RADII[line.look])
            parts += _mark(mark, line, x, y, y_axis)
            tags += [(x, y, mark.tag)] if mark.tag else []
        parts.append("</g>")
    parts += [_limit_text(limit, x_axis, y_axis, labels) for limit in limits]
    for x, y, tag in tags:
        around: list[Place] = [
            (x, y - 8, "middle"),
            (x, y + 15, "middle"),
            (x + 7, y + 4, "start"),
            (x - 7, y + 4, "end"),
        ]
        parts.append(labels.place("tag", tag, around))
    for span in chart.spans:
        left, right = x_axis.at(span.start), x_axis.at(span.end)
        if right - left > width_of(span.text, "tag"):
            parts.append(labels.place("tag", span.text, [((left + right) / 2, TOP + 11, "middle")]))
    return "".join([*parts, "</svg>"])


def _axes(chart: LineChart) -> tuple[DrawnAxis, DrawnAxis]:
    """Return the x and the y axis. Valid measured points determine their scales."""
    marks = [mark for line in chart.series for mark in line.marks]
    sure = [mark for line in chart.series if not line.is_dashed for mark in line.marks if mark.valid] or marks

    def limits(axis: str) -> list[float]:
        return [limit.value for limit in chart.limits if limit.axis == axis]

    is_log = chart.x_scale != "linear"
    if chart.x_range is not None:
        x_ticks = nice_ticks(*chart.x_range)
        x_low, x_high = chart.x_range
    elif chart.x_scale == "levels":
        x_ticks = sorted({mark.x for mark in marks})
        x_low, x_high = x_ticks[0], x_ticks[-1]
    else:
        x_ticks = _ticks([mark.x for mark in sure], [*limits("x"), *(mark.x for mark in marks)], log=is_log)
        x_low, x_high = x_ticks[0], x_ticks[-1]
    y_more = [*limits("y"), *chain.from_iterable((mark.y, *(mark.spread or ())) for mark in marks)]
    y_sure = [value for mark in sure for value in (mark.y, *(mark.spread or ()))]
    y_ticks = _ticks(y_sure, y_more, log=chart.log_y)
    return (
        DrawnAxis(low=x_low, high=x_high, start=PLOT_LEFT, end=PLOT_RIGHT, ticks=x_ticks, log=is_log),
        DrawnAxis(low=y_ticks[0], high=y_ticks[-1], start=PLOT_BOTTOM, end=TOP, ticks=y_ticks, log=chart.log_y),
    )


def _ticks(sure: Sequence[float], more: Sequence[float], *, log: bool) -> list[float]:
    """Return ticks around the sure values, and around those further ones that are near them."""
    positive = [value for value in sure if value > 0] or [1.0]
    low, high = (min(positive) / NEAR_LOG, max(positive) * NEAR_LOG) if log else (0.0, max(positive) * NEAR)
    found = [*(positive if log else sure), *(value for value in more if low <= value <= high)]
    return log_ticks(min(found), max(found)) if log else nice_ticks(0.0, max(found) or 1.0)


def _is_held(mark: Mark, x_axis: DrawnAxis, y_axis: DrawnAxis) -> bool:
    return x_axis.holds(mark.x) and y_axis.holds(mark.y)


def _grid(x_axis: DrawnAxis, y_axis: DrawnAxis, labels: Labels) -> Iterator[str]:
    """Return the grid and the ticks that have room, the ends of the x axis first."""
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


def _span(span: Span, x_axis: DrawnAxis) -> str:
    if span.start > x_axis.high or span.end < x_axis.low:
        return ""
    left, right = x_axis.at(span.start), x_axis.at(span.end)
    width = max(3.0, right - left)
    return f'<rect class="cut" x="{left}" y="{TOP}" width="{width:.1f}" height="{PLOT_BOTTOM - TOP}">{_titled(span.label)}</rect>'


def _limit_line(limit: LimitLine, x_axis: DrawnAxis, y_axis: DrawnAxis) -> str:
    """Return a limit as a dashed line across the chart."""
    if limit.axis == "y":
        y = y_axis.at(limit.value)
        ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"'
    else:
        x = x_axis.at(limit.value)
        ends = f'x1="{x}" x2="{x}" y1="{TOP}" y2="{PLOT_BOTTOM}"'
    return f'<line class="limit" {ends}>{_titled(limit.text)}</line>'


def _limit_text(limit: LimitLine, x_axis: DrawnAxis, y_axis: DrawnAxis, labels: Labels) -> str:
    """Return the text of a limit next to its line, where it covers no other text."""
    if limit.axis == "y":
        y = y_axis.at(limit.value)
        middle = (PLOT_LEFT + PLOT_RIGHT) / 2
        ends: tuple[tuple[float, Anchor], ...] = ((LEFT + 6, "start"), (PLOT_RIGHT, "end"), (middle, "middle"))
        places: list[Place] = [(x, row, anchor) for row in (y - 4, y + 13) for x, anchor in ends]
    else:
        x = x_axis.at(limit.value)
        rows = range(PLOT_BOTTOM - 6, TOP + 10, -15)
        sides: tuple[tuple[float, Anchor], ...] = ((x - 4, "end"), (x + 4, "start"))
        places = [(place, float(row), anchor) for row in rows for place, anchor in sides]
    return labels.place("limit-text", limit.text, places, over_marks=True)


def _mark(mark: Mark, line: Series, x: float, y: float, y_axis: DrawnAxis) -> Iterator[str]:
    """Return a mark with its error bar and its tooltip. A mark of a plain line is invisible, but has its tooltip."""
    if mark.spread is not None:
        top, bottom = (y_axis.at(value) for value in reversed(mark.spread))
        yield f'<path class="error" d="M{x},{top}V{bottom}M{x - CAP:.1f},{top}h{2 * CAP}M{x - CAP:.1f},{bottom}h{2 * CAP}"/>'
    css = "spot" if line.look == "plain" else "mark" if mark.valid else "mark hollow"
    yield f'<circle class="{css}" cx="{x}" cy="{y}" r="{RADII[line.look]:g}">{_titled(mark.label)}</circle>'


def _interval_chart(chart: IntervalChart) -> str:
    """Return values with their intervals, each below its name, around a line at zero."""
    top, left, right = 6, 16, WIDTH - RIGHT - 4
    bottom = top + ROW_HEIGHT * len(chart.rows)
    labels = Labels(WIDTH, bottom + BOTTOM)
    bounds = [0.0, chart.threshold, -chart.threshold]
    for row in chart.rows:
        bounds += [min(WIDEST_PERCENT, max(-100.0, value)) for value in (row.low, row.value, row.high)]
    ticks = nice_ticks(min(bounds), max(bounds))
    axis = DrawnAxis(low=ticks[0], high=ticks[-1], start=left, end=right, ticks=ticks)
    parts = [_opened(chart.title, bottom + BOTTOM)]
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{axis.at(tick)}" x2="{axis.at(tick)}" y1="{top}" y2="{bottom}"/>')
        parts.append(labels.place("tick", number(tick), [(axis.at(tick), bottom + 17, "middle")]))
    for css, value in (("axis", 0.0), ("limit", -chart.threshold), ("limit", chart.threshold)):
        x = axis.at(value)
        parts.append(
            f'<line class="{css}" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}">{_titled(f"{value:+g} %")}</line>'
        )
    for index, row in enumerate(chart.rows):
        y = top + ROW_HEIGHT * index
        verdict = f"{row.value:+.1f} %, {row.verdict}"
        most = int((right - left) / width_of("x", "tick")) - len(verdict) - 2
        name = row.name if len(row.name) <= most else f"{row.name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
        parts.append(
            f'<g class="verdict {escape(row.verdict)}">{_titled(f"{row.name}: {verdict} ({row.low:+.1f} to {row.high:+.1f} %)")}'
            f"{labels.place('tick', name, [(left, y + 13, 'start')])}{labels.place('tick', verdict, [(right, y + 13, 'end')])}"
            f'<path class="error" d="M{axis.at(row.low)},{y + 23}H{axis.at(row.high)}"/>'
            f'<circle class="mark" cx="{axis.at(row.value)}" cy="{y + 23}" r="4"/></g>'
        )
    parts.append(labels.place("label", chart.x_label, [((left + right) / 2, bottom + 38, "middle")]))
    return "".join([*parts, "</svg>"])


def chart_file(chart: Chart, *, suffix: str = "") -> str:
    """Return a chart as a separate file, with its title, legend and colors. `suffix` follows the title."""
    drawing = chart_svg(chart)
    height = int(drawing.partition('viewBox="0 0 ')[2].partition('"')[0].split()[1])
    title = escape(f"{chart.title} ({suffix})" if suffix else chart.title)
    inner = drawing.partition(">")[2].removesuffix("</svg>")
    legend, end = _legend(chart, TITLE_ROOM + height + 8)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {end}" width="{2 * WIDTH}" height="{2 * end}" role="img"'
        f' font-family="system-ui, sans-serif"><title>{title}</title><style>{escape(STYLE.read_text(encoding="utf-8"), quote=False)}</style>'
        f'<rect class="page" width="{WIDTH}" height="{end}"/><text class="title" x="{WIDTH / 2}" y="18" text-anchor="middle">{title}</text>'
        f'<g transform="translate(0 {TITLE_ROOM})">{inner}</g>{legend}</svg>\n'
    )


def _legend(chart: Chart, y: int) -> tuple[str, int]:
    """Return the legend of a file from `y` on, in rows that fit, and the end of the file."""
    parts: list[str] = []
    x = RIGHT
    for name, stroke, dashed in legend_entries(chart):
        width = SWATCH + round(width_of(name, "tick")) + 12
        if parts and x + width > WIDTH - RIGHT:
            x, y = RIGHT, y + LEGEND_ROW
        parts.append(
            f'<line class="line{" dashed" if dashed else ""}" x1="{x}" x2="{x + SWATCH - 8}" y1="{y}" y2="{y}" style="color:{stroke}"/>'
            f'<text class="tick" x="{x + SWATCH - 2}" y="{y + 4}">{escape(name)}</text>'
        )
        x += width
    return "".join(parts), y + 14 if parts else y - 8
