"""Charts of a sweep: metrics over the load from one table, and the distributions of latencies. pygal renders them as SVG.

A chart has no script and loads nothing. The tooltip of a mark is its title.
"""

import math
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from statistics import fmean
from typing import Any, Final, Literal, TypeAlias, TypeVar

from loadtest.client.json_values import as_mapping
from loadtest.measure import load_name, percentile, point_text, shape_text
from loadtest.reports.table import Result

Key = TypeVar("Key", float, tuple[int, int])
Shape: TypeAlias = tuple[int, int]
"""Output and input tokens of a point."""

COLORS: Final = (
    "#1f5fbf", "#b85c00", "#00796b", "#a3278f", "#6b6f00", "#555b66", "#0b2a66", "#7a3d00", "#00453d", "#5e1152", "#3f4200", "#1a1f28",
)  # fmt: skip
"""Colors of the lines, in order."""
LIMIT_COLOR: Final = "#b3261e"
LOOK: Final = {
    "background": "#ffffff", "plot_background": "#ffffff", "foreground": "#1a1f28", "foreground_strong": "#1a1f28",
    "foreground_subtle": "#d9dee6", "font_family": "system-ui, sans-serif", "title_font_size": 16, "label_font_size": 12,
    "major_label_font_size": 12, "legend_font_size": 13, "value_font_size": 6, "value_label_font_size": 11,
    "opacity": "1", "stroke_opacity": "1", "stroke_width": "2",
    "guide_stroke_color": "#d9dee6", "major_guide_stroke_color": "#d9dee6", "guide_stroke_dasharray": "none", "transition": "0s",
}  # fmt: skip
REQUIREMENT: Final = "pygal>=3.1.3"
"""The extra `charts`."""
DASHES: Final = {"dasharray": "6, 4"}
HOLLOW: Final = "fill: #ffffff"
LOG_RANGE: Final = 20.0
"""Ratio of values above which the axis is logarithmic."""
LOAD_NAMES: Final = {"closed": "users (concurrent requests)", "open": "requests/s offered"}
LATENCIES: Final = ("ttft", "tpot", "e2e")
MOST_LINES: Final = 6
"""Loads that a chart of distributions shows."""
SHARES: Final = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.9, 100)
"""Percentiles on a line of a distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartMark:
    """A point of a line."""

    x: float
    """Value on the x axis, or the number of its name in `LineChart.x_names`."""
    y: float
    label: str
    """Tooltip."""
    valid: bool = True
    spread: tuple[float, float] | None = None
    """Bounds of the value, rendered as an error bar; None without."""
    tag: str = ""
    """Text next to the mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line of a chart."""

    name: str
    marks: tuple[ChartMark, ...]
    kind: Literal["measured", "planned", "limit"] = "measured"
    """A planned line has the color of the line before it."""
    is_dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """A chart of lines."""

    key: str
    """Name of the chart, its kind of load and its shape, unique in a report."""
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_names: tuple[str, ...] = ()
    """Names of the values on the x axis, at equal distances; empty for a numeric axis."""
    shows_tags: bool = False
    """True to render the tags of the marks, which would be on each other in a chart of many lines."""
    about: str = ""
    """Explanation of the chart."""
    terms: tuple[str, ...] = ()
    """Keys of `terms.toml` that the chart uses."""

    @property
    def heights(self) -> list[float]:
        """Every value on the y axis, the ends of the error bars included."""
        return [y for line in self.series for mark in line.marks for y in (mark.y, *(mark.spread or ()))]

    @property
    def places(self) -> list[float]:
        """Every value on the x axis."""
        return [mark.x for line in self.series for mark in line.marks]

    @property
    def is_log(self) -> bool:
        """True if the numeric axes are logarithmic, so a distant limit, forecast or invalid point squeezes no other value."""
        if not self.x_names and not 0 < min(self.places) < max(self.places):
            return False
        return min(self.heights) > 0 and max(self.heights) / min(self.heights) > LOG_RANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartGroup:
    """Charts under one heading. A page shows a folded group on demand."""

    title: str
    charts: Sequence[LineChart]
    folded: bool


def charts_missing() -> str:
    """Return why a report has no charts and how to add them. Empty if it has charts."""
    if find_spec("pygal") is not None:
        return ""
    command = shlex.join([sys.executable, "-m", "pip", "install", REQUIREMENT])
    return f"the report has no charts, because the package pygal is not installed. To add them, run `{command}`, then `report` with the folder."


def chart_svg(chart: LineChart) -> str:
    """Return a chart as an `<svg>` element, which is also a whole file."""
    import pygal  # noqa: PLC0415 - takes 0.1 s
    from pygal.style import Style  # noqa: PLC0415 - the same

    kind: Any = pygal.Line if chart.x_names else pygal.XY
    drawn = kind(
        title=chart.title,
        x_title=chart.x_label,
        y_title=chart.y_label,
        x_labels=list(chart.x_names) or (_log_ticks(chart.places) if chart.is_log else None),
        y_labels=_log_ticks(chart.heights) if chart.is_log else None,
        range=(min(chart.heights) if chart.is_log else 0.0, max(chart.heights) or 1.0),
        logarithmic=chart.is_log,
        value_formatter=_number,
        x_value_formatter=_number,
        print_labels=chart.shows_tags,
        show_legend=len(chart.series) > 1,
        legend_at_bottom=True,
        legend_at_bottom_columns=2,
        legend_box_size=10,
        truncate_legend=-1,
        truncate_label=-1,
        width=640,
        height=400 + 10 * len(chart.series),  # room for the legend
        margin_bottom=40,  # pygal reserves one line too few for some numbers of lines in the legend
        margin_right=36,
        dots_size=4,
        style=Style(**LOOK, colors=tuple(_colors(chart))),
        js=(),
        disable_xml_declaration=True,
    )
    drawn.uuid = chart.key
    for line in chart.series:
        values = {mark.x: _value(mark, is_named=bool(chart.x_names)) for mark in line.marks}
        drawn.add(
            line.name,
            [values.get(number) for number in range(len(chart.x_names))] or list(values.values()),
            stroke_style=DASHES if line.is_dashed else None,
            show_dots=line.kind != "limit",
        )
    drawn.add_xml_filter(_without_extras)
    return str(drawn.render())


def _value(mark: ChartMark, *, is_named: bool) -> dict[str, Any]:
    """Return a mark as pygal reads it."""
    value: dict[str, Any] = {"value": mark.y if is_named else (mark.x, mark.y), "tooltip": mark.label}
    if mark.tag:
        value["label"] = mark.tag
    if not mark.valid:
        value["style"] = HOLLOW
    if mark.spread is not None and is_named:
        value["ci"] = {"low": mark.spread[0], "high": mark.spread[1]}
    return value


def _colors(chart: LineChart) -> Iterator[str]:
    index = 0
    for line in chart.series:
        if line.kind == "measured":
            index += 1
        yield LIMIT_COLOR if line.kind == "limit" else COLORS[(index - 1) % len(COLORS)]


def _without_extras(root: Any) -> Any:  # noqa: ANN401 - an element of pygal's tree
    """Remove pygal's script, its comments, one of which has the date, and the data for its tooltips by script."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in {"script", "desc"} or not isinstance(child.tag, str):
                parent.remove(child)
    root.set("role", "img")
    return root


