"""Charts of a search for limits: the share of requests that meet them, and the measured rate, each with the planner's forecast."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from loadtest.client.json_values import as_mapping
from loadtest.reports.chart_model import LimitLine, LineChart, Mark, Result, Series
from loadtest.reports.charts import load_name
from loadtest.slo_search import verdict_name

BANDS: Final = {"low": "forecast, low end", "typical": "forecast", "high": "forecast, high end"}
"""Ends of the planner's bands and the names of their lines."""


def search_charts(run: Mapping[str, Any], results: Sequence[Result]) -> tuple[LineChart, ...]:
    """Return the charts of a search, or none without a search. The required share is a line, forecasts are dashed."""
    steps = sorted((result for result in results if "search" in result), key=lambda result: result["point"]["level"])
    if not steps:
        return ()
    unit = "users" if steps[0]["point"]["mode"] == "closed" else load_name("open")
    return (_kept(run, steps, unit), _rates(steps, unit))


def _marks(
    steps: Sequence[Result], value: Callable[[Result], float], label: Callable[[Result, float], str]
) -> tuple[Mark, ...]:
    """Return one mark per step, at its load."""
    return tuple(
        Mark(x=step["point"]["level"], y=value(step), label=label(step, value(step)), valid=bool(step["valid"]))
        for step in steps
    )


def _kept(run: Mapping[str, Any], steps: Sequence[Result], unit: str) -> LineChart:
    def tested(step: Result) -> int:
        return step["search"]["kept"] + step["search"]["missed"]

    measured = _marks(
        steps,
        lambda step: 100 * step["search"]["kept"] / max(1, tested(step)),
        lambda step, share: (
            f"{unit} {step['point']['level']:g}: {share:.4g} % of {tested(step)} requests, {verdict_name(step['search']['verdict'])} the limits"
        ),
    )
    expected = _expected(as_mapping(run.get("found")))
    planned = (Series(name="highest load by the plan, with its band", marks=expected),) if expected else ()
    wanted = as_mapping(run.get("find")).get("slo_share")
    share = 100 * wanted if isinstance(wanted, float | int) else None
    return LineChart(
        key="search-kept",
        title="Requests that meet the limits",
        x_label=unit,
        y_label="% of the tested requests",
        series=(Series(name="measured", marks=measured), *planned),
        limits=() if share is None else (LimitLine(axis="y", value=share, text=f"--slo-share {share:.4g} %"),),
        terms=("kept",),
    )


def _expected(found: Mapping[str, Any]) -> tuple[Mark, ...]:
    """Return the forecast of the highest load, at the height of the required share."""
    levels = [(end, as_mapping(found.get("forecast")).get(end)) for end in BANDS]
    return tuple(
        Mark(
            x=float(f"{level:.3g}"),  # shown on the axis
            y=100 * found["share"],
            label=f"the plan expects {level:,.4g} {found['unit']} ({end})",
        )
        for end, level in levels
        if isinstance(level, int | float) and level > 0  # the axis of loads has no zero
    )


def _rates(steps: Sequence[Result], unit: str) -> LineChart:
    def line(name: str, of: Sequence[Result], value: Callable[[Result], float]) -> Series:
        def label(step: Result, rate: float) -> str:
            return f"{name}, {unit} {step['point']['level']:g}: {rate:,.4g} tok/s"

        return Series(name=name, marks=_marks(of, value, label), is_dashed="forecast" in name)

    planned = [step | {"valid": True} for step in map(dict, steps) if step["search"].get("forecast_output_tok_per_s")]
    measured = line("measured", [step for step in steps if step["completed"]], lambda step: step["output_throughput"])
    forecasts = (
        line(name, planned, lambda step, end=end: step["search"]["forecast_output_tok_per_s"][end])
        for end, name in BANDS.items()
        if planned
    )
    return LineChart(
        key="search-rate",
        title="Throughput, measured and forecast" if planned else "Throughput of the steps",
        x_label=unit,
        y_label="output tokens per second",
        series=(measured, *forecasts),
        terms=("throughput", "forecast"),
    )
