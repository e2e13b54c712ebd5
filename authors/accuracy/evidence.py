"""The classes of predictions on the page.

`first sight`: recorded when the row was read, before anything could be set from it. `unseen`: by today's planner, for sources from which nothing
was set. `left out`: for known sources, with every constant refitted without the row's source. `known`: for known sources, as planned.
A row is used for a constant or for a proof, never for both, so a row that a constant names cannot be unseen.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from authors.accuracy.bands import BandComparison, comparisons
from authors.accuracy.constants import Values, constant_set, left_out_rows, nudged, values_without
from authors.accuracy.corpus.errors import ComparedFigure, compared
from authors.accuracy.corpus.measured import KINDS, Measurements, read_off
from authors.accuracy.corpus.verdicts import JudgedBoot, judged, started
from authors.accuracy.sweeps import SweepPoint, load_points, load_unseen_points

RATE_FACTOR: Final = 1.5
TIME_FACTOR: Final = 2.0

Class = Literal["first sight", "unseen", "left out", "known"]
CLASSES: Final[tuple[Class, ...]] = ("first sight", "unseen", "left out", "known")


class EvidenceError(ValueError):
    """A row is used both for a constant and for a proof. The message names both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Number of rows within their tolerance."""

    within: int
    count: int

    def __str__(self) -> str:
        """Return the share as text; empty without rows."""
        return f"{self.within} of {self.count} ({self.within / self.count:.0%})" if self.count else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceLine:
    """One line of the page's first table."""

    figure: str
    tolerance: str
    shares: Mapping[Class, Share]
    """A class without rows, or to which the figure does not apply, is missing."""


def evidence_lines(measurements: Measurements) -> Sequence[EvidenceLine]:
    """Return the first table: verdicts, each figure of the boots, and rates and times of the sweeps. Raises EvidenceError."""
    without = values_without(measurements)
    rows = rows_by_class(measurements, without)
    figures = [
        EvidenceLine(
            figure=kind.name,
            tolerance=f"{kind.tolerance:.0%}",
            shares={
                name: Share(within=sum(row.is_within for row in own), count=len(own))
                for name, members in rows.items()
                if (own := [row for row in members if row.figure.kind is kind])
            },
        )
        for kind in KINDS.values()
    ]
    return [
        *_verdict_lines(measurements),
        *(line for line in figures if line.shares),
        *_sweep_lines(measurements, without),
    ]


def rows_by_class(measurements: Measurements, without: Values) -> Mapping[Class, Sequence[ComparedFigure]]:
    """Return all figures with their predictions, by class. Raises EvidenceError."""
    check_proofs(measurements)
    of = {name: [boot for boot in measurements.boots if boot.evidence == name] for name in ("unseen", "known")}
    return {
        "first sight": first_sight(measurements),
        "unseen": list(compared(of["unseen"])),
        "left out": left_out_rows(measurements, without),
        "known": list(compared(of["known"])),
    }


def first_sight(measurements: Measurements) -> Sequence[ComparedFigure]:
    """Return the figures whose prediction was recorded when they were first read."""
    return [
        ComparedFigure(boot=boot, figure=figure, predicted=figure.first)
        for boot in measurements.boots
        for figure in boot.figures
        if figure.first is not None
    ]


def check_proofs(measurements: Measurements) -> None:
    """Raise EvidenceError if a constant names a row, or another boot of its deployment, of an unseen source."""
    fitted = {
        (boot.deployment_id, figure.key): constant.name
        for constant in measurements.constants
        for boot, figure in read_off(constant, measurements)
    }
    for boot in measurements.boots:
        for figure in boot.figures:
            constant = fitted.get((boot.deployment_id, figure.key))
            if boot.evidence == "unseen" and constant is not None:
                raise EvidenceError(
                    f"{boot.id} {figure.key} counts as unseen, but {constant} was fitted to a run of the same deployment. "
                    "Remove `unseen = true` from its source."
                )


def _verdict_lines(measurements: Measurements) -> Sequence[EvidenceLine]:
    rows = [row for boot in started(measurements.boots) if (row := judged(boot)).is_counted]
    groups = {
        "verdict, servers that crashed": [row for row in rows if row.boot.died],
        "verdict, servers that ran": [row for row in rows if not row.boot.died],
    }
    return [
        EvidenceLine(
            figure=title,
            tolerance="",
            shares={"first sight": _first_right(own), "unseen": _right(own, "unseen"), "known": _right(own, "known")},
        )
        for title, own in groups.items()
    ]


def _first_right(rows: Sequence[JudgedBoot]) -> Share:
    own = [row.boot.first_right for row in rows if row.boot.first_right is not None]
    return Share(within=sum(own), count=len(own))


def _right(rows: Sequence[JudgedBoot], name: str) -> Share:
    own = [row for row in rows if row.boot.evidence == name]
    return Share(within=sum(row.is_right for row in own), count=len(own))


def _sweep_lines(measurements: Measurements, without: Values) -> Sequence[EvidenceLine]:
    found: Mapping[Class, Sequence[BandComparison]] = {
        "unseen": comparisons(load_unseen_points()),
        "left out": _left_out_points(measurements, without),
        "known": comparisons(load_points()),
    }
    kinds = (
        ("output rate at N users", "rate", RATE_FACTOR),
        ("time to first token at N users", "ttft", TIME_FACTOR),
        ("time per output token at N users", "tpot", RATE_FACTOR),
    )
    return [
        EvidenceLine(
            figure=title,
            tolerance=f"{factor:g} times",
            shares={
                "first sight": _first_points(measurements, figure),
                **{
                    name: Share(within=sum(max(one.ratio, 1 / one.ratio) <= factor for one in own), count=len(own))
                    for name, members in found.items()
                    if (own := [one for one in members if one.figure == figure])
                },
            },
        )
        for title, figure, factor in kinds
    ]


def _first_points(measurements: Measurements, figure: str) -> Share:
    found = [source.first_points.get(figure, (0, 0)) for source in measurements.sources.values()]
    return Share(within=sum(within for within, _ in found), count=sum(count for _, count in found))


def _left_out_points(measurements: Measurements, without: Values) -> Sequence[BandComparison]:
    """Return the points of known sources, planned with the constants refitted without their source, as `left_out_rows` does."""
    points = load_points()
    found: list[BandComparison] = []
    for source in dict.fromkeys(point.source for point in points):
        values = without.get(measurements.sources[source].citation, {})
        own = [point for point in points if point.source == source]
        with contextlib.ExitStack() as stack:
            for name, value in values.items():
                if value is not None:
                    stack.enter_context(constant_set(name, value))
            rows = comparisons(own)
            others = [_nudged(name, own) for name, value in values.items() if value is None]
        found += [
            row for number, row in enumerate(rows) if all(other[number].planned == row.planned for other in others)
        ]
    return found


def _nudged(name: str, points: Sequence[SweepPoint]) -> Sequence[BandComparison]:
    with nudged(name):
        return comparisons(points)