def _log_ticks(values: Sequence[float]) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten between the lowest and the highest value."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [tick for tick in ticks if low <= tick <= high]


def _number(value: float) -> str:
    """Return a number in short form for an axis."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"  # noqa: PLR2004 - four digits have a comma


@dataclass(frozen=True, slots=True)
class Plot:
    """A row of the table: one metric with a line per shape, or several metrics with a chart per shape."""

    key: str
    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    """Name and field of each line. Without the first one, the chart is omitted."""
    terms: tuple[str, ...]
    limit: str = ""
    """Key of its limit in `--slo`."""
    planned: str = ""
    """Field of the forecast."""
    x: str = ""
    """Field of the x axis, with the load as a tag at each mark; empty for the load."""
    x_label: str = ""
    y_label: str = ""
    """Label of the y axis, if it differs from the unit."""


PERCENTILES: Final = (("p50", "median_ttft_ms"), *((name, f"{name}_ttft_ms") for name in ("p95", "p99", "p99.9")))
SPEED: Final = "output tokens per second"
PLOTS: Final = (
    Plot("kept", "Requests that meet the limits", "% of the requests", (("", "kept_share"),), ("kept",)),
    Plot("throughput", "Throughput", "tok/s", (("", "output_throughput"),), ("throughput",), planned="output_throughput", y_label=SPEED),
    Plot("ttft", "Time to first token", "ms", PERCENTILES, ("ttft", "percentile"), limit="ttft_s", planned="mean_ttft_ms"),
    Plot("latency-throughput", "Latency against throughput", "ms", (("", "median_e2el_ms"),), ("e2e", "throughput"),
         limit="e2e_s", x="output_throughput", x_label=SPEED, y_label="median end-to-end latency, ms"),
    Plot("tpot", "Time per output token, median", "ms", (("", "median_tpot_ms"),), ("tpot",), limit="tpot_s", planned="mean_tpot_ms"),
    Plot("cost", "Cost per million output tokens", "USD", (("", "usd_per_million_output_tokens"),), ("cost",)),
)  # fmt: skip


def shape_of(result: Result) -> Shape:
    """Return the shape of a point."""
    return int(result["point"]["output_tokens"]), int(result["point"]["input_tokens"])


def level_of(result: Result) -> float:
    """Return the load of a point: users, or requests per second."""
    return float(result["point"]["level"])


def grouped(results: Sequence[Result], key: Callable[[Result], Key]) -> dict[Key, list[Result]]:
    """Return the results of each shape or load, in order."""
    groups: dict[Key, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return {found: groups[found] for found in sorted(groups)}


def shapes_of(results: Sequence[Result]) -> dict[Shape, list[Result]]:
    """Return the results of each shape, those with a valid point first, because a report leads with the first shape."""
    shapes = grouped(results, shape_of)
    return dict(sorted(shapes.items(), key=lambda shape: not any(result["valid"] for result in shape[1])))


def charts_over_load(
    results: Sequence[Result], mode: str, run: Mapping[str, Any]
) -> tuple[list[LineChart], list[LineChart]]:
    """Return the charts of one mode, and of its further shapes. A single load has none, because the table shows its metrics."""
    shapes = shapes_of(results)
    if len(grouped(results, level_of)) < 2:  # noqa: PLR2004 - a line needs two marks
        return [], []
    first, further = list[LineChart](), list[LineChart]()
    for plot in PLOTS:
        parts = [shapes] if len(plot.lines) == 1 else [{shape: group} for shape, group in shapes.items()]
        titles = ["" if len(parts) == 1 else f", {shape_text(group[0]['point'])}" for group in shapes.values()]
        charts = (_chart(plot, part, mode, run, title) for part, title in zip(parts, titles, strict=False))
        found = [chart for chart in charts if chart is not None]
        first += found[:1]
        further += found[1:]
    return first, further


def _chart(
    plot: Plot, shapes: Mapping[Shape, Sequence[Result]], mode: str, run: Mapping[str, Any], title: str
) -> LineChart | None:
    """Return one chart, or None if the first metric is unknown."""
    series: list[Series] = []
    levels = sorted({level_of(result) for group in shapes.values() for result in group})
    for group in shapes.values():
        shape = shape_text(group[0]["point"])
        lines = [_measured(plot, group, levels, name or shape, field) for name, field in plot.lines]
        if not lines[0].marks:
            continue
        planned = _planned(plot, group, levels, f"planned, {shape}" if len(shapes) > 1 else "planned")
        series += [line for line in (lines[0], planned, *lines[1:]) if line.marks]
    if not series:
        return None
    is_planned = any(line.kind == "planned" for line in series)
    repeats = any(mark.spread for line in series if line.kind == "measured" for mark in line.marks)
    places = [mark.x for line in series for mark in line.marks] if plot.x else [0, len(levels) - 1]
    limits = limit_lines(as_mapping(run.get("slo")), plot.limit, (min(places), max(places)))
    ((output, tokens), *others) = shapes
    used = {"limit": limits, "repeats": repeats, "forecast": is_planned}
    return LineChart(
        key=f"{plot.key}-{mode}" if others or len(plot.lines) == 1 else f"{plot.key}-{mode}-i{tokens}-o{output}",
        title=plot.title + title,
        x_label=plot.x_label or LOAD_NAMES[mode],
        y_label=plot.y_label or plot.unit,
        series=(*series, *limits),
        x_names=() if plot.x else tuple(f"{level:,g}" for level in levels),
        shows_tags=bool(plot.x) and not others,
        about=f"The number at each mark is its load, in {LOAD_NAMES[mode]}." if plot.x and not others else "",
        terms=(*plot.terms, *(term for term, is_used in used.items() if is_used)),
    )


def _figures(value: object) -> dict[str, float]:
    """Return the numbers of a JSON object."""
    return {name: float(number) for name, number in as_mapping(value).items() if isinstance(number, int | float)}


def _view(result: Result) -> Mapping[str, float]:
    """Return a point's metrics for a chart, those of the steady window if it has one."""
    view = _figures(result) | _figures(result.get("steady"))
    if "request_goodput" in view and view["request_throughput"]:
        view["kept_share"] = 100 * view["request_goodput"] / view["request_throughput"]
    return view


