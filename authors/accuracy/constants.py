"""Leave-one-out test: constants of `planning/data/overheads.py` that were fitted to runs, refitted without each of their sources."""

import contextlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from authors.accuracy.corpus.compared import ComparedFigure, compared
from authors.accuracy.corpus.measured import Boot, Figure, Measurements, read_off, subject_of
from authors.accuracy.sweeps import ComparedPoint
from planning.data import overheads

Row = TypeVar("Row", ComparedFigure, ComparedPoint)

_WIDEST: Final = 4.0
"""Range of the search, from a quarter of the constant to four times the constant."""
_STEPS: Final = 120
_NUDGE: Final = 1.1
"""Factor of a constant that shows whether a value depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refit:
    """A constant without one of its sources."""

    constant: str
    source: str
    rows: tuple[tuple[Boot, Figure], ...]
    """Rows of the source that the constant was fitted to."""
    value: float | None
    """The value that fits the other sources; None without another source, and for a table."""


def refits(measurements: Measurements) -> tuple[Refit, ...]:
    """Return each constant without each of its sources. Constants that the planner no longer has are omitted."""
    found: list[Refit] = []
    for constant in measurements.constants:
        rows = read_off(constant, measurements) if hasattr(overheads, constant.name) else ()
        for source in dict.fromkeys(boot.sources[0].citation for boot, _ in rows):
            own = tuple(row for row in rows if row[0].sources[0].citation == source)
            others = [row for row in rows if row not in own]
            value = _fitted(constant.name, others) if others and is_number(constant.name) else None
            found.append(Refit(constant=constant.name, source=source, rows=own, value=value))
    return tuple(found)


def left_out(source: str, found: Sequence[Refit], predict: Callable[[], Sequence[Row]]) -> list[Row]:
    """Return predictions of rows of a source with the constants refitted to the other sources.

    A row is omitted if it depends on a constant that has no other source: nothing is left to predict it with.
    """
    own = [refit for refit in found if refit.source == source]
    with constants_set({refit.constant: refit.value for refit in own if refit.value is not None}):
        rows = predict()
        others: list[Sequence[Row]] = []
        for name in (refit.constant for refit in own if refit.value is None):
            with constants_set({name: _nudged(getattr(overheads, name))}):
                others.append(predict())
    return [
        row
        for number, row in enumerate(rows)
        if all(math.isclose(other[number].predicted, row.predicted, rel_tol=1e-9) for other in others)
    ]


def left_out_rows(measurements: Measurements, found: Sequence[Refit]) -> list[ComparedFigure]:
    """Return the rows of known sources, each predicted with the constants refitted without the row's own source."""
    return [
        row
        for boot in measurements.boots
        if boot.evidence == "known"
        for row in left_out(boot.sources[0].citation, found, lambda boot=boot: list(compared((boot,))))
    ]


def is_number(name: str) -> bool:
    """Return whether a constant is a single number in the planner."""
    return isinstance(getattr(overheads, name, None), int | float)


def _fitted(name: str, rows: Sequence[tuple[Boot, Figure]]) -> float:
    """Return the best-fitting value of the constant, with the least sum of the logarithms of the factors."""
    value = float(getattr(overheads, name))

    def misfit(candidate: float) -> float:
        found = (predicted(name, candidate, boot, figure) / figure.measured for boot, figure in rows)
        return sum(abs(math.log(factor)) for factor in found)

    return min((value * _WIDEST ** (step / _STEPS) for step in range(-_STEPS, _STEPS + 1)), key=misfit)


def predicted(name: str, value: float, boot: Boot, figure: Figure) -> float:
    """Return the prediction of a figure with another value of a constant."""
    with constants_set({name: value}):
        return figure.kind.read(subject_of(boot))


def _nudged(value: object) -> object:
    """Return a changed constant, or a table with all of its numbers changed."""
    if isinstance(value, Mapping):
        return {key: _nudged(one) for key, one in cast("Mapping[object, object]", value).items()}
    if isinstance(value, tuple):
        return tuple(_nudged(one) for one in cast("tuple[object, ...]", value))
    return value * _NUDGE if isinstance(value, int | float) else value


@contextlib.contextmanager
def constants_set(values: Mapping[str, object]) -> Generator[None]:
    """Make the planner use other values of constants."""
    before = {name: getattr(overheads, name) for name in values}
    for name, value in values.items():
        setattr(overheads, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(overheads, name, value)
