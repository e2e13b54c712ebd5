"""Bands of `planning.speed.bands`, learned from the sweep points: measured over planned, by metric and class.

    python -m dev.judges.accuracy.bands

prints the table in the format of gemma_serving/planning/speed/bands.py, and fails if that file has another one.

A band is learned from the points with split `band` only: constants were fitted to others, which are closer than a new server will be.
Publishers differ more than the points of one, so each is left out once: the percentiles of the others are widened until nine of ten of the
points are inside the band that all other publishers give. A class with one publisher is widened as much as the class of the same metric with
several, or as any class has to be, and at least to the points of publishers that are not in the corpus.
"""

import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from dev.judges.planted import refuse_planted
from gemma_serving.planning.speed.bands import BANDS, Figure, Kind, Spread
from tests.planning.corpus.measured import load
from tests.planning.corpus.sweeps import ComparedPoint, SweepPoint, all_points, comparisons

_LOW_PERCENTILE: Final = 5
_HIGH_PERCENTILE: Final = 95
_STRANGERS: Final[Mapping[tuple[Figure, Kind], tuple[float, float]]] = {
    ("rate", "tpu"): (0.5, 1.08),
    ("ttft", "tpu"): (0.86, 1.06),
    ("tpot", "tpu"): (0.75, 1.26),
}
"""Least and greatest measured over planned of the publishers with at most four points each, which set no constant (2026-11-27).

Rates, of 0.50 to 0.72: Llama 3.1 8B on v6e-1 (analyticsrepo01/TPU), Qwen2.5 3B on v6e-4 (johnahull/llm-d-xks-gke). Others, of 0.85 to 1.08: Llama 3.3 70B
on v6e-8 (AI-Hypercomputer/tpu-recipes@c8cfe2f), Gemma 3 1B on v5e-1 (the keras.io guide of 2026-08-16).
Times: 26B-A4B on v6e-4 and v6e-8 (MG-Cafe/gemma4-benchmark@36c110f, @48239e5), Llama 3.3 70B, Gemma 3 1B."""
_SCALE: Final = 100
"""A band is rounded outwards to hundredths."""
_LEAST_POINTS: Final = 20
"""Minimum points of a class. With fewer, the assumed band stays, because learned ends are single points."""
PROMISED: Final = 0.9
"""Share of the points that the bands of all other publishers must hold."""
_STEP: Final = 1.02
"""Factor by which one step widens a band, at both ends."""
_WIDEST: Final = 10.0

Ratios = Sequence[Sequence[float]]
"""Measured over planned of the points of each publisher."""


def learn_bands(points: Sequence[SweepPoint]) -> Mapping[tuple[Figure, Kind], Spread]:
    """Return the table of bands from the points that may set them, for classes with enough of them. Each contains the planned value itself."""
    return bands_of(comparisons(points))


def bands_of(found: Sequence[ComparedPoint], without: str = "") -> Mapping[tuple[Figure, Kind], Spread]:
    """Return the table of bands from compared points; `without`: from those of all other publishers."""
    classes = ratios([one for one in found if publisher_of(one) != without])
    learned = {key: publishers for key, publishers in classes.items() if sum(map(len, publishers)) >= _LEAST_POINTS}
    factors = {key: widening(publishers) for key, publishers in learned.items() if len(publishers) > 1}
    return {
        key: _spread(
            publishers, factors.get(key) or _factor_of_others(key[0], factors), _STRANGERS.get(key, (1.0, 1.0))
        )
        for key, publishers in learned.items()
    }


def _factor_of_others(figure: Figure, factors: Mapping[tuple[Figure, Kind], float]) -> float:
    """Return the factor of a class with one publisher: that of the other classes of its metric, or the greatest if they have none."""
    same = [factor for (other, _), factor in factors.items() if other == figure]
    return max(same or factors.values(), default=1.0)


def publisher_of(one: ComparedPoint) -> str:
    """Return who published a point."""
    return load().sources[one.point.source].publisher


def ratios(compared: Sequence[ComparedPoint]) -> Mapping[tuple[Figure, Kind], Ratios]:
    """Return the ratios of the points that may set a band, by metric and class and then by publisher."""
    found: dict[tuple[Figure, Kind], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in compared:
        if one.point.split == "band":
            found[one.figure, one.kind][publisher_of(one)].append(one.explained_ratio)
    return {key: list(publishers.values()) for key, publishers in sorted(found.items())}


def _spread(publishers: Ratios, factor: float, strangers: tuple[float, float]) -> Spread:
    """Return the band of the ratios: all percentiles, widened by the factor, or as strangers have shown."""
    low, high = _ends(publishers)
    return Spread(
        low=math.floor(min(low / factor, strangers[0]) * _SCALE) / _SCALE,
        high=math.ceil(max(high * factor, strangers[1]) * _SCALE) / _SCALE,
        points=sum(map(len, publishers)),
        publishers=len(publishers),
    )


def left_out(publishers: Ratios) -> Iterator[tuple[Sequence[float], Ratios]]:
    """Yield the ratios of each publisher and the others' ratios."""
    for number, own in enumerate(publishers):
        yield own, [*publishers[:number], *publishers[number + 1 :]]


def held_when_left_out(publishers: Ratios, factor: float) -> Sequence[bool]:
    """Return for each point whether the other publishers' percentiles, widened by the factor, hold it."""
    held: list[bool] = []
    for own, others in left_out(publishers):
        low, high = _ends(others)
        held += [low / factor <= ratio <= high * factor for ratio in own]
    return held


def _ends(publishers: Ratios) -> tuple[float, float]:
    """Return the percentiles of all ratios, and the planned value at least."""
    percentiles = statistics.quantiles(chain.from_iterable(publishers), n=100, method="inclusive")
    return min(percentiles[_LOW_PERCENTILE - 1], 1.0), max(percentiles[_HIGH_PERCENTILE - 1], 1.0)


def widening(publishers: Ratios) -> float:
    """Return the least factor with which the others' percentiles hold enough of the points of the publishers left out; 1 with one publisher."""
    factor = 1.0
    while factor < _WIDEST and len(publishers) > 1:
        held = held_when_left_out(publishers, factor)
        if sum(held) / len(held) >= PROMISED:
            break
        factor *= _STEP
    return factor


def main() -> int:
    """Print the table. Return 1 if the planner's differs."""
    planted_lie()
    found = learn_bands(all_points())
    for (figure, kind), spread in found.items():
        print(f'    ("{figure}", "{kind}"): {spread},')
    return int(found != {key: spread for key, spread in BANDS.items() if spread.points})


def planted_lie() -> None:
    """Refuse the claim that the others' band holds a publisher who measured ten times as much."""
    publishers = ([1.0, 1.1, 0.9] * 10, [10.0] * 10)
    refuse_planted("ten times as much is in the band", lambda: not all(held_when_left_out(publishers, 1.0)))


if __name__ == "__main__":
    sys.exit(main())
