"""Write the report as one self-contained HTML page without scripts or external files."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from scripts.bench.charts import HeatMap, LineChart, Pictures
from scripts.bench.svg import WIDE_COLUMNS, heat_map, legend, line_chart
from scripts.bench.table import COLUMNS, Facts, cell_text

STYLE: Final = """
:root { color-scheme: light dark; --bg: #f6f7f9; --surface: #ffffff; --fg: #1a1f28; --muted: #5a6472; --rule: #d9dee6; --grid: #e7ebf0;
  --accent: #1f5fbf; --on-accent: #ffffff; --warn: #8a5300; --warn-bg: #fff3dc; --bad: #b3261e;
  --c0: #1f5fbf; --c1: #b85c00; --c2: #00796b; --c3: #a3278f; --c4: #6b6f00; --c5: #555b66; --ramp-start: #8fb8f0; --ramp-end: #0b2a66; }
@media (prefers-color-scheme: dark) {
  :root { --bg: #11151c; --surface: #1a202a; --fg: #e8ecf2; --muted: #a3afbf; --rule: #313b4a; --grid: #28313e;
    --accent: #7db0ff; --on-accent: #0d1420; --warn: #ffcf85; --warn-bg: #3a2c10; --bad: #ff9a91;
    --c0: #7db0ff; --c1: #ffb066; --c2: #5fd4c1; --c3: #f19be2; --c4: #d8dc6a; --c5: #b8c0cc; --ramp-start: #2f5ca8; --ramp-end: #d6e6ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--fg); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 4px;
  overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 32px 0 12px; }
p { margin: 6px 0; } .muted { color: var(--muted); overflow-wrap: anywhere; }
.notice { background: var(--warn-bg); color: var(--warn); border-radius: 8px; padding: 10px 14px; margin: 14px 0; font-weight: 600; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 18px 0; }
.fact { background: var(--surface); border: 1px solid var(--rule); border-radius: 10px; padding: 12px 14px; }
.fact b { display: block; font-size: 1.35rem; line-height: 1.2; } .fact span { color: var(--muted); font-size: .85rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 16px; align-items: start; }
figure { margin: 0; background: var(--surface); border: 1px solid var(--rule); border-radius: 10px; padding: 12px 12px 8px; min-width: 0; }
figcaption { font-weight: 600; margin: 0 4px 6px; } svg { display: block; width: 100%; height: auto; }
.grid { stroke: var(--grid); } .axis { stroke: var(--muted); } .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.mark { stroke-width: 1.6; } .tick, .tag { fill: var(--muted); font-size: 10px; } .tag { font-size: 9px; } .label { fill: var(--fg); font-size: 10px; }
.cell-text { fill: var(--fg); font-size: 10px; } .cell-text.strong { fill: var(--on-accent); } .small { font-size: 8px !important; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 16px; padding: 0 4px; margin: 4px 0; font-size: .8125rem; color: var(--muted); }
.legend i { display: inline-block; width: 18px; height: 3px; border-radius: 2px; margin-right: 7px; vertical-align: middle; }
@media (max-width: 640px) { .tick, .label, .cell-text { font-size: 13px; } .tag { font-size: 11px; }
  .wide { overflow-x: auto; } .wide svg { min-width: 620px; } }
.cell { fill: var(--accent); stroke: var(--rule); } .cell.failed, .cell.invalid { stroke: var(--bad); stroke-width: 1.6; }
.cell.invalid { stroke-dasharray: 4 3; }
.scroll { overflow-x: auto; background: var(--surface); border: 1px solid var(--rule); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-size: .8125rem; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 7px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); } tr:last-child td { border-bottom: 0; }
th { color: var(--muted); font-weight: 600; } th:first-child, td:first-child { text-align: left; } .bad { color: var(--bad); font-weight: 600; }
ul { padding-left: 20px; margin: 6px 0; } li { margin: 3px 0; overflow-wrap: anywhere; }
details { margin: 16px 0; }
summary { cursor: pointer; font-weight: 600; }
pre { background: var(--surface); border: 1px solid var(--rule); border-radius: 10px; padding: 12px; white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: .8rem; }
"""


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
        f'<link rel="icon" href="data:,"><title>{escape(facts.title)}</title><style>{STYLE}</style></head><body><main>'
        f'<h1>{escape(facts.title)}</h1><p class="muted">{escape(subtitle)}</p>{notices}<div class="facts">{tiles}</div>'
        f'<h2>Charts</h2><div class="charts">{charts}</div>{further}'
        f'<h2>Points</h2>{_table(results)}<p class="muted">{escape(facts.legend)}</p>{noted}'
        f"<h2>The same with vLLM's own benchmark</h2><pre>{escape(facts.vllm_command)}</pre></main></body></html>\n"
    )
