"""Charts of a point over time: requests in flight, time to first token, output rate and failures."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadtest.client.json_values import as_mapping
from loadtest.errors import SweepError
from loadtest.reports.chart_model import ChartGroup, CutSpan, LineChart, Mark, Result, Series
from loadtest.reports.charts import Plotted, limit_lines, shape_name, shape_of

MOST_POINTS: Final = 4
"""Points charted without --points. Keeps the page small."""


def points_over_time(results: Sequence[Result], slo: Mapping[str, Any], keys: Sequence[str] = ()) -> list[ChartGroup]:
    """Return one group per point: the points of `keys`, or else the most informative ones.

    Raises SweepError if a key matches no point, or a point without a time series.
    """
    known = {result["point"]["key"]: result for result in results}
    for key in keys:
        if key not in known:
            raise SweepError(f"--points: point {key} not found. Available: {', '.join(known)}.")
        if not known[key].get("timeline"):
            raise SweepError(f"--points: {key} was measured by an older version, which stored no time series.")
    drawn = [known[key] for key in keys] or _telling([r for r in results if r.get("timeline")])
    return [
        ChartGroup(title=f"Over time: {_name(result)}", charts=tuple(point_charts(result, slo)), folded=number > 0)
        for number, result in enumerate(drawn)
    ]


def _telling(results: Sequence[Result]) -> list[Result]:
    """Return the highest load of each shape, invalid points first."""
    highest: dict[object, Result] = {}
    for result in sorted(results, key=lambda result: (result["point"]["level"], -result["point"]["repeat"])):
        highest[(result["point"]["mode"], shape_of(result))] = result
    bad = [result for result in results if not result["valid"]]
    found = {result["point"]["key"]: result for result in (*bad, *highest.values())}
    return list(found.values())[:MOST_POINTS]


def _name(result: Result) -> str:
    point = result["point"]
    repeat = f", repeat {point['repeat'] + 1}" if point["repeat"] else ""
    valid = "" if result["valid"] else ", not valid"
    load = f"concurrency {point['level']:g}" if point["mode"] == "closed" else f"{point['level']:g} requests/s"
    return f"{load}, {shape_name(shape_of(result))}{repeat}{valid}"


TTFT: Final = Plotted(
    field="median_ttft_ms", title="Time to first token", unit="ms, median by send time", limit="ttft_s", terms=("ttft",)
)
PLOTS: Final = (
    Plotted(field="in_flight", title="Requests in flight", unit="requests"),
    TTFT,
    Plotted(field="output_tok_per_s", title="Output rate", unit="output tokens per second", terms=("throughput",)),
)
FAILED: Final = Plotted(field="failed", title="Failed requests", unit="failed requests", terms=("failed",))


def point_charts(result: Result, slo: Mapping[str, Any]) -> list[LineChart]:
    """Return the charts of one point, or none without a time series."""
    timeline = result.get("timeline")
    if not timeline:
        return []
    plots = (*PLOTS, FAILED) if any(timeline["failed"]) else PLOTS
    charts = (_chart(result, timeline, plot, slo) for plot in plots)
    return [chart for chart in charts if chart is not None]


def _chart(result: Result, timeline: Mapping[str, Any], plot: Plotted, slo: Mapping[str, Any]) -> LineChart | None:
    marks = tuple(
        Mark(x=at_s, y=value, label=f"{at_s:.4g} s: {value:,.4g}")
        for number, value in enumerate(timeline[plot.field])
        for at_s in [(number + 0.5) * timeline["bin_s"]]
        if value is not None
    )
    if not marks:
        return None
    cuts = _cuts(result, timeline)
    limits = limit_lines(slo, plot.limit)
    return LineChart(
        key=f"time-{plot.field.replace('_', '-')}-{result['point']['key']}",
        title=plot.title,
        x_label="seconds since the start of the point",
        y_label=plot.unit,
        series=(Series(name=plot.title, marks=marks, look="dots" if plot is TTFT else "plain"),),
        log_x=False,
        x_range=(0.0, timeline["bin_s"] * len(timeline["in_flight"])),
        limits=limits,
        cuts=cuts,
        about=_about(cuts),
        terms=plot.terms_with(limits, also="steady" if cuts else ""),
    )


def _about(cuts: Sequence[CutSpan]) -> str:
    if not cuts:
        return "The point has no steady window because it is too short or its load changes by design."
    return "Shaded: warm-up and drain, which the steady metrics exclude."


def _cuts(result: Result, timeline: Mapping[str, Any]) -> tuple[CutSpan, ...]:
    """Return the parts before and after the steady window, in seconds from the start of the point."""
    steady = as_mapping(result.get("steady"))
    if not steady:
        return ()
    start_s, length_s = timeline["start_s"], timeline["bin_s"] * len(timeline["in_flight"])
    return (
        CutSpan(start=0.0, end=steady["start_s"] - start_s, text="warm-up"),
        CutSpan(start=steady["end_s"] - start_s, end=length_s, text="drain"),
    )
