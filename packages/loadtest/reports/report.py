"""Files of a folder that are generated from its results: report.html, charts/*.svg and summary.csv."""

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from loadtest.client.json_values import as_mapping
from loadtest.errors import SweepError
from loadtest.measure import point_text
from loadtest.reports.charts import (
    ChartGroup,
    LineChart,
    chart_svg,
    charts_missing,
    charts_over_load,
    distributions,
)
from loadtest.reports.facts import sweep_facts
from loadtest.reports.report_pages import page
from loadtest.reports.table import Result, columns_of
from loadtest.steady import judged
from loadtest.store import read_results, read_run, write_whole

POINT_FIELDS: Final = ("mode", "level", "input_tokens", "output_tokens", "repeat")


def write_reports(folder: Path) -> list[Path]:
    """Regenerate all reports and return their paths: without charts if pygal is not installed. Raises SweepError if the folder has no results."""
    order = ("mode", "output_tokens", "input_tokens", "level", "repeat")
    results = sorted(read_results(folder), key=lambda result: [result["point"][name] for name in order])
    if not results:
        raise SweepError(f"{folder} has no complete point yet. Run or resume the sweep first.")
    run = read_run(folder)
    shown = [judged(result) for result in results]
    groups = () if charts_missing() else report_charts(run, shown)
    drawings = {chart.key: chart_svg(chart) for group in groups for chart in group.charts}
    texts = {
        folder / "report.html": page(
            "report.html.j2",
            facts=sweep_facts(run, shown),
            results=shown,
            groups=groups,
            drawings=drawings,
            columns=columns_of(shown),
        ),
        folder / "summary.csv": summary_csv(results),
        **{folder / "charts" / f"{key}.svg": drawing for key, drawing in drawings.items()},
    }
    if drawings:
        (folder / "charts").mkdir(exist_ok=True)
    for path, text in texts.items():
        write_whole(path, text)
    return list(texts)


def summary_csv(results: Sequence[Result]) -> str:
    """Return the points as CSV: load, lengths, validity, every number of the result, and those of its steady window with `steady_`."""
    rows = [
        {
            "point": point_text(result["point"]),
            **{name: result["point"][name] for name in POINT_FIELDS},
            "valid": result["valid"],
            "simulated": bool(result["simulated"]),
            **_numbers(result),
            **{f"steady_{name}": value for name, value in _numbers(as_mapping(result.get("steady"))).items()},
        }
        for result in results
    ]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def report_charts(run: Mapping[str, Any], results: Sequence[Result]) -> list[ChartGroup]:
    """Return the chart groups of a sweep: the most important first, the rest folded. A kind of load without a valid point comes last."""
    slo = as_mapping(run.get("slo"))
    found = {mode: [r for r in results if r["point"]["mode"] == mode] for mode in ("closed", "open")}
    modes = sorted(found.items(), key=lambda mode: not any(result["valid"] for result in mode[1]))
    is_valid = any(result["valid"] for result in results)
    main: list[LineChart] = []
    other: list[LineChart] = []
    shapes: list[Sequence[LineChart]] = []
    for mode, group in modes:
        first, others = charts_over_load(group, mode, run)
        leads = any(result["valid"] for result in group) or not is_valid
        (main if leads else other).extend(first)
        other.extend(others)
        shapes.extend(distributions(group, mode, slo))
    first_shape, *other_shapes = shapes or [()]
    groups = (
        ChartGroup(title="Charts", charts=main, folded=False),
        ChartGroup(title="Charts of the other shapes", charts=other, folded=True),
        ChartGroup(title="Distributions", charts=first_shape, folded=False),
        ChartGroup(title="Distributions of the other shapes", charts=list(chain(*other_shapes)), folded=True),
    )
    return [group for group in groups if group.charts]
