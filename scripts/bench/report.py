"""Write the reports of a folder from its results: summary.csv, report.md, report.html and charts/*.png."""

from dataclasses import replace
from pathlib import Path

from scripts.bench.charts import pictures
from scripts.bench.html_report import html_report
from scripts.bench.png import write_pngs
from scripts.bench.points import SweepError
from scripts.bench.search_chart import search_charts
from scripts.bench.store import read_results, read_run, write_whole
from scripts.bench.table import markdown_report, summary_csv, sweep_facts


def write_reports(folder: Path) -> list[Path]:
    """Write all reports again and return their paths. Raises SweepError if the folder has no results."""
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
        raise SweepError(f"{folder} has no complete point yet, so there is nothing to report.")
    run = read_run(folder)
    facts, drawn = sweep_facts(run, results), pictures(results)
    drawn = replace(drawn, lines=(*search_charts(run, results), *drawn.lines))
    texts = {
        folder / "summary.csv": summary_csv(results),
        folder / "report.md": markdown_report(facts, results),
        folder / "report.html": html_report(facts, results, drawn),
    }
    for path, text in texts.items():
        write_whole(path, text)
    simulated = any(result["simulated"] for result in results)
    return [*texts, *write_pngs(drawn, folder / "charts", simulated=simulated)]
