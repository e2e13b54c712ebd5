"""Notes about points: one line per reason, with the affected points."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadtest.measure import failure_reason, point_text, points_text
from loadtest.reports.table import Result

FIGURE: Final = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]*\w)")
"""A number in a text that is not part of a name."""
ALL_FROM: Final = 2
MOST_NAMES: Final = 4
"""Points that a line names. A page shows more on demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedNote:
    """A reason and the names of its points."""

    text: str
    points: tuple[str, ...]
    of: int
    """Points of the sweep."""

    @property
    def count(self) -> str:
        """Number of affected points, as text."""
        if len(self.points) == self.of >= ALL_FROM:
            return f"all {self.of} points"
        return points_text(len(self.points))

    @property
    def line(self) -> str:
        """The reason with its first points, on one line."""
        more = len(self.points) - MOST_NAMES
        shown = [*self.points[:MOST_NAMES], *([f"{more} more"] if more > 0 else [])]
        names = "" if len(self.points) == self.of >= ALL_FROM else f": {'; '.join(shown)}"
        return f"{self.text} ({self.count}{names})"


def group_notes(pairs: Iterable[tuple[str, str]], of: int) -> list[GroupedNote]:
    """Return one note per reason from pairs of point and text. Differing numbers become a range from the lowest to the highest."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for point, text in pairs:
        groups.setdefault(FIGURE.sub("#", text), []).append((point, text))
    return [
        GroupedNote(
            text=_merged([text for _, text in found]), points=tuple(dict.fromkeys(point for point, _ in found)), of=of
        )
        for found in groups.values()
    ]


def _merged(texts: Sequence[str]) -> str:
    """Return one text for texts that differ only in their numbers."""
    columns = iter([_range(column) for column in zip(*(FIGURE.findall(text) for text in texts), strict=True)])
    return FIGURE.sub(lambda _found: next(columns), texts[0])


def _range(figures: Sequence[str]) -> str:
    ordered = sorted(set(figures), key=lambda figure: float(figure.replace(",", "")))
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def invalid_points(results: Sequence[Result], most: float) -> list[Result]:
    """Return the points whose metrics must not be used: invalid ones, and ones whose failure rate exceeds `most`."""
    return [result for result in results if not result["valid"] or failure_reason(result, most)]


def invalid_notes(results: Sequence[Result], most: float) -> list[GroupedNote]:
    """Return why points are not valid."""
    return group_notes(
        (
            (point_text(result["point"]), reason)
            for result in invalid_points(results, most)
            for reason in dict.fromkeys([failure_reason(result, most), *result["invalid_reasons"]])
            if reason is not None
        ),
        len(results),
    )


def failed_notes(results: Sequence[Result]) -> list[GroupedNote]:
    """Return the failures of all points by kind, with the message of the first."""
    kinds: dict[str, list[Result]] = {}
    for result in results:
        for kind in result["errors_by_kind"]:
            kinds.setdefault(kind, []).append(result)
    return [
        GroupedNote(
            text=f"{sum(r['errors_by_kind'][kind] for r in found):,} x {kind}{_example(found[0], kind)}",
            points=tuple(point_text(result["point"]) for result in found),
            of=len(results),
        )
        for kind, found in kinds.items()
    ]


def _example(result: Mapping[str, Any], kind: str) -> str:
    message = result["error_examples"].get(kind)
    return f", for example: {message}" if message else ""


def point_notes(results: Sequence[Result]) -> list[GroupedNote]:
    """Return all other notes about points."""
    return group_notes(
        [(point_text(result["point"]), str(note)) for result in results for note in result["notes"]], len(results)
    )
