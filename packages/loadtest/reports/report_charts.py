"""All charts of a report, in order: the most important first, the rest folded."""

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.client.json_values import as_mapping
from loadtest.reports.chart_model import ChartGroup, Result
from loadtest.reports.charts import charts_over_load
from loadtest.reports.distribution_charts import distributions
from loadtest.reports.time_charts import points_over_time


def report_charts(run: Mapping[str, Any], results: Sequence[Result], keys: Sequence[str] = ()) -> list[ChartGroup]:
    """Return the chart groups of a sweep. `keys` selects the points to chart over time.

    Raises SweepError if such a point cannot be charted.
    """
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
    found = [ChartGroup(title=title, charts=tuple(charts), folded=folded) for title, charts, folded in groups if charts]
    return found + points_over_time(results, slo, keys)