def _measured(plot: Plot, group: Sequence[Result], levels: Sequence[float], name: str, field: str) -> Series:
    """Return one line: at each load the mean of its repeats, with the lowest and the highest as its spread."""
    marks: list[ChartMark] = []
    for level, repeats in grouped(group, level_of).items():
        views = [_view(result) for result in repeats if result["completed"]]
        values = [view[field] for view in views if field in view]
        if not values:
            continue
        x = fmean(view[plot.x] for view in views) if plot.x else levels.index(level)
        y = fmean(values)
        many = len(values) > 1
        said = f" (mean of {len(values)} repeats, {min(values):,.4g} to {max(values):,.4g})" if many else ""
        at = f" at {x:,.4g} tok/s" if plot.x else ""
        what = f"{name} " if len(plot.lines) > 1 else ""
        valid = all(bool(result["valid"]) for result in repeats)
        label = f"{point_text(repeats[0]['point'] | {'repeat': 0})}: {what}{y:,.4g} {plot.unit}{at}{said}{'' if valid else ', not valid'}"
        spread = (min(values), max(values)) if many else None
        tag = f"{level:g}" if plot.x else ""
        marks.append(ChartMark(x=x, y=y, label=label, valid=valid, spread=spread, tag=tag))
    return Series(name=name, marks=tuple(marks))


