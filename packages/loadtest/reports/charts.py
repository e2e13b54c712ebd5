"""Charts of a sweep over its loads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadtest.measure import failed_share
from loadtest.reports.chart_model import Cell, HeatMap, LimitLine, LineChart, Mark, Result, Series

Value = Callable[[Result], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plotted:
    """A metric that is rendered over the load, over the time of a point, or as a distribution."""

    title: str
    key: str = ""
    """Name of its file."""
    field: str = ""
    """Name of the metric in a result or in its time series."""
    unit: str = ""
    y_label: str = ""
    """Label of the axis, if it differs from the unit."""
    limit: str = ""
    """Key of its limit in `--slo`."""
    terms: tuple[str, ...] = ()

    def terms_with(self, limits: Sequence[LimitLine], *, also: str = "") -> tuple[str, ...]:
        """Return the terms of a chart with these limits, and one more."""
        return (*self.terms, *((also,) if also else ()), *(("limit",) if limits else ()))


THROUGHPUT: Final = Plotted(
    key="throughput",
    title="Throughput",
    field="output_throughput",
    unit="tok/s",
    y_label="output tokens per second",
    terms=("throughput",),
)
TPOT: Final = Plotted(
    key="tpot",
    title="Time per output token, median",
    field="median_tpot_ms",
    unit="ms",
    limit="tpot_s",
    terms=("tpot",),
)
COST: Final = Plotted(
    key="cost",
    title="Cost per million output tokens",
    field="usd_per_million_output_tokens",
    unit="USD",
    terms=("cost",),
)
LIMIT_NAMES: Final = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}

LOG_RANGE: Final = 20.0
"""Ratio of values above which the axis is logarithmic."""


def has_loads(results: Sequence[Result]) -> bool:
    """Return whether a chart over the load is useful, that is for two or more loads."""
    return len({result["point"]["level"] for result in results}) > 1


def shape_of(result: Result) -> tuple[int, int]:
    """Return output and input tokens of a point."""
    return int(result["point"]["output_tokens"]), int(result["point"]["input_tokens"])


def shape_name(shape: tuple[int, int]) -> str:
    """Return the name of a shape, `(output, input)`."""
    return f"{shape[1]:,} in, {shape[0]:,} out"


def _names(results: Sequence[Result]) -> Callable[[tuple[int, int]], str]:
    """Return how a legend names shapes: only by input length if all have one output length."""
    if len({shape_of(result)[0] for result in results}) == 1:
        return lambda shape: f"{shape[1]:,} in"
    return shape_name


def figure(name: str) -> Value:
    """Return a function that reads a metric of a result."""
    return lambda result: float(result[name]) if result.get(name) is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Average:
    """A metric at one load: the mean of its repeats, and the lowest and highest of them."""

    level: float
    value: float
    low: float
    high: float
    count: int
    valid: bool

    @property
    def spread(self) -> tuple[float, float] | None:
        return (self.low, self.high) if self.count > 1 else None

    @property
    def said(self) -> str:
        """Text about the repeats for a tooltip."""
        return f" (mean of {self.count} repeats, {self.low:,.4g} to {self.high:,.4g})" if self.count > 1 else ""


def _averaged(results: Sequence[Result], value: Value) -> list[_Average]:
    """Return the metric at each load, averaged over repeats."""
    found: dict[float, list[tuple[float, bool]]] = {}
    for result in results:
        number = value(result)
        if result["completed"] and number is not None:
            found.setdefault(float(result["point"]["level"]), []).append((number, bool(result["valid"])))
    return [
        _Average(
            level=level,
            value=sum(numbers) / len(numbers),
            low=min(numbers),
            high=max(numbers),
            count=len(numbers),
            valid=all(valid for _, valid in pairs),
        )
        for level, pairs in sorted(found.items())
        for numbers in [[number for number, _ in pairs]]
    ]


def limit_lines(slo: Mapping[str, Any], *keys: str, axis: str = "y") -> tuple[LimitLine, ...]:
    """Return the limits of `--slo` for `keys`, in ms. `axis` is the axis of the latency."""
    return tuple(
        LimitLine(
            axis="x" if axis == "x" else "y",
            value=float(slo[key]) * 1000,
            text=f"limit {LIMIT_NAMES[key]} {float(slo[key]) * 1000:,.4g} ms",
        )
        for key in keys
        if slo.get(key) is not None
    )


def load_name(mode: str) -> str:
    """Return the name of the load in this mode."""
    return "concurrency" if mode == "closed" else "requests/s offered"


def _line(results: Sequence[Result], name: str, value: Value, unit: str, mode: str) -> Series:
    marks = tuple(
        Mark(
            x=found.level,
            y=found.value,
            label=f"{name}, {load_name(mode)} {found.level:g}: {found.value:,.4g} {unit}{found.said}",
            valid=found.valid,
            spread=found.spread,
        )
        for found in _averaged(results, value)
    )
    return Series(name=name, marks=marks)


def by_shape(results: Sequence[Result]) -> dict[tuple[int, int], list[Result]]:
    """Return the results of each shape, `(output, input)`."""
    groups: dict[tuple[int, int], list[Result]] = {}
    for result in sorted(results, key=shape_of):
        groups.setdefault(shape_of(result), []).append(result)
    return groups


def is_wide(series: Sequence[Series]) -> bool:
    """Return whether the values need a logarithmic axis."""
    return is_wide_range([mark.y for line in series for mark in line.marks])


def is_wide_range(values: Sequence[float]) -> bool:
    """Return whether values need a logarithmic axis."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) / min(positive) > LOG_RANGE


