"""Charts of a search for limits: the share of requests that keep them, and the measured rate, each beside the planner's forecast."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from contracts.fields import as_mapping
from scripts.bench.charts import LineChart, Mark, Result, Series

ENDS: Final = ("low", "typical", "high")
"""Ends of the planner's bands."""


def search_charts(run: Mapping[str, Any], results: Sequence[Result]) -> tuple[LineChart, ...]:
    """Return the charts of a search; none if the sweep was none."""
    steps = sorted((result for result in results if "search" in result), key=lambda result: result["point"]["level"])
    if not steps:
        return ()
    users = steps[0]["point"]["mode"] == "closed"
    unit = "users" if users else "requests/s offered"
    return (_kept(as_mapping(run.get("found")), steps, unit), _rates(steps, unit))


def _kept(found: Mapping[str, Any], steps: Sequence[Result], unit: str) -> LineChart:
    marks: list[Mark] = []
    for step in steps:
        kept, missed = step["search"]["kept"], step["search"]["missed"]
        share = 100 * kept / max(1, kept + missed)
        label = f"{unit} {step['point']['level']:g}: {share:.4g} % of {kept + missed} requests, {step['search']['verdict']} the limits"
        marks.append(Mark(x=step["point"]["level"], y=share, label=label, valid=bool(step["valid"])))
    series = [Series(name="measured", marks=tuple(marks))]
    expected = _expected(found)
    if expected:
        series.append(Series(name="highest load by the plan, with its band", marks=expected))
    return LineChart(
        key="search-kept",
        title="Requests that keep the limits",
        x_label=unit,
        y_label="% of the tested requests",
        series=tuple(series),
        log_x=True,
    )


def _expected(found: Mapping[str, Any]) -> tuple[Mark, ...]:
    """Return the forecast of the highest load, at the height of the share that has to keep the limits."""
    forecast = as_mapping(found.get("forecast"))
    levels = [(end, forecast.get(end)) for end in ENDS]
    return tuple(
        Mark(
            x=float(f"{level:.3g}"),  # the axis names it
            y=100 * found["share"],
            label=f"the plan expects {level:,.4g} {found['unit']} ({end})",
            valid=True,
        )
        for end, level in levels
        if isinstance(level, int | float) and level > 0  # the axis of loads has no zero
    )


def _rates(steps: Sequence[Result], unit: str) -> LineChart:
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
    planned = [
        (step, step["search"]["forecast_output_tok_per_s"])
        for step in steps
        if step["search"].get("forecast_output_tok_per_s")
    ]
    for end, name in zip(ENDS, ("forecast, low end", "forecast", "forecast, high end"), strict=True):
        marks = tuple(
            Mark(
                x=step["point"]["level"],
                y=band[end],
                label=f"{name}, {unit} {step['point']['level']:g}: {band[end]:,.4g} tok/s",
                valid=True,
            )
            for step, band in planned
        )
        series += [Series(name=name, marks=marks)] if marks else []
    return LineChart(
        key="search-rate",
        title="Throughput, measured and forecast" if planned else "Throughput of the steps",
        x_label=unit,
        y_label="output tokens a second",
        series=tuple(series),
        log_x=True,
    )