def _planned(plot: Plot, group: Sequence[Result], levels: Sequence[float], name: str) -> Series:
    """Return the forecast at the measured loads, with its band as spread. Empty without one."""
    marks: list[ChartMark] = []
    for level, (result, *_) in grouped(group, level_of).items():
        band = _figures(as_mapping(result.get("forecast")).get(plot.planned))
        if band:
            low = band["low"]
            typical = band["typical"]
            high = band["high"]
            mean = " mean" if plot.planned.startswith("mean") else ""
            said = f"planned{mean} {typical:,.4g} {plot.unit} ({low:,.4g} to {high:,.4g})"
            label = f"{point_text(result['point'] | {'repeat': 0})}: {said}"
            marks.append(ChartMark(x=levels.index(level), y=typical, label=label, spread=(low, high)))
    return Series(name=name, marks=tuple(marks), kind="planned", is_dashed=True)


def limit_lines(slo: Mapping[str, Any], key: str, ends: tuple[float, float]) -> list[Series]:
    """Return the limit of `--slo` for `key`, in ms, as a line between two places of the x axis; empty without one."""
    if slo.get(key) is None:
        return []
    value = float(slo[key]) * 1000
    text = f"limit {key.removesuffix('_s').upper()} {value:,.4g} ms"
    marks = tuple(ChartMark(x=x, y=value, label=text) for x in ends)
    return [Series(name=text, marks=marks, kind="limit", is_dashed=True)]


