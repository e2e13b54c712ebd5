"""Bands of `planning.speed.bands`, learned from the sweep points: measured over planned, by metric and class.

    python -m authors.accuracy.bands

prints the table in the format of planning/speed/bands.py.

A band is learned from the points with split `band` only: constants were fitted to others, which are closer than a new server will be.
Servers differ more than the points of one server, so each source is left out once: the percentiles of the other sources are widened
until they hold nine of ten points of the source left out, on the average of the sources.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal

from authors.accuracy.sweeps import SweepPoint, all_points, comparisons
from planning.speed.bands import BANDS, HIGH_PERCENTILE, LOW_PERCENTILE, Figure, Kind, Spread

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

_Ratios = Sequence[Sequence[float]]
"""Measured over planned of the points of each source."""
_Ends = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BandHits:
    """Number of points of one metric and class inside their band."""

    figure: Figure
    kind: Kind
    proof: Literal["left out", "known", "unseen"]
    """`left out`: by the band of the other sources. `known`: a known source whose points set nothing. `unseen`: nothing was set from it."""
    points: int
    inside: int


def learned(points: Sequence[SweepPoint]) -> Mapping[tuple[Figure, Kind], Spread]:
    """Return the table of bands from the points that may set them, for classes with enough of them. Each contains the planned value itself."""
    return {
        key: spread_of_sources(sources)
        for key, sources in _ratios(points, "band")
        if sum(map(len, sources)) >= _LEAST_POINTS and len(sources) >= _LEAST_SOURCES
    }


def hits(points: Sequence[SweepPoint]) -> tuple[BandHits, ...]:
    """Return how well each band holds on points that did not set it; assumed bands are not `left out`."""
    found: list[BandHits] = []
    for (figure, kind), sources in _ratios(points, "band"):
        if BANDS[figure, kind].points:
            inside = sum(_inside(own, _widened(_ends(others), _factor(others))) for own, others in _left_out(sources))
            count = sum(map(len, sources))
            found.append(BandHits(figure=figure, kind=kind, proof="left out", points=count, inside=inside))
    for proof in ("known", "unseen"):
        members = [point for point in points if point.is_unseen is (proof == "unseen")]
        for (figure, kind), sources in _ratios(members, "held-out"):
            ratios, band = list(chain.from_iterable(sources)), BANDS[figure, kind]
            inside = _inside(ratios, (band.low, band.high))
            found.append(BandHits(figure=figure, kind=kind, proof=proof, points=len(ratios), inside=inside))
    return tuple(found)


def _ratios(points: Sequence[SweepPoint], split: str) -> Iterator[tuple[tuple[Figure, Kind], _Ratios]]:
    """Yield each metric and class with the ratios of its points of a split, by source."""
    found: dict[tuple[Figure, Kind], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in comparisons(points):
        if one.point.split == split:
            found[one.figure, one.kind][one.point.source].append(one.ratio)
    for key, sources in sorted(found.items()):
        yield key, list(sources.values())


def spread_of_sources(sources: _Ratios) -> Spread:
    """Return the band of the ratios of each source: all percentiles, widened as the sources left out need it."""
    low, high = _widened(_ends(sources), _factor(sources))
    return Spread(
        low=math.floor(low * _SCALE) / _SCALE,
        high=math.ceil(high * _SCALE) / _SCALE,
        points=sum(map(len, sources)),
        sources=len(sources),
    )


def _ends(sources: _Ratios) -> _Ends:
    """Return the percentiles of all ratios, and the planned value at least."""
    percentiles = statistics.quantiles(chain.from_iterable(sources), n=100, method="inclusive")
    return min(percentiles[LOW_PERCENTILE - 1], 1.0), max(percentiles[HIGH_PERCENTILE - 1], 1.0)


def _widened(ends: _Ends, factor: float) -> _Ends:
    return ends[0] / factor, ends[1] * factor


def _inside(ratios: Sequence[float], ends: _Ends) -> int:
    return sum(ends[0] <= ratio <= ends[1] for ratio in ratios)


def _left_out(sources: _Ratios) -> Iterator[tuple[Sequence[float], _Ratios]]:
    """Yield the ratios of each source and the others' ratios."""
    for number, own in enumerate(sources):
        yield own, [*sources[:number], *sources[number + 1 :]]


def _factor(sources: _Ratios) -> float:
    """Return the least widening with which the others' percentiles hold enough of the sources left out, on average."""
    factor = 1.0
    weights = [min(len(own), _MOST_WEIGHT) for own in sources]
    while factor < _WIDEST and len(sources) > 1:
        shares = [_inside(own, _widened(_ends(others), factor)) / len(own) for own, others in _left_out(sources)]
        if sum(weight * share for weight, share in zip(weights, shares, strict=True)) / sum(weights) >= PROMISED:
            break
        factor *= _STEP
    return factor


if __name__ == "__main__":
    for (figure, kind), spread in learned(all_points()).items():
        print(f'    ("{figure}", "{kind}"): {spread},')
