"""Write a page of charts: one self-contained HTML file without scripts or external files."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from loadtest.reports.chart_model import Chart, ChartGroup, HeatMap
from loadtest.reports.facts import Facts, Notice, Tile
from loadtest.reports.notes import GroupedNote
from loadtest.reports.svg import STYLE as CHART_STYLE
from loadtest.reports.svg import chart_svg, far_limits, legend_entries
from loadtest.reports.svg_rows import WIDE_COLUMNS
from loadtest.reports.table import cell_text, columns_of
from loadtest.reports.terms import terms

STYLE: Final = Path(__file__).with_name("report.css")
MOST_NAMES: Final = 4
"""Points that a note names at once; more are shown on demand."""


def _definitions(keys: Iterable[str]) -> str:
    return "".join(f"<p><b>{escape(terms()[key].name)}</b>: {escape(terms()[key].meaning)}</p>" for key in keys)


def _explained(keys: Sequence[str], summary: str = "What this means") -> str:
    """Return definitions that a reader can open where the terms stand, by pointer and by keyboard."""
    return f'<details class="terms"><summary>{summary}</summary>{_definitions(keys)}</details>' if keys else ""


def _legend(chart: Chart) -> str:
    """Return the names of the lines as a list, which can wrap; empty for a single line."""
    items = "".join(
        f'<li><i style="border-top-color:{stroke}"{" class=dashed" if dashed else ""}></i>{escape(name)}</li>'
        for name, stroke, dashed in legend_entries(chart)
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


def _figure(chart: Chart) -> str:
    wide = ' class="wide" tabindex="0"' if isinstance(chart, HeatMap) and len(chart.columns) > WIDE_COLUMNS else ""
    said = [*([chart.about] if chart.about else []), *(f"Not on this scale: {text}." for text in far_limits(chart))]
    about = f'<p class="muted">{escape(" ".join(said))}</p>' if said else ""
    return (
        f"<figure><figcaption>{escape(chart.title)}</figcaption><div{wide}>{chart_svg(chart)}</div>{_legend(chart)}{about}"
        f"{_explained(chart.terms)}</figure>"
    )


def _group(group: ChartGroup) -> str:
    charts = f'<div class="charts">{"".join(_figure(chart) for chart in group.charts)}</div>'
    if group.folded:
        return f'<details class="more"><summary>{escape(group.title)}</summary>{charts}</details>'
    return f"<h2>{escape(group.title)}</h2>{charts}"


def _table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table. Each heading links to its definition below."""
    columns = columns_of(results)
    head = "".join(
        f'<th scope="col"><a href="#term-{column.term}" title="{escape(terms()[column.term].meaning, quote=True)}">{escape(column.title)}</a></th>'
        for column in columns
    )
    rows: list[str] = []
    for result in results:
        cells = "".join(
            f'<td class="bad">{escape(text)}</td>' if column.alarming(result) else f"<td>{escape(text)}</td>"
            for column in columns
            for text in [cell_text(column, result)]
        )
        rows.append(f"<tr>{cells}</tr>")
    meanings = "".join(
        f'<div id="term-{key}"><dt>{escape(terms()[key].name)}</dt><dd>{escape(terms()[key].meaning)}</dd></div>'
        for key in dict.fromkeys(column.term for column in columns)
    )
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        f'<dl class="meanings">{meanings}</dl>'
    )


def _note(note: GroupedNote) -> str:
    if len(note.points) <= MOST_NAMES:
        return f"<li>{escape(note.line)}</li>"
    names = escape(", ".join(note.points))
    return f"<li>{escape(note.text)}<details><summary>{escape(note.count)}</summary>{names}</details></li>"


def bullet_section(title: str, items: Sequence[str]) -> str:
    """Return a section of `<li>` elements; empty without any."""
    return f"<h2>{title}</h2><ul>{''.join(items)}</ul>" if items else ""


def notice_block(notice: Notice) -> str:
    """Return a sentence above all figures."""
    reasons = "".join(_note(reason) for reason in notice.reasons)
    kind = "notice alarm" if notice.alarming else "notice"
    return f'<div class="{kind}"><p>{escape(notice.text)}</p>{f"<ul>{reasons}</ul>" if reasons else ""}</div>'


def _tile(tile: Tile) -> str:
    return (
        f'<div class="fact{" alarm" if tile.alarming else ""}"><b>{escape(tile.value)}</b><span>{escape(tile.name)}</span>'
        f"{_explained(tile.terms)}</div>"
    )


def page(title: str, subtitle: str, body: str) -> str:
    """Return a whole page."""
    style = CHART_STYLE.read_text(encoding="utf-8") + STYLE.read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>\n{style}</style></head><body><main>'
        f'<h1>{escape(title)}</h1><p class="muted">{escape(subtitle)}</p>{body}</main></body></html>\n'
    )


def chart_groups(groups: Sequence[ChartGroup]) -> str:
    """Return the charts of a page."""
    return "".join(_group(group) for group in groups)


def html_report(facts: Facts, results: Sequence[Mapping[str, Any]], groups: Sequence[ChartGroup]) -> str:
    """Return the page of a sweep."""
    notices, tiles = "".join(map(notice_block, facts.notices)), "".join(map(_tile, facts.tiles))
    failures = bullet_section("Failed requests", [_note(note) for note in facts.failures])
    notes = [*(f"<li>{escape(note)}</li>" for note in facts.notes), *map(_note, facts.point_notes)]
    body = (
        f'{notices}<div class="facts">{tiles}</div>{failures}{chart_groups(groups)}<h2>Points</h2>{_table(results)}'
        f"{bullet_section('Notes', notes)}{_command(facts.vllm_command)}"
    )
    return page(facts.title, " · ".join(facts.subtitle), body)


def _command(command: str) -> str:
    """Return the section with vLLM's command; empty if that tool has no such load."""
    return f"<h2>The same with vLLM's own benchmark</h2><pre>{escape(command)}</pre>" if command else ""
