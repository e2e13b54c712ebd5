"""Write the report as one self-contained HTML page without scripts or external files."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from scripts.bench.charts import HeatMap, LineChart, Pictures
from scripts.bench.svg import WIDE_COLUMNS, heat_map, legend, line_chart
from scripts.bench.table import COLUMNS, Facts, cell_text

STYLE: Final = Path(__file__).with_name("report.css")


def _figure(chart: LineChart | HeatMap) -> str:
    caption = f"<figcaption>{escape(chart.title)}</figcaption>"
    if isinstance(chart, LineChart):
        return f"<figure>{caption}{line_chart(chart)}{legend(chart)}</figure>"
    wide = ' class="wide" tabindex="0"' if len(chart.columns) > WIDE_COLUMNS else ""
    return f"<figure>{caption}<div{wide}>{heat_map(chart)}</div></figure>"


def _table(results: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{escape(column.title)}</th>" for column in COLUMNS)
    rows: list[str] = []
    for result in results:
        cells = "".join(
            f'<td class="bad">{escape(text)}</td>' if column.alarming(result) else f"<td>{escape(text)}</td>"
            for column in COLUMNS
            for text in [cell_text(column, result)]
        )
        rows.append(f"<tr>{cells}</tr>")
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def html_report(facts: Facts, results: Sequence[Mapping[str, Any]], drawn: Pictures) -> str:
    """Return the page."""
    tiles = "".join(
        f'<div class="fact"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in facts.headline
    )
    notices = "".join(f'<p class="notice">{escape(notice)}</p>' for notice in facts.notices)
    charts = "".join(_figure(chart) for chart in (*drawn.lines, *drawn.maps))
    more = "".join(_figure(chart) for chart in drawn.more)
    further = (
        f'<details><summary>Time to first token of the other shapes</summary><div class="charts">{more}</div></details>'
        if more
        else ""
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in facts.notes)
    noted = f"<h2>Notes</h2><ul>{notes}</ul>" if notes else ""
    subtitle = " · ".join(facts.subtitle)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(facts.title)}</title><style>\n{STYLE.read_text(encoding="utf-8")}</style></head><body><main>'
        f'<h1>{escape(facts.title)}</h1><p class="muted">{escape(subtitle)}</p>{notices}<div class="facts">{tiles}</div>'
        f'<h2>Charts</h2><div class="charts">{charts}</div>{further}'
        f'<h2>Points</h2>{_table(results)}<p class="muted">{escape(facts.legend)}</p>{noted}'
        f"{_command(facts.vllm_command)}</main></body></html>\n"
    )


def _command(command: str) -> str:
    """Return the section with vLLM's command; empty if that tool has no such load."""
    return f"<h2>The same with vLLM's own benchmark</h2><pre>{escape(command)}</pre>" if command else ""
