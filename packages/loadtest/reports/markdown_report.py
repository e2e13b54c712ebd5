"""Write the report as Markdown."""

from collections.abc import Sequence

from loadtest.reports.chart_model import ChartGroup, Result
from loadtest.reports.facts import Facts
from loadtest.reports.table import cell_text, columns_of
from loadtest.reports.terms import terms


def markdown_report(facts: Facts, results: Sequence[Result], groups: Sequence[ChartGroup]) -> str:
    """Return the report. Charts are links to files beside it; folded groups are left out."""
    columns = columns_of(results)
    lines = [f"# {facts.title}", "", " · ".join(facts.subtitle), ""]
    for notice in facts.notices:
        lines += [f"> **{notice.text}**", *(f"> - {reason.line}" for reason in notice.reasons), ""]
    lines += [f"- **{tile.value}** {tile.name}" for tile in facts.tiles]
    lines += ["", "| " + " | ".join(column.title for column in columns) + " |", "|" + " ---: |" * len(columns)]
    lines += ["| " + " | ".join(cell_text(column, result) for column in columns) + " |" for result in results]
    used = [terms()[key] for key in dict.fromkeys(column.term for column in columns)]
    lines += ["", *(f"- {term.name}: {term.meaning}" for term in used), ""]
    for group in groups:
        if not group.folded:
            lines += [f"## {group.title}", ""]
            lines += [f"![{chart.title}](charts/{chart.key}.svg)" for chart in group.charts]
            lines.append("")
    for title, notes in (
        ("Failed requests", [note.line for note in facts.failures]),
        ("Notes", [*facts.notes, *(note.line for note in facts.point_notes)]),
    ):
        if notes:
            lines += [f"## {title}", "", *(f"- {note}" for note in notes), ""]
    if facts.vllm_command:
        lines += ["## The same with vLLM's own benchmark", "", "```", facts.vllm_command, "```", ""]
    return "\n".join(lines)
