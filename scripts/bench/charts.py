"""The charts of a sweep as data. `svg` draws them for the report, and `png` as files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

NOTHING: Final = "\N{EN DASH}"
"""Text of a figure that does not exist."""

Result = Mapping[str, Any]
Value = Callable[[Result], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One point of a line."""

    x: float
    y: float
    label: str
    """Tooltip."""
    valid: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line."""

    name: str
    marks: tuple[Mark, ...]
    tagged: bool = False
    """Whether every mark shows its load."""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """A chart of lines."""

    key: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool
    log_y: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a heat map."""

    column: int
    row: int
    value: float | None
    """None if no answer was complete."""
    label: str
    flag: str = ""
    """`failed` if some requests failed, `invalid` if the figures are invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """A heat map of concurrency by input length."""

    key: str
    title: str
    x_label: str
    y_label: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plotted:
    """A figure that is drawn over the load."""

    key: str
    title: str
    field: str
    unit: str
    y_label: str = ""
    """Label of the axis, if it is not the unit."""


THROUGHPUT: Final = Plotted(
    key="throughput", title="Throughput", field="output_throughput", unit="tok/s", y_label="output tokens a second"
)
TPOT: Final = Plotted(key="tpot", title="Time per output token, median", field="median_tpot_ms", unit="ms")
COST: Final = Plotted(
    key="cost", title="Cost of a million output tokens", field="usd_per_million_output_tokens", unit="USD"
)

LOG_RANGE: Final = 20.0
"""Values that differ by more than this factor have a logarithmic axis."""


def _mode(result: Result) -> str:
    return str(result["point"]["mode"])


def _shape(result: Result) -> tuple[int, int]:
    return int(result["point"]["output_tokens"]), int(result["point"]["input_tokens"])


def shape_name(shape: tuple[int, int]) -> str:
    """Return the name of a shape, `(output, input)`."""
    return f"{shape[1]:,} in, {shape[0]:,} out"


def _names(results: Sequence[Result]) -> Callable[[tuple[int, int]], str]:
    """Return how a legend names shapes: by input length alone if all have one output length."""
    if len({_shape(result)[0] for result in results}) == 1:
        return lambda shape: f"{shape[1]:,} in"
    return shape_name


def figure(name: str) -> Value:
    """Return a function that reads a figure of a result."""
    return lambda result: float(result[name]) if result.get(name) is not None else None


def _averaged(results: Sequence[Result], value: Value) -> list[tuple[float, float, bool]]:
    """Return load, value and validity of each load, with repeats averaged."""
    found: dict[float, list[tuple[float, bool]]] = {}
    for result in results:
        number = value(result)
        if result["completed"] and number is not None:
            found.setdefault(float(result["point"]["level"]), []).append((number, bool(result["valid"])))
    return [
        (level, sum(number for number, _ in pairs) / len(pairs), all(valid for _, valid in pairs))
        for level, pairs in sorted(found.items())
    ]


def _load_name(mode: str) -> str:
    return "concurrency" if mode == "closed" else "requests/s offered"


def _line(results: Sequence[Result], name: str, value: Value, unit: str, mode: str) -> Series:
    marks = tuple(
        Mark(x=level, y=number, label=f"{name}, {_load_name(mode)} {level:g}: {number:,.4g} {unit}", valid=valid)
        for level, number, valid in _averaged(results, value)
    )
    return Series(name=name, marks=marks)


def _by_shape(results: Sequence[Result]) -> dict[tuple[int, int], list[Result]]:
    groups: dict[tuple[int, int], list[Result]] = {}
    for result in sorted(results, key=_shape):
        groups.setdefault(_shape(result), []).append(result)
    return groups


def _wide(series: Sequence[Series]) -> bool:
    values = [mark.y for line in series for mark in line.marks if mark.y > 0]
    return bool(values) and max(values) / min(values) > LOG_RANGE


def _over_load(results: Sequence[Result], mode: str, plotted: Plotted) -> LineChart | None:
    """Return a chart of one figure over the load, one line per shape; None without values."""
    named, value = _names(results), figure(plotted.field)
    lines = (_line(group, named(shape), value, plotted.unit, mode) for shape, group in _by_shape(results).items())
    series = tuple(line for line in lines if line.marks)
    return _chart_over_load(f"{plotted.key}-{mode}", plotted, series, mode) if series else None


def _chart_over_load(key: str, plotted: Plotted, series: tuple[Series, ...], mode: str) -> LineChart:
    return LineChart(
        key=key,
        title=plotted.title,
        x_label=_load_name(mode),
        y_label=plotted.y_label or plotted.unit,
        series=series,
        log_x=True,
        log_y=_wide(series),
    )


def ttft_percentiles(results: Sequence[Result], mode: str) -> list[LineChart]:
    """Return charts of the time to first token at the median, 90th and 99th percentile, one per shape."""
    charts: list[LineChart] = []
    for shape, group in _by_shape(results).items():
        lines = (("median", "median_ttft_ms"), ("p90", "p90_ttft_ms"), ("p99", "p99_ttft_ms"))
        series = tuple(_line(group, name, figure(field), "ms", mode) for name, field in lines)
        if series[0].marks:
            plotted = Plotted(key="ttft", title=f"Time to first token, {shape_name(shape)}", field="", unit="ms")
            charts.append(_chart_over_load(f"ttft-{mode}-i{shape[1]}-o{shape[0]}", plotted, series, mode))
    return charts


def latency_against_throughput(results: Sequence[Result], mode: str) -> LineChart | None:
    """Return a chart of end-to-end latency over throughput, with the load at every mark."""
    series: list[Series] = []
    named = _names(results)
    for shape, group in _by_shape(results).items():
        speeds = {level: (speed, valid) for level, speed, valid in _averaged(group, figure("output_throughput"))}
        marks: list[Mark] = []
        tags: list[str] = []
        for level, latency, valid in _averaged(group, figure("p99_e2el_ms")):
            speed, also_valid = speeds[level]
            label = f"{shape_name(shape)}, {_load_name(mode)} {level:g}: {speed:,.4g} tok/s at {latency:,.4g} ms"
            marks.append(Mark(x=speed, y=latency, label=label, valid=valid and also_valid))
            tags.append(f"{level:g}")
        if marks:
            series.append(Series(name=named(shape), marks=tuple(marks), tagged=True, tags=tuple(tags)))
    if not series:
        return None
    return LineChart(
        key=f"latency-throughput-{mode}",
        title="Latency against throughput",
        x_label="output tokens a second",
        y_label="p99 end-to-end latency, ms",
        series=tuple(series),
        log_x=False,
        log_y=_wide(series),
    )


def heat_maps(results: Sequence[Result]) -> list[HeatMap]:
    """Return heat maps of throughput by concurrency and input length, one per output length, if there are two or more of both."""
    closed = [result for result in results if _mode(result) == "closed" and result["point"]["repeat"] == 0]
    maps: list[HeatMap] = []
    for output in sorted({_shape(result)[0] for result in closed}):
        group = [result for result in closed if _shape(result)[0] == output]
        levels = sorted({int(result["point"]["level"]) for result in group})
        inputs = sorted({_shape(result)[1] for result in group})
        if len(levels) > 1 and len(inputs) > 1:
            maps.append(
                HeatMap(
                    key=f"grid-o{output}",
                    title=f"Output tokens per second, {output:,} output tokens",
                    x_label="concurrency",
                    y_label="input tokens",
                    columns=tuple(f"{level:,}" for level in levels),
                    rows=tuple(f"{tokens:,}" for tokens in inputs),
                    cells=tuple(_cell(result, levels, inputs) for result in group),
                )
            )
    return maps


def _cell(result: Result, levels: Sequence[int], inputs: Sequence[int]) -> Cell:
    level, tokens = int(result["point"]["level"]), _shape(result)[1]
    flag = "invalid" if not result["valid"] else "failed" if result["failed"] else ""
    value = float(result["output_throughput"]) if result["completed"] else None
    said = f"{value:,.4g} tok/s" if value is not None else "no complete answer"
    failed = f", {result['failed']} failed" if result["failed"] else ""
    label = f"concurrency {level:,}, {tokens:,} in: {said}{failed}{', invalid' if flag == 'invalid' else ''}"
    return Cell(column=levels.index(level), row=inputs.index(tokens), value=value, label=label, flag=flag)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """All charts of a sweep. A report shows `more`, those of further shapes, on demand."""

    lines: tuple[LineChart, ...]
    maps: tuple[HeatMap, ...]
    more: tuple[LineChart, ...]


def pictures(results: Sequence[Result]) -> Pictures:
    """Return the charts of the results."""
    lines: list[LineChart | None] = []
    more: list[LineChart] = []
    for mode in ("closed", "open"):
        group = [result for result in results if _mode(result) == mode]
        percentiles = ttft_percentiles(group, mode)
        lines += [_over_load(group, mode, THROUGHPUT), *percentiles[:1], latency_against_throughput(group, mode)]
        lines += [_over_load(group, mode, TPOT), _over_load(group, mode, COST)]
        more += percentiles[1:]
    found = tuple(chart for chart in lines if chart is not None)
    return Pictures(lines=found, maps=tuple(heat_maps(results)), more=tuple(more))
