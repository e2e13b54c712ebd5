"""Prediction errors and their distribution."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from authors.accuracy.corpus.measured import Boot, Figure, subject_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """A measured figure of a boot and its prediction."""

    boot: Boot
    figure: Figure
    predicted: float

    @property
    def error(self) -> float:
        """Relative error; positive if the prediction is too high."""
        return self.predicted / self.figure.measured - 1

    @property
    def is_within(self) -> bool:
        """True if the error is within the tolerance of its kind."""
        return abs(self.error) <= self.figure.kind.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSpread:
    """Distribution of errors."""

    count: int
    bias: float
    """Median with its sign."""
    median: float
    """Median of the absolute errors, like the figures below."""
    p90: float
    worst: float


def compared(boots: Iterable[Boot]) -> Iterator[ComparedFigure]:
    """Yield each figure with its prediction."""
    for boot in boots:
        if boot.figures:
            subject = subject_of(boot)
            for figure in boot.figures:
                yield ComparedFigure(boot=boot, figure=figure, predicted=figure.kind.read(subject))


def spread_of(errors: Sequence[float]) -> ErrorSpread:
    """Return the distribution of at least one relative error."""
    sizes = sorted(abs(error) for error in errors)
    return ErrorSpread(
        count=len(sizes),
        bias=statistics.median(errors),
        median=statistics.median(sizes),
        p90=percentile(sizes, 90),
        worst=sizes[-1],
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of the ordered values do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
