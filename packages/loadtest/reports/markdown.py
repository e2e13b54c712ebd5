"""Comparison of two sweeps as Markdown to paste: the verdict first, then one row per change."""

import math
from typing import Final

from loadtest.compare import CANNOT_TELL, SweepComparison, basis_note, missing_note, verdict_counts
from loadtest.reports.pages import page

ORDER: Final = ("worse", "better", CANNOT_TELL, "same")


def _percent(ratio: float) -> str:
    return f"{ratio - 1:+.1%}" if 0 < ratio < math.inf else "?"


def comparison_markdown(comparison: SweepComparison) -> str:
    """Return Markdown for a pull request."""
    worse, rest = verdict_counts(comparison)
    return page(
        "comparison.md.j2",
        comparison=comparison,
        worse=worse,
        rest=rest,
        missing=missing_note(comparison),
        note=basis_note(comparison),
        changes=sorted(comparison.changes, key=lambda change: ORDER.index(change.verdict)),
        percent=_percent,
    )