def _latencies(key: str, group: Sequence[Result]) -> list[float]:
    """Return the values of a latency in ms, sorted. A single token has no TPOT."""
    columns = [zip(result["ttfts"], result["e2els"], result["output_lens"], strict=True) for result in group]
    rows = [
        {"ttft": ttft, "e2e": e2e} | ({"tpot": (e2e - ttft) / (tokens - 1)} if tokens > 1 else {})
        for ttft, e2e, tokens in chain(*columns)
    ]
    return sorted(1000 * row[key] for row in rows if key in row)


def chosen(levels: Sequence[float]) -> list[float]:
    """Return at most MOST_LINES loads, evenly spaced, including the lowest and the highest."""
    ordered = sorted(set(levels))
    if len(ordered) <= MOST_LINES:
        return ordered
    return [ordered[round(number * (len(ordered) - 1) / (MOST_LINES - 1))] for number in range(MOST_LINES)]


def distributions(results: Sequence[Result], mode: str, slo: Mapping[str, Any]) -> list[list[LineChart]]:
    """Return the distributions of each shape. Repeats of a load share a line."""
    shapes = shapes_of([result for result in results if result["completed"]]).values()
    charts = ([_distribution(key, group, mode, slo) for key in LATENCIES] for group in shapes)
    return [[chart for chart in found if chart is not None] for found in charts]


def _distribution(key: str, group: Sequence[Result], mode: str, slo: Mapping[str, Any]) -> LineChart | None:
    """Return the distribution of one latency of the points of one shape, or None without values."""
    loads, name = grouped(group, level_of), key.upper()
    levels = chosen(list(loads))
    series = [line for level in levels if (line := _distribution_line(key, loads[level])).marks]
    if not series:
        return None
    output, tokens = shape_of(group[0])
    limits = limit_lines(slo, f"{key}_s", (0, len(SHARES) - 1))
    steady = all(result.get("steady") for result in group)
    return LineChart(
        key=f"distribution-{key}-{mode}-i{tokens}-o{output}",
        title=f"{name}, {shape_text(group[0]['point'])}",
        x_label="% of the requests",
        y_label=f"{name}, ms",
        series=(*series, *limits),
        x_names=tuple(f"{share:g}" for share in SHARES),
        about=f"{len(levels)} of {len(loads)} loads, evenly chosen." if len(levels) < len(loads) else "",
        terms=(key, "distribution", *(("limit",) if limits else ()), *(("steady",) if steady else ())),
    )


def _distribution_line(key: str, group: Sequence[Result]) -> Series:
    """Return the line of one load; empty without values."""
    valid = all(bool(result["valid"]) for result in group)
    name = load_name(group[0]["point"]) + ("" if valid else " (not valid)")
    ordered = _latencies(key, group)
    values = [percentile(ordered, share) for share in SHARES] if ordered else []
    marks = [
        ChartMark(x=x, y=value, label=f"{name}: {share:g}% within {value:,.4g} ms", valid=valid)
        for x, (share, value) in enumerate(zip(SHARES, values, strict=False))
    ]
    return Series(name=name, marks=tuple(marks), is_dashed=not valid)
