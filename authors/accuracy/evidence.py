"""The classes of predictions: shares within the tolerance, by what the planner knew of their source.

docs/authors/accuracy.md describes the classes. A row is used for a constant or for a proof, never for both: `corpus.measured` refuses it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from authors.accuracy.corpus.compared import ComparedFigure, JudgedBoot, compared, judged, started
from authors.accuracy.corpus.measured import KINDS, Measurements
from authors.accuracy.sweeps import all_points, comparisons

CLASSES: Final = ("first sight", "unseen", "known")
_SWEEPS: Final = (
    ("output rate at N users", "rate", 1.5),
    ("time to first token at N users", "ttft", 2.0),
    ("time per output token at N users", "tpot", 1.5),
)
"""Figures of the sweeps, with the factor that is tolerated."""


def evidence_rows(measurements: Measurements) -> list[Sequence[str]]:
    """Return the page's first table: verdicts, each figure of the boots, and rates and times of the sweeps."""
    by_class = rows_by_class(measurements)
    rows = _verdict_rows(measurements)
    for kind in KINDS.values():
        own = {name: [row for row in members if row.figure.kind is kind] for name, members in by_class.items()}
        if any(own.values()):
            shares = [share(sum(row.is_within for row in own[name]), len(own[name])) for name in CLASSES]
            rows.append((kind.name, f"{kind.tolerance:.0%}", *shares))
    return [*rows, *_sweep_rows(measurements)]


def share(within: int, count: int) -> str:
    """Return a number of rows within their tolerance as text; empty without rows."""
    return f"{within} of {count} ({within / count:.0%})" if count else ""


def rows_by_class(measurements: Measurements) -> Mapping[str, Sequence[ComparedFigure]]:
    """Return all figures with their predictions, by class."""
    return {
        "first sight": first_sight(measurements),
        "unseen": list(compared(boot for boot in measurements.boots if boot.evidence == "unseen")),
        "known": list(compared(boot for boot in measurements.boots if boot.evidence == "known")),
    }


def first_sight(measurements: Measurements) -> Sequence[ComparedFigure]:
    """Return the figures whose prediction was recorded when they were first read."""
    return [
        ComparedFigure(boot=boot, figure=figure, predicted=figure.first)
        for boot in measurements.boots
        for figure in boot.figures
        if figure.first is not None
    ]


def _verdict_rows(measurements: Measurements) -> list[Sequence[str]]:
    counted = [row for boot in started(measurements.boots) if (row := judged(boot)).is_counted]
    rows: list[Sequence[str]] = []
    for title, died in (("verdict, servers that crashed", True), ("verdict, servers that ran", False)):
        own = [row for row in counted if row.boot.died is died]
        first = [row.boot.first_right for row in own if row.boot.first_right is not None]
        rows.append((title, "", share(sum(first), len(first)), _right(own, "unseen"), _right(own, "known")))
    return rows


def _right(rows: Sequence[JudgedBoot], name: str) -> str:
    own = [row.is_right for row in rows if row.boot.evidence == name]
    return share(sum(own), len(own))


def _sweep_rows(measurements: Measurements) -> list[Sequence[str]]:
    by_class = [comparisons([one for one in all_points() if one.is_unseen is unseen]) for unseen in (True, False)]
    rows: list[Sequence[str]] = []
    for title, figure, factor in _SWEEPS:
        first = [source.first_points.get(figure, (0, 0)) for source in measurements.sources.values()]
        shares = [share(sum(within for within, _ in first), sum(count for _, count in first))]
        for members in by_class:
            close = [one.factor <= factor for one in members if one.figure == figure]
            shares.append(share(sum(close), len(close)))
        rows.append((title, f"{factor:g} times", *shares))
    return rows
