"""Comparison as an HTML page or as Markdown: the verdict first, then each metric's changes with their intervals."""

import math
from collections.abc import Sequence
from typing import Final

from loadtest.compare import Comparison, FigureChange, basis_note, verdict_counts
from loadtest.reports.chart_model import ChartGroup, IntervalChart, IntervalRow
from loadtest.reports.facts import Notice
from loadtest.reports.pages import page

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
    """Return one chart per metric, with its worst points first."""
    charts: list[IntervalChart] = []
    for metric in dict.fromkeys(change.metric for change in comparison.changes):
        group = [change for change in comparison.changes if change.metric == metric]
        charts.append(
            IntervalChart(
                key=f"change-{metric.lower().replace(' ', '-')}",
                title=f"Change of {metric}",
                x_label=f"% against {comparison.before}",
                rows=tuple(_row(change) for change in _ordered(group)),
                threshold=100 * comparison.threshold,
                about=f"Dashed: the threshold of {comparison.threshold:.0%}.",
                terms=("interval",),
            )
        )
    return charts


def _notices(comparison: Comparison) -> list[Notice]:
    """Return the notices at the top of the page: the verdict, other regressions, and limits of the metrics."""
    worse, rest = verdict_counts(comparison)
    note = basis_note(comparison)
    notices = [Notice(text=f"{worse}, {rest}", alarming=comparison.worse)]
    notices += [Notice(text=failure, alarming=True) for failure in comparison.failures]
    notices += [Notice(text=note)] if note else []
    notices += [Notice(text=f"Not the same load: {text}.") for text in comparison.differences]
    notices += [Notice(text="Simulated server. Results do not reflect real hardware.")] * comparison.simulated
    return notices


def _ordered(changes: Sequence[FigureChange]) -> list[FigureChange]:
    return sorted(changes, key=lambda change: ORDER.index(change.verdict))


def _percent(ratio: float) -> str:
    return f"{ratio - 1:+.1%}" if math.isfinite(ratio) else "?"


def comparison_page(comparison: Comparison) -> str:
    """Return the page."""
    return page(
        "comparison.html.j2",
        comparison=comparison,
        notices=_notices(comparison),
        groups=[ChartGroup(title="Changes", charts=tuple(change_charts(comparison)))],
        changes=_ordered(comparison.changes),
        percent=_percent,
    )


def comparison_markdown(comparison: Comparison) -> str:
    """Return Markdown for a pull request."""
    worse, rest = verdict_counts(comparison)
    return page(
        "comparison.md.j2",
        comparison=comparison,
        worse=worse,
        rest=rest,
        note=basis_note(comparison),
        changes=_ordered(comparison.changes),
        percent=_percent,
    )
