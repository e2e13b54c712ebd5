"""Charts of a point over time: requests in flight, time to first token, output rate and failures."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadtest.client.json_values import as_mapping
from loadtest.errors import SweepError
from loadtest.measure import point_text
from loadtest.reports.chart_model import ChartGroup, LineChart, Mark, Result, Series, Span
from loadtest.reports.charts import limit_lines, shape_of

MOST_POINTS: Final = 4
"""Points charted without --points. Keeps the page small."""
PLOTS: Final = (
    ("in_flight", "Requests in flight", "requests", ()),
    ("median_ttft_ms", "Time to first token", "ms, median by send time", ("ttft",)),
    ("output_tok_per_s", "Output rate", "output tokens per second", ("throughput",)),
    ("failed", "Failed requests", "failed requests", ("failed",)),
)
"""Field of the time series, title, unit and terms. The last one is charted only if requests failed."""


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
        ChartGroup(
            title=f"Over time: {point_text(result['point'])}{'' if result['valid'] else ', not valid'}",
            charts=tuple(point_charts(result, slo)),
            folded=number > 0,
        )
        for number, result in enumerate(drawn)
    ]


def _telling(results: Sequence[Result]) -> list[Result]:
    """Return the highest valid load of each shape, then the points that are not valid."""
    highest: dict[object, Result] = {}
    for result in sorted(results, key=lambda result: (result["point"]["level"], -result["point"]["repeat"])):
        if result["valid"]:
            highest[(result["point"]["mode"], shape_of(result))] = result
    return [*highest.values(), *(result for result in results if not result["valid"])][:MOST_POINTS]


def point_charts(result: Result, slo: Mapping[str, Any]) -> list[LineChart]:
    """Return the charts of one point."""
    timeline, spans = result["timeline"], _spans(result)
    charts: list[LineChart] = []
    for field, title, unit, terms in PLOTS if any(timeline["failed"]) else PLOTS[:-1]:
        bins = ((timeline["bin_s"] * (number + 0.5), value) for number, value in enumerate(timeline[field]))
        marks = tuple(
            Mark(x=at_s, y=value, label=f"{at_s:.4g} s: {value:,.4g} {unit.partition(',')[0]}")
            for at_s, value in bins
            if value is not None
        )
        is_ttft = field == "median_ttft_ms"
        limits = limit_lines(slo, "ttft_s") if is_ttft else ()
        chart = LineChart(
            key=f"time-{field.replace('_', '-')}-{result['point']['key']}",
            title=title,
            x_label="seconds since the start of the point",
            y_label=unit,
            series=(Series(name=title, marks=marks, look="dots" if is_ttft else "plain"),),
            x_scale="linear",
            x_range=(0.0, timeline["bin_s"] * len(timeline["in_flight"])),
            limits=limits,
            spans=spans,
            about="Shaded: warm-up and drain, which the steady metrics exclude."
            if spans
            else "The point has no steady window because it is too short or its load changes by design.",
            terms=(*terms, *(("steady",) if spans else ()), *(("limit",) if limits else ())),
        )
        charts += [chart] if marks else []
    return charts


def _spans(result: Result) -> tuple[Span, ...]:
    """Return the parts before and after the steady window, in seconds from the start of the point."""
    steady, timeline = as_mapping(result.get("steady")), result["timeline"]
    if not steady:
        return ()
    start_s, length_s = timeline["start_s"], timeline["bin_s"] * len(timeline["in_flight"])
    ends = {"warm-up": (0.0, steady["start_s"] - start_s), "drain": (steady["end_s"] - start_s, length_s)}
    return tuple(
        Span(start=start, end=end, text=text, label=f"{text}: {start:.4g} to {end:.4g} s")
        for text, (start, end) in ends.items()
    )