def _over_load(results: Sequence[Result], mode: str, plotted: Plotted, slo: Mapping[str, Any]) -> LineChart | None:
    """Return a chart of one metric over the load, one line per shape; None without values."""
    named, value = _names(results), figure(plotted.field)
    lines = (_line(group, named(shape), value, plotted.unit, mode) for shape, group in by_shape(results).items())
    series = tuple(line for line in lines if line.marks)
    return _chart_over_load(f"{plotted.key}-{mode}", plotted, series, mode, slo) if series else None


def _chart_over_load(
    key: str, plotted: Plotted, series: tuple[Series, ...], mode: str, slo: Mapping[str, Any]
) -> LineChart:
    repeated = any(mark.spread is not None for line in series for mark in line.marks)
    limits = limit_lines(slo, plotted.limit)
    return LineChart(
        key=key,
        title=plotted.title,
        x_label=load_name(mode),
        y_label=plotted.y_label or plotted.unit,
        series=series,
        log_y=is_wide(series),
        limits=limits,
        terms=(*plotted.terms_with(limits), *(("repeats",) if repeated else ())),
    )


def failed_over_load(results: Sequence[Result], mode: str, most: float) -> LineChart | None:
    """Return a chart of the failure rate over the load, or None without failures."""
    if not any(result["failed"] for result in results):
        return None
    named, series = _names(results), list[Series]()
    for shape, group in by_shape(results).items():
        shares: dict[float, list[Result]] = {}
        for result in group:
            shares.setdefault(float(result["point"]["level"]), []).append(result)
        marks = tuple(
            Mark(
                x=level,
                y=100 * sum(failed_share(r) for r in found) / len(found),
                label=f"{named(shape)}, {load_name(mode)} {level:g}: {sum(r['failed'] for r in found):,} requests failed",
                valid=all(bool(r["valid"]) for r in found),
            )
            for level, found in sorted(shares.items())
        )
        series.append(Series(name=named(shape), marks=marks))
    return LineChart(
        key=f"failed-{mode}",
        title="Failed requests",
        x_label=load_name(mode),
        y_label="% of the requests",
        series=tuple(series),
        limits=(LimitLine(axis="y", value=100 * most, text=f"--max-failed {100 * most:.3g} %"),) if most < 1 else (),
        terms=("failed", "valid"),
    )


def ttft_percentiles(results: Sequence[Result], mode: str, slo: Mapping[str, Any]) -> list[LineChart]:
    """Return charts of percentiles of the time to first token over the load, one per shape."""
    charts: list[LineChart] = []
    for shape, group in by_shape(results).items():
        lines = (
            ("median", "median_ttft_ms"),
            ("p95", "p95_ttft_ms"),
            ("p99", "p99_ttft_ms"),
            ("p99.9", "p99.9_ttft_ms"),
        )
        series = tuple(_line(group, name, figure(field), "ms", mode) for name, field in lines)
        if series[0].marks:
            plotted = Plotted(
                key="ttft",
                title=f"Time to first token, {shape_name(shape)}",
                field="",
                unit="ms",
                limit="ttft_s",
                terms=("ttft", "percentile"),
            )
            drawn = tuple(line for line in series if line.marks)
            charts.append(_chart_over_load(f"ttft-{mode}-i{shape[1]}-o{shape[0]}", plotted, drawn, mode, slo))
    return charts


def latency_against_throughput(results: Sequence[Result], mode: str, slo: Mapping[str, Any]) -> LineChart | None:
    """Return a chart of end-to-end latency over throughput, with the load at every mark."""
    series: list[Series] = []
    named = _names(results)
    for shape, group in by_shape(results).items():
        speeds = {found.level: found for found in _averaged(group, figure("output_throughput"))}
        marks: list[Mark] = []
        tags: list[str] = []
        for latency in _averaged(group, figure("median_e2el_ms")):
            speed = speeds[latency.level]
            label = (
                f"{shape_name(shape)}, {load_name(mode)} {latency.level:g}: {speed.value:,.4g} tok/s at {latency.value:,.4g} ms"
                f"{latency.said}"
            )
            marks.append(
                Mark(
                    x=speed.value,
                    y=latency.value,
                    label=label,
                    valid=latency.valid and speed.valid,
                    spread=latency.spread,
                )
            )
            tags.append(f"{latency.level:g}")
        if marks:
            series.append(Series(name=named(shape), marks=tuple(marks), tags=tuple(tags)))
    if not series:
        return None
    return LineChart(
        key=f"latency-throughput-{mode}",
        title="Latency against throughput",
        x_label="output tokens per second",
        y_label="median end-to-end latency, ms",
        series=tuple(series),
        log_x=False,
        log_y=is_wide(series),
        limits=limit_lines(slo, "e2e_s"),
        about=f"The number at each mark is its load ({load_name(mode)}).",
        terms=("e2e", "throughput", "percentile"),
    )


