"""Leave-one-out test: constants of `planning/data/overheads.py` that were fitted to runs, refitted without each of their sources.

`left_out_rows` predicts all rows of a known source with every constant refitted to the other sources.
"""

import contextlib
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from authors.accuracy.corpus.errors import ComparedFigure, compared
from authors.accuracy.corpus.measured import Boot, Figure, Measurements, ReadConstant, read_off, subject_of
from planning.data import overheads

_WIDEST: Final = 4.0
"""Range of the search, from a quarter of the constant to four times the constant."""
_STEPS: Final = 120
_NUDGE: Final = 1.1
"""Factor of a constant that shows whether a value depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutSource:
    """A constant without one of its sources, and the effect on the source's values."""

    constant: str
    value: float
    """Value in the planner."""
    source: str
    without: float | None
    """Value from the other sources, or None without another source."""
    figures: tuple[tuple[ComparedFigure, ComparedFigure | None], ...]
    """Each value of the source as planned, and as planned without the source."""


def leave_one_out(measurements: Measurements) -> tuple[LeftOutSource, ...]:
    """Return each constant without each of its sources. Constants that are no longer a single number are omitted."""
    return tuple(
        _without(constant, source, rows)
        for constant in measurements.constants
        if _is_number(constant)
        for rows in [read_off(constant, measurements)]
        for source in dict.fromkeys(boot.sources[0].citation for boot, _ in rows)
    )


Values = Mapping[str, Mapping[str, float | None]]
"""By source its constants and their values from the other sources; None without another source, and for tables."""


def left_out_rows(measurements: Measurements, without: Values) -> tuple[ComparedFigure, ...]:
    """Return the rows of known sources, each predicted with the constants refitted without the row's own source.

    A row is omitted if it depends on a constant that has no other source: nothing is left to predict it with.
    """
    return tuple(
        row
        for boot in measurements.boots
        if boot.evidence == "known"
        for row in _left_out(boot, without.get(boot.sources[0].citation, {}))
    )


def values_without(measurements: Measurements) -> Values:
    """Return the values of the constants without each of their sources."""
    found: dict[str, dict[str, float | None]] = {}
    for left in leave_one_out(measurements):
        found.setdefault(left.source, {})[left.constant] = left.without
    for constant in measurements.constants:
        if not _is_number(constant) and hasattr(overheads, constant.name):
            for boot, _ in read_off(constant, measurements):
                found.setdefault(boot.sources[0].citation, {})[constant.name] = None
    return found


def _left_out(boot: Boot, without: Mapping[str, float | None]) -> Sequence[ComparedFigure]:
    values = {name: value for name, value in without.items() if value is not None}
    only_own = [name for name, value in without.items() if value is None]
    with contextlib.ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(constant_set(name, value))
        return [row for row in compared((boot,)) if not any(_depends(row, name) for name in only_own)]


def _depends(row: ComparedFigure, name: str) -> bool:
    with nudged(name):
        other = _compared(row.boot, row.figure)
    return not math.isclose(other.predicted, row.predicted, rel_tol=1e-9)


def gone(measurements: Measurements) -> tuple[str, ...]:
    """Return the constants of the corpus that are no longer a single number in the planner."""
    return tuple(constant.name for constant in measurements.constants if not _is_number(constant))


def _is_number(constant: ReadConstant) -> bool:
    return isinstance(getattr(overheads, constant.name, None), int | float)


def _without(constant: ReadConstant, source: str, rows: Sequence[tuple[Boot, Figure]]) -> LeftOutSource:
    own = [(boot, figure) for boot, figure in rows if boot.sources[0].citation == source]
    others = [(boot, figure) for boot, figure in rows if boot.sources[0].citation != source]
    value = float(getattr(overheads, constant.name))
    without = _fitted(constant.name, value, others) if others else None
    return LeftOutSource(
        constant=constant.name,
        value=value,
        source=source,
        without=without,
        figures=tuple(
            (_compared(boot, figure), None if without is None else _with(constant.name, without, boot, figure))
            for boot, figure in own
        ),
    )


def _fitted(name: str, value: float, rows: Sequence[tuple[Boot, Figure]]) -> float:
    """Return the best-fitting value of the constant, with the least sum of the logarithms of the factors."""
    candidates = [value * _WIDEST ** (step / _STEPS) for step in range(-_STEPS, _STEPS + 1)]
    return min(candidates, key=lambda candidate: sum(_misfit(name, candidate, boot, figure) for boot, figure in rows))


def _misfit(name: str, value: float, boot: Boot, figure: Figure) -> float:
    return abs(math.log(_with(name, value, boot, figure).predicted / figure.measured))


def _with(name: str, value: float, boot: Boot, figure: Figure) -> ComparedFigure:
    with constant_set(name, value):
        return _compared(boot, figure)


def _compared(boot: Boot, figure: Figure) -> ComparedFigure:
    return ComparedFigure(boot=boot, figure=figure, predicted=figure.kind.read(subject_of(boot)))


def nudged(name: str) -> contextlib.AbstractContextManager[None]:
    """Change a constant, or all numbers of a table, to see which predictions depend on it."""
    return constant_set(name, _nudged(getattr(overheads, name)))


def _nudged(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _nudged(one) for key, one in cast("Mapping[object, object]", value).items()}
    if isinstance(value, tuple):
        return tuple(_nudged(one) for one in cast("tuple[object, ...]", value))
    return value * _NUDGE if isinstance(value, int | float) else value


@contextlib.contextmanager
def constant_set(name: str, value: object) -> Generator[None]:
    """Make the planner use another value of a constant."""
    before = getattr(overheads, name)
    setattr(overheads, name, value)
    try:
        yield
    finally:
        setattr(overheads, name, before)
