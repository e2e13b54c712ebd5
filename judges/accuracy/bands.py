"""Bands of `planning.speed.bands`, learned from the sweep points: measured over planned, by metric and class.

    python -m judges.accuracy.bands

prints the table in the format of gemma_serving/planning/speed/bands.py.

A band is learned from the points with split `band` only: constants were fitted to others, which are closer than a new server will be.
Servers differ more than the points of one server, so each source is left out once: the percentiles of the other sources are widened
until they hold nine of ten points of the source left out, on the average of the sources.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from gemma_serving.planning.speed.bands import HIGH_PERCENTILE, LOW_PERCENTILE, Figure, Kind, Spread
from tests.planning.corpus.sweeps import SweepPoint, all_points, comparisons

_SCALE: Final = 100
"""A band is rounded outwards to hundredths."""
_LEAST_POINTS: Final = 20
"""Minimum points of a class. With fewer, the assumed band stays, because learned ends are single points."""
_LEAST_SOURCES: Final = 3
"""Minimum sources of a class. With fewer, one left out leaves a single server to learn from."""
PROMISED: Final = 0.9
"""Share of the points of a source left out that a band must hold."""
_MOST_WEIGHT: Final = 10
"""Points from which on a source has full weight in that share. A server with many points counts as one with ten."""
_STEP: Final = 1.02
"""Factor by which one step widens a band, at both ends."""
_WIDEST: Final = 10.0

Ratios = Sequence[Sequence[float]]
"""Measured over planned of the points of each source."""


def learn_bands(points: Sequence[SweepPoint]) -> Mapping[tuple[Figure, Kind], Spread]:
    """Return the table of bands from the points that may set them, for classes with enough of them. Each contains the planned value itself."""
    return {
        key: spread_of_sources(sources)
        for key, sources in ratios(points).items()
        if sum(map(len, sources)) >= _LEAST_POINTS and len(sources) >= _LEAST_SOURCES
    }


def ratios(points: Sequence[SweepPoint]) -> Mapping[tuple[Figure, Kind], Ratios]:
    """Return the ratios of the points that may set a band, by metric and class and then by source."""
    found: dict[tuple[Figure, Kind], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in comparisons(points):
        if one.point.split == "band":
            found[one.figure, one.kind][one.point.source].append(one.ratio)
    return {key: list(sources.values()) for key, sources in sorted(found.items())}


def spread_of_sources(sources: Ratios) -> Spread:
    """Return the band of the ratios of each source: all percentiles, widened as the sources left out need it."""
    low, high = _ends(sources)
    factor = _factor(sources)
    return Spread(
        low=math.floor(low / factor * _SCALE) / _SCALE,
        high=math.ceil(high * factor * _SCALE) / _SCALE,
        points=sum(map(len, sources)),
        sources=len(sources),
    )


def left_out(sources: Ratios) -> Iterator[tuple[Sequence[float], Ratios]]:
    """Yield the ratios of each source and the others' ratios."""
    for number, own in enumerate(sources):
        yield own, [*sources[:number], *sources[number + 1 :]]


def held_when_left_out(sources: Ratios) -> Iterator[bool]:
    """Yield for each point whether the other sources' percentiles, widened as the band of all, hold it."""
    factor = _factor(sources)
    for own, others in left_out(sources):
        low, high = _ends(others)
        yield from (low / factor <= ratio <= high * factor for ratio in own)


def _ends(sources: Ratios) -> tuple[float, float]:
    """Return the percentiles of all ratios, and the planned value at least."""
    percentiles = statistics.quantiles(chain.from_iterable(sources), n=100, method="inclusive")
    return min(percentiles[LOW_PERCENTILE - 1], 1.0), max(percentiles[HIGH_PERCENTILE - 1], 1.0)


def _factor(sources: Ratios) -> float:
    """Return the least widening with which the others' percentiles hold enough of the sources left out, on average."""
    factor = 1.0
    weights = [min(len(own), _MOST_WEIGHT) for own in sources]
    while factor < _WIDEST and len(sources) > 1:
        shares = [_share_inside(own, *_ends(others), factor) for own, others in left_out(sources)]
        if sum(weight * share for weight, share in zip(weights, shares, strict=True)) / sum(weights) >= PROMISED:
            break
        factor *= _STEP
    return factor


def _share_inside(ratios: Sequence[float], low: float, high: float, factor: float) -> float:
    return sum(low / factor <= ratio <= high * factor for ratio in ratios) / len(ratios)


if __name__ == "__main__":
    for (figure, kind), spread in learn_bands(all_points()).items():
        print(f'    ("{figure}", "{kind}"): {spread},')
