"""Histograms in Prometheus text."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class Histogram:
    """A cumulative histogram. The unit of its values is part of its name."""

    def __init__(self, name: str, description: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._description = description
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def lines(self, labels: str) -> Iterator[str]:
        """Yield the exposition lines of a metric with one series."""
        yield f"# HELP {self._name} {self._description}"
        yield f"# TYPE {self._name} histogram"
        yield from self.samples(labels)

    def samples(self, labels: str) -> Iterator[str]:
        """Yield the samples of this series."""
        name, total = self._name, 0
        for bound, number in zip((*map(_number, self._bounds), "+Inf"), self._counts, strict=True):
            total += number
            yield f'{name}_bucket{{{labels},le="{bound}"}} {float(total)}'
        yield f"{name}_count{{{labels}}} {float(total)}"
        yield f"{name}_sum{{{labels}}} {self._sum!r}"


def _number(value: float) -> str:
    return repr(float(value))
