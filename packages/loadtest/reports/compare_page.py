"""Comparison as an HTML page or as Markdown: the verdict first, then one row per change with its interval."""

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from loadtest.compare import Comparison, FigureChange, basis_note, missing_note, verdict_counts
from loadtest.reports.facts import Notice
from loadtest.reports.pages import page
from loadtest.reports.svg_axes import DrawnAxis

ORDER: Final = ("worse", "better", "cannot tell", "same")
BAR_WIDTH: Final = 160
REACH: Final = 3.0
"""Ends of the scale of changes, as a multiple of the largest change or of the threshold. Longer intervals end there."""


def interval_bar(change: FigureChange, comparison: Comparison) -> str:
    """Return a change with its interval as an `<svg>` element, around zero and between the thresholds, on one scale for the page."""
    largest = max((abs(each.ratio - 1) for each in comparison.changes if math.isfinite(each.ratio)), default=0.0)
    reach = REACH * max(comparison.threshold, largest)
    axis = DrawnAxis(low=-reach, high=reach, start=4, end=BAR_WIDTH - 4, ticks=())
    low, value, high = (axis.at(ratio - 1) for ratio in (change.low, change.ratio, change.high))
    lines = (("axis", 0.0), ("limit", -comparison.threshold), ("limit", comparison.threshold))
    drawn = "".join(f'<line class="{css}" x1="{axis.at(at)}" x2="{axis.at(at)}" y1="1" y2="19"/>' for css, at in lines)
    said = f"{change.point}: {_percent(change.ratio)} ({_percent(change.low)} to {_percent(change.high)}), {change.verdict}"
    return (
        f'<svg viewBox="0 0 {BAR_WIDTH} 20" role="img" aria-label="{escape(said)}" class="verdict {escape(change.verdict)}">{drawn}'
        f'<path class="error" d="M{low},10H{high}"/><circle class="mark" cx="{value}" cy="10" r="4"><title>{escape(said)}</title></circle></svg>'
    )


def _notices(comparison: Comparison) -> list[Notice]:
    """Return the notices at the top of the page: the verdict, other regressions, and limits of the metrics."""
    worse, rest = verdict_counts(comparison)
    note = basis_note(comparison)
    notices = [Notice(text=f"{worse}, {rest}", alarming=comparison.worse or comparison.compared_nothing)]
    notices += [Notice(text=missing_note(comparison), alarming=True)] if comparison.missing else []
    notices += [Notice(text=failure, alarming=True) for failure in comparison.failures]
    notices += [Notice(text=note)] if note else []
    notices += [Notice(text=f"Not the same load: {text}.") for text in comparison.differences]
    notices += [Notice(text="Simulated server. Results do not reflect real hardware.")] * comparison.simulated
    return notices


def _ordered(changes: Sequence[FigureChange]) -> list[FigureChange]:
    return sorted(changes, key=lambda change: ORDER.index(change.verdict))


def _percent(ratio: float) -> str:
    return f"{ratio - 1:+.1%}" if 0 < ratio < math.inf else "?"


def comparison_page(comparison: Comparison) -> str:
    """Return the page."""
    return page(
        "comparison.html.j2",
        comparison=comparison,
        notices=_notices(comparison),
        changes=_ordered(comparison.changes),
        percent=_percent,
        bar=interval_bar,
    )


def comparison_markdown(comparison: Comparison) -> str:
    """Return Markdown for a pull request."""
    worse, rest = verdict_counts(comparison)
    return page(
        "comparison.md.j2",
        comparison=comparison,
        worse=worse,
        rest=rest,
        missing=missing_note(comparison),
        note=basis_note(comparison),
        changes=_ordered(comparison.changes),
        percent=_percent,
    )
