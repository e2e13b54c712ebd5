"""All charts of a report, in order: the most important first, the rest folded."""

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.client.json_values import as_mapping
from loadtest.reports.chart_model import ChartGroup, Result
from loadtest.reports.charts import charts_over_load, further_percentiles, heat_maps
from loadtest.reports.distribution_charts import distributions
from loadtest.reports.search_chart import search_charts
from loadtest.reports.time_charts import points_over_time


def report_charts(run: Mapping[str, Any], results: Sequence[Result], keys: Sequence[str] = ()) -> list[ChartGroup]:
    """Return the chart groups of a sweep. `keys` selects the points to chart over time.

    Raises SweepError if such a point cannot be charted.
    """
    slo, most = as_mapping(run.get("slo")), float(run.get("max_failed", 1.0))
    modes = {mode: [r for r in results if r["point"]["mode"] == mode] for mode in ("closed", "open")}
    over_load = [chart for mode, group in modes.items() for chart in charts_over_load(group, mode, slo, most)]
    by_shape = [charts for mode, group in modes.items() for charts in distributions(group, mode, slo)]
    groups = [
        ChartGroup(title="Charts", charts=(*search_charts(run, results), *over_load, *heat_maps(results))),
        ChartGroup(
            title="Time to first token of the other shapes",
            charts=tuple(chart for mode, group in modes.items() for chart in further_percentiles(group, mode, slo)),
            folded=True,
        ),
        ChartGroup(title="Distributions", charts=tuple(chart for charts in by_shape[:1] for chart in charts)),
        ChartGroup(
            title="Distributions of the other shapes",
            charts=tuple(chart for charts in by_shape[1:] for chart in charts),
            folded=True,
        ),
        *points_over_time(results, slo, keys),
    ]
    return [group for group in groups if group.charts]
