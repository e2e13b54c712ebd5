"""Reports of a folder, generated from its results: report.md, and report.html with charts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.client.json_values import as_mapping
from loadtest.errors import SweepError
from loadtest.reports.chart_model import ChartGroup, Result
from loadtest.reports.charts import charts_over_load
from loadtest.reports.distribution_charts import distributions
from loadtest.reports.facts import sweep_facts
from loadtest.reports.pages import sweep_report
from loadtest.steady import judged
from loadtest.store import read_results, read_run, write_whole


def write_reports(folder: Path) -> list[Path]:
    """Regenerate all reports and return their paths. Raises SweepError if the folder has no results."""
    results = sorted(
        read_results(folder),
        key=lambda r: (
            r["point"]["mode"],
            r["point"]["output_tokens"],
            r["point"]["input_tokens"],
            r["point"]["level"],
            r["point"]["repeat"],
        ),
    )
    if not results:
        raise SweepError(f"{folder} has no complete point yet. Run or resume the sweep first.")
    run = read_run(folder)
    shown = [judged(result) for result in results]
    facts = sweep_facts(run, shown)
    texts = {
        folder / "report.md": sweep_report("md", facts, shown),
        folder / "report.html": sweep_report("html", facts, shown, report_charts(run, shown)),
    }
    for path, text in texts.items():
        write_whole(path, text)
    return list(texts)


def report_charts(run: Mapping[str, Any], results: Sequence[Result]) -> list[ChartGroup]:
    """Return the chart groups of a sweep: the most important first, the rest folded. A kind of load without a valid point comes last."""
    slo = as_mapping(run.get("slo"))
    found = {mode: [r for r in results if r["point"]["mode"] == mode] for mode in ("closed", "open")}
    modes = sorted(found.items(), key=lambda mode: not any(result["valid"] for result in mode[1]))
    over_load = [charts_over_load(group, mode, run) for mode, group in modes]
    led = sum(any(result["valid"] for result in group) for _, group in modes) or len(modes)
    further = [chart for first, _ in over_load[led:] for chart in first]
    shapes = [charts for mode, group in modes for charts in distributions(group, mode, slo)]
    groups = (
        ("Charts", [chart for first, _ in over_load[:led] for chart in first], False),
        ("Charts of the other shapes", [*further, *(chart for _, more in over_load for chart in more)], True),
        ("Distributions", [chart for charts in shapes[:1] for chart in charts], False),
        ("Distributions of the other shapes", [chart for charts in shapes[1:] for chart in charts], True),
    )
    return [ChartGroup(title=title, charts=tuple(charts), folded=folded) for title, charts, folded in groups if charts]
