"""Write a comparison as one HTML page: the verdict first, then each figure's changes with their intervals."""

from html import escape
from typing import Final

from loadtest.compare import Comparison, FigureChange, basis_note, verdict_counts
from loadtest.reports.chart_model import ChartGroup, IntervalChart, IntervalRow
from loadtest.reports.facts import Notice
from loadtest.reports.html_report import bullet_section, chart_groups, notice_block, page

ORDER: Final = ("worse", "better", "unclear", "same")


def _row(change: FigureChange) -> IntervalRow:
    return IntervalRow(
        name=change.point,
        value=100 * (change.ratio - 1),
        low=100 * (change.low - 1),
        high=100 * (change.high - 1),
        verdict=change.verdict,
    )


def change_charts(comparison: Comparison) -> list[IntervalChart]:
    """Return one chart per figure, with its worst points first."""
    charts: list[IntervalChart] = []
    for metric in dict.fromkeys(change.metric for change in comparison.changes):
        group = [change for change in comparison.changes if change.metric == metric]
        ordered = sorted(group, key=lambda change: ORDER.index(change.verdict))
        charts.append(
            IntervalChart(
                key=f"change-{metric.lower().replace(' ', '-')}",
                title=f"Change of {metric}",
                x_label=f"% against {comparison.before}",
                y_label="",
                rows=tuple(_row(change) for change in ordered),
                threshold=100 * comparison.threshold,
                about=f"Dashed: the threshold of {comparison.threshold:.0%}.",
                terms=("interval",),
            )
        )
    return charts


def comparison_page(comparison: Comparison) -> str:
    """Return the page."""
    worse, rest = verdict_counts(comparison)
    notices = [Notice(text=f"{worse}, {rest}", alarming=comparison.worse)]
    notices += [Notice(text=failure, alarming=True) for failure in comparison.failures]
    note = basis_note(comparison)
    notices += [Notice(text=note)] if note else []
    notices += [Notice(text=f"Not the same load: {text}.") for text in comparison.differences]
    if comparison.simulated:
        notices.append(Notice(text="Simulated server: these figures show the tool, not any hardware."))
    group = ChartGroup(title="Changes", charts=tuple(change_charts(comparison)))
    left_out = bullet_section("Left out", [f"<li>{escape(text)}</li>" for text in comparison.left_out])
    body = "".join(map(notice_block, notices)) + chart_groups([group]) + _table(comparison) + left_out
    return page("Benchmark comparison", f"{comparison.before} and {comparison.after}", body)


def _table(comparison: Comparison) -> str:
    head = "".join(
        f'<th scope="col">{title}</th>' for title in ("point", "figure", "before", "after", "change", "verdict")
    )
    rows = "".join(
        f"<tr><td>{escape(change.point)}</td><td>{escape(change.metric)}</td><td>{change.before:,.4g} {change.unit}</td>"
        f"<td>{change.after:,.4g} {change.unit}</td><td>{change.ratio - 1:+.1%}</td>"
        f"<td{' class=bad' if change.verdict == 'worse' else ''}>{change.verdict}</td></tr>"
        for change in sorted(comparison.changes, key=lambda change: ORDER.index(change.verdict))
    )
    return f'<h2>Figures</h2><div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
