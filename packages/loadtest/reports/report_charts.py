"""All charts of a report, in order: the most important first, the rest folded."""

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.client.json_values import as_mapping
from loadtest.reports.chart_model import ChartGroup, Result
from loadtest.reports.charts import charts_over_load
from loadtest.reports.distribution_charts import distributions


def report_charts(run: Mapping[str, Any], results: Sequence[Result]) -> list[ChartGroup]:
    """Return the chart groups of a sweep."""
    slo = as_mapping(run.get("slo"))
    modes = {mode: [r for r in results if r["point"]["mode"] == mode] for mode in ("closed", "open")}
    over_load = [charts_over_load(group, mode, run) for mode, group in modes.items()]
    shapes = [charts for mode, group in modes.items() for charts in distributions(group, mode, slo)]
    groups = (
        ("Charts", [chart for first, _ in over_load for chart in first], False),
        ("Charts of the other shapes", [chart for _, further in over_load for chart in further], True),
        ("Distributions", [chart for charts in shapes[:1] for chart in charts], False),
        ("Distributions of the other shapes", [chart for charts in shapes[1:] for chart in charts], True),
    )
    return [ChartGroup(title=title, charts=tuple(charts), folded=folded) for title, charts, folded in groups if charts]
