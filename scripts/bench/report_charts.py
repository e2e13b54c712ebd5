"""All charts of a report, in its order: what matters first, the rest folded."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from contracts.fields import as_mapping
from scripts.bench.chart_model import ChartGroup, LimitLine, LineChart, Result
from scripts.bench.charts import charts_over_load, further_percentiles, heat_maps
from scripts.bench.distribution_charts import distributions
from scripts.bench.search_chart import search_charts
from scripts.bench.time_charts import points_over_time


def _of_search(run: Mapping[str, Any], results: Sequence[Result]) -> list[LineChart]:
    """Return the charts of a search, with the share that has to keep the limits as a line and forecasts dashed."""
    wanted = as_mapping(run.get("find")).get("slo_share")
    percent = 100 * wanted if isinstance(wanted, float | int) else None
    share = () if percent is None else (LimitLine(axis="y", value=percent, text=f"--slo-share {percent:.4g} %"),)
    return [
        replace(
            chart,
            series=tuple(replace(line, is_dashed=True) if "forecast" in line.name else line for line in chart.series),
            limits=share if chart.key == "search-kept" else (),
            terms=("kept",) if chart.key == "search-kept" else ("throughput", "forecast"),
        )
        for chart in search_charts(run, results)
    ]


def report_charts(run: Mapping[str, Any], results: Sequence[Result], keys: Sequence[str] = ()) -> list[ChartGroup]:
    """Return the groups of charts of a sweep. `keys` names the points to draw over time.

    Raises SweepError if such a point cannot be drawn.
    """
    slo, most = as_mapping(run.get("slo")), float(run.get("max_failed", 1.0))
    modes = {mode: [r for r in results if r["point"]["mode"] == mode] for mode in ("closed", "open")}
    over_load = [chart for mode, group in modes.items() for chart in charts_over_load(group, mode, slo, most)]
    by_shape = [charts for mode, group in modes.items() for charts in distributions(group, mode, slo)]
    groups = [
        ChartGroup(title="Charts", charts=(*_of_search(run, results), *over_load, *heat_maps(results))),
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
