"""Charts of a search for limits: the share of requests that keep them, and the measured rate beside the planner's forecast."""

from collections.abc import Mapping, Sequence
from typing import Any

from scripts.bench.charts import LineChart, Mark, Result, Series


def search_charts(run: Mapping[str, Any], results: Sequence[Result]) -> tuple[LineChart, ...]:
    """Return the charts of a search; none if the sweep was none."""
    steps = sorted((result for result in results if "search" in result), key=lambda result: result["point"]["level"])
    if not steps:
        return ()
    users = steps[0]["point"]["mode"] == "closed"
    unit = "users" if users else "requests/s offered"
    return (_kept(steps, unit), _rates(run, steps, unit, users=users))


def _kept(steps: Sequence[Result], unit: str) -> LineChart:
    marks: list[Mark] = []
    for step in steps:
        kept, missed = step["search"]["kept"], step["search"]["missed"]
        share = 100 * kept / max(1, kept + missed)
        label = f"{unit} {step['point']['level']:g}: {share:.4g} % of {kept + missed} requests, {step['search']['verdict']} the limits"
        marks.append(Mark(x=step["point"]["level"], y=share, label=label, valid=bool(step["valid"])))
    return LineChart(
        key="search-kept",
        title="Requests that keep the limits",
        x_label=unit,
        y_label="% of the tested requests",
        series=(Series(name="measured", marks=tuple(marks)),),
        log_x=True,
    )


def _rates(run: Mapping[str, Any], steps: Sequence[Result], unit: str, *, users: bool) -> LineChart:
    measured = tuple(
        Mark(
            x=step["point"]["level"],
            y=step["output_throughput"],
            label=f"measured, {unit} {step['point']['level']:g}: {step['output_throughput']:,.4g} tok/s",
            valid=bool(step["valid"]),
        )
        for step in steps
        if step["completed"]
    )
    series = [Series(name="measured", marks=measured)]
    forecast = run.get("forecast")
    if forecast:
        series.append(Series(name="planner's forecast", marks=tuple(_forecast(forecast, steps, unit, users=users))))
    return LineChart(
        key="search-rate",
        title="Throughput, measured and forecast" if forecast else "Throughput of the steps",
        x_label=unit,
        y_label="output tokens a second",
        series=tuple(series),
        log_x=True,
    )


def _forecast(forecast: Mapping[str, float], steps: Sequence[Result], unit: str, *, users: bool) -> list[Mark]:
    """Return what the plan expects at each load: what is asked for, at most the saturated rate."""
    marks: list[Mark] = []
    for step in steps:
        level = step["point"]["level"]
        asked = level * (forecast["decode_tok_per_s"] if users else step["point"]["output_tokens"])
        rate = min(asked, forecast["saturated_tok_per_s"])
        marks.append(Mark(x=level, y=rate, label=f"forecast, {unit} {level:g}: {rate:,.4g} tok/s", valid=True))
    return marks
