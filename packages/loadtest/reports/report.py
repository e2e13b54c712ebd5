"""Reports of a folder, generated from its results: summary.csv, report.md, report.html and charts/*.svg."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from loadtest.errors import SweepError
from loadtest.reports.chart_model import ChartGroup
from loadtest.reports.facts import sweep_facts
from loadtest.reports.pages import sweep_report
from loadtest.reports.report_charts import report_charts
from loadtest.reports.svg import chart_file
from loadtest.reports.table import summary_csv
from loadtest.steady import judged
from loadtest.store import read_results, read_run, write_whole

SIMULATED: Final = "simulated server"


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
    facts, groups = sweep_facts(run, shown), report_charts(run, shown)
    texts = {
        folder / "summary.csv": summary_csv(results),
        folder / "report.md": sweep_report("md", facts, shown, groups),
        folder / "report.html": sweep_report("html", facts, shown, groups),
    }
    for path, text in texts.items():
        write_whole(path, text)
    simulated = any(result["simulated"] for result in results)
    return [*texts, *_write_charts(groups, folder / "charts", simulated=simulated)]


def _write_charts(groups: Sequence[ChartGroup], folder: Path, *, simulated: bool) -> list[Path]:
    """Write one file per unfolded chart, and remove files of an earlier report. Charts of a simulated server are labeled."""
    folder.mkdir(parents=True, exist_ok=True)
    charts = {folder / f"{chart.key}.svg": chart for group in groups if not group.folded for chart in group.charts}
    for old in set(folder.glob("*.svg")) - charts.keys():
        old.unlink()
    for path, chart in charts.items():
        write_whole(path, chart_file(chart, suffix=SIMULATED if simulated else ""))
    return list(charts)