def offered_and_achieved(results: Sequence[Result]) -> LineChart | None:
    """Return a chart of the achieved over the offered rate of open loops, or None without any."""
    named, series = _names(results), list[Series]()
    for shape, group in by_shape(results).items():
        line = _line(group, named(shape), _achieved, "complete responses/s", "open")
        good = _line(group, f"goodput, {named(shape)}", figure("request_goodput"), "complete responses/s", "open")
        series += [found for found in (line, good) if found.marks]
    if not series:
        return None
    levels = sorted({mark.x for line in series for mark in line.marks})
    offered = tuple(Mark(x=level, y=level, label=f"{level:g}/s offered") for level in (levels[0], levels[-1]))
    lines = (*series, Series(name="offered", marks=offered, look="plain", is_dashed=True))
    wide = is_wide(series)
    return LineChart(
        key="offered-achieved",
        title="Offered and achieved rate",
        x_label="requests/s offered",
        y_label="complete responses/s",
        series=lines,
        log_x=wide,
        log_y=wide,
        about="A mark below the dashed line means that the server does not keep up, or that the point is too short.",
        terms=("offered", "goodput") if len(series) > 1 else ("offered",),
    )


def _achieved(result: Result) -> float:
    """Return the complete responses per second, in the steady window if there is one."""
    return float((result.get("steady") or result)["request_throughput"])


def heat_maps(results: Sequence[Result]) -> list[HeatMap]:
    """Return heat maps of throughput by concurrency and input length, one per output length, if there are at least two of both."""
    closed = [result for result in results if result["point"]["mode"] == "closed"]
    maps: list[HeatMap] = []
    for output in sorted({shape_of(result)[0] for result in closed}):
        group = [result for result in closed if shape_of(result)[0] == output]
        levels = sorted({int(result["point"]["level"]) for result in group})
        inputs = sorted({shape_of(result)[1] for result in group})
        if len(levels) > 1 and len(inputs) > 1:
            maps.append(
                HeatMap(
                    key=f"grid-o{output}",
                    title=f"Output tokens per second, {output:,} output tokens",
                    x_label="concurrency",
                    y_label="input tokens",
                    columns=tuple(f"{level:,}" for level in levels),
                    rows=tuple(f"{tokens:,}" for tokens in inputs),
                    cells=tuple(
                        _cell(found, levels, inputs)
                        for tokens in inputs
                        for level in levels
                        if (found := [r for r in group if (r["point"]["level"], shape_of(r)[1]) == (level, tokens)])
                    ),
                    terms=("throughput", "valid"),
                )
            )
    return maps


def _cell(repeats: Sequence[Result], levels: Sequence[int], inputs: Sequence[int]) -> Cell:
    """Return the cell of one load and length: the mean of its repeats."""
    level, tokens = int(repeats[0]["point"]["level"]), shape_of(repeats[0])[1]
    failed = sum(result["failed"] for result in repeats)
    flag = "invalid" if not all(result["valid"] for result in repeats) else "failed" if failed else ""
    values = [float(result["output_throughput"]) for result in repeats if result["completed"]]
    value = sum(values) / len(values) if values else None
    said = f"{value:,.4g} tok/s" if value is not None else "no complete response"
    failures = f", {failed} failed" if failed else ""
    label = f"concurrency {level:,}, {tokens:,} in: {said}{failures}{', invalid' if flag == 'invalid' else ''}"
    return Cell(column=levels.index(level), row=inputs.index(tokens), value=value, label=label, flag=flag)


def charts_over_load(results: Sequence[Result], mode: str, slo: Mapping[str, Any], most: float) -> list[LineChart]:
    """Return the charts of one mode, failures first. A single load has none, because the table shows its metrics."""
    offered = offered_and_achieved(results) if mode == "open" else None
    if not has_loads(results):
        return [offered] if offered is not None else []
    percentiles = ttft_percentiles(results, mode, slo)
    charts = (
        failed_over_load(results, mode, most),
        _over_load(results, mode, THROUGHPUT, slo),
        offered,
        *percentiles[:1],
        latency_against_throughput(results, mode, slo),
        _over_load(results, mode, TPOT, slo),
        _over_load(results, mode, COST, slo),
    )
    return [chart for chart in charts if chart is not None]


def further_percentiles(results: Sequence[Result], mode: str, slo: Mapping[str, Any]) -> list[LineChart]:
    """Return the percentiles of the shapes after the first."""
    return ttft_percentiles(results, mode, slo)[1:] if has_loads(results) else []
