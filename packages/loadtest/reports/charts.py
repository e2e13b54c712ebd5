"""Charts of a sweep over its loads, from one table of metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, Literal, TypeVar

from loadtest.client.json_values import as_mapping
from loadtest.measure import point_text, shape_text
from loadtest.reports.chart_model import ChartMark, LimitLine, LineChart, Result, Series

Key = TypeVar("Key", float, tuple[int, int])
Shape = tuple[int, int]
"""Output and input tokens of a point."""


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
    """Key of its limit in `--slo`, or `slo_share`."""
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
    Plot("kept", "Requests that meet the limits", "% of the requests", (("", "kept_share"),), ("kept",), limit="slo_share"),
    Plot("throughput", "Throughput", "tok/s", (("", "output_throughput"),), ("throughput",), planned="output_throughput", y_label=SPEED),
    Plot("ttft", "Time to first token", "ms", PERCENTILES, ("ttft", "percentile"), limit="ttft_s", planned="mean_ttft_ms"),
    Plot("latency-throughput", "Latency against throughput", "ms", (("", "median_e2el_ms"),), ("e2e", "throughput"),
         limit="e2e_s", x="output_throughput", x_label=SPEED, y_label="median end-to-end latency, ms"),
    Plot("tpot", "Time per output token, median", "ms", (("", "median_tpot_ms"),), ("tpot",), limit="tpot_s", planned="mean_tpot_ms"),
    Plot("cost", "Cost per million output tokens", "USD", (("", "usd_per_million_output_tokens"),), ("cost",)),
)  # fmt: skip
LOAD_NAMES: Final = {"closed": "users (concurrent requests)", "open": "requests/s offered"}
LOG_RANGE: Final = 20.0
"""Ratio of values above which the axis is logarithmic."""


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


def is_wide(values: Sequence[float]) -> bool:
    """Return whether values need a logarithmic axis, which has no zero."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > LOG_RANGE


def limit_lines(slo: Mapping[str, Any], key: str, *, axis: Literal["x", "y"] = "y") -> tuple[LimitLine, ...]:
    """Return the limit of `--slo` for `key`, in ms, or none. `axis` is the axis of the latency."""
    if slo.get(key) is None:
        return ()
    value = float(slo[key]) * 1000
    return (LimitLine(axis=axis, value=value, text=f"limit {key.removesuffix('_s').upper()} {value:,.4g} ms"),)


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
    for group in shapes.values():
        shape = shape_text(group[0]["point"])
        lines = [_measured(plot, group, name or shape, field) for name, field in plot.lines]
        if not lines[0].marks:
            continue
        series += [line for line in lines if line.marks]
        planned = _planned(plot, group, f"planned, {shape}" if len(shapes) > 1 else "planned", like=lines[0].name)
        series += [planned] if planned.marks else []
    if not series:
        return None
    limits = _limits(plot, run)
    drawn = [mark for line in series if not line.is_dashed for mark in line.marks]
    is_planned = any(line.name.startswith("planned") for line in series)
    ((output, tokens), *others) = shapes
    used = {"limit": limits, "repeats": any(mark.spread for mark in drawn), "forecast": is_planned}
    return LineChart(
        key=f"{plot.key}-{mode}" if others or len(plot.lines) == 1 else f"{plot.key}-{mode}-i{tokens}-o{output}",
        title=plot.title + title,
        x_label=plot.x_label or LOAD_NAMES[mode],
        y_label=plot.y_label or plot.unit,
        series=tuple(series),
        x_scale="linear" if plot.x else "levels",
        log_y=is_wide([mark.y for mark in drawn if mark.valid]),
        limits=limits,
        about=f"The number at each mark is its load, in {LOAD_NAMES[mode]}." if plot.x else "",
        terms=(*plot.terms, *(term for term, is_used in used.items() if is_used)),
    )


def _figures(value: object) -> dict[str, float]:
    """Return the numbers of a JSON object."""
    return {name: float(number) for name, number in as_mapping(value).items() if isinstance(number, int | float)}


def _view(plot: Plot, result: Result) -> Mapping[str, float]:
    """Return a point's metrics for a chart, from the steady window if it has them all, so a chart has one window."""
    steady = _figures(result.get("steady"))
    fields = {plot.x, *(field for _, field in plot.lines)}
    whole = {field for field in fields if result.get(field) is not None and field not in steady}
    view = _figures(result) | ({} if whole else steady)
    rates = steady if "request_goodput" in steady else _figures(result)
    if "request_goodput" in rates and rates["request_throughput"]:
        view["kept_share"] = 100 * rates["request_goodput"] / rates["request_throughput"]
    return view


def _measured(plot: Plot, group: Sequence[Result], name: str, field: str) -> Series:
    """Return one line: at each load the mean of its repeats, with the lowest and the highest as its spread."""
    marks: list[ChartMark] = []
    for level, repeats in grouped(group, level_of).items():
        views = [_view(plot, result) for result in repeats if result["completed"]]
        values = [view[field] for view in views if field in view]
        if not values:
            continue
        x = fmean(view[plot.x] for view in views) if plot.x else level
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


def _planned(plot: Plot, group: Sequence[Result], name: str, *, like: str) -> Series:
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
            marks.append(ChartMark(x=level, y=typical, label=label, spread=(low, high)))
    like = like if len(plot.lines) == 1 else ""
    return Series(name=name, marks=tuple(marks), look="plain", is_dashed=True, like=like)


def _limits(plot: Plot, run: Mapping[str, Any]) -> tuple[LimitLine, ...]:
    if plot.limit != "slo_share":
        return limit_lines(as_mapping(run.get("slo")), plot.limit)
    share = _figures(run).get("slo_share")
    return () if share is None else (LimitLine(axis="y", value=100 * share, text=f"--slo-share {100 * share:.4g}%"),)
