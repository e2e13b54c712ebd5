"""Bands of `planning.speed.bands`, learned from the sweep points: measured over planned, by metric and class.

    python -m authors.accuracy.bands

prints the table in the format of planning/speed/bands.py, and how many points are in their band.

A band is learned from the points with split `band` only: constants were fitted to others, which are closer than a new server will be.
Servers differ more than the points of one server, so each source is left out once: the percentiles of the other sources are widened
until they hold nine of ten points of the source left out, on the average of the sources.
"""

import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Final, Literal

from authors.accuracy.corpus.measured import load
from authors.accuracy.sweeps import REPEATING_DATE, SweepPoint, all_points
from planning.cost.subject import Subject, examine
from planning.question.workload import Workload
from planning.speed.bands import BANDS, HIGH_PERCENTILE, LOW_PERCENTILE, Figure, Kind, Spread, kind_of
from planning.speed.prefill import prompt_of
from planning.speed.serving import workload_plan

_DIGITS: Final = 2
_LEAST_POINTS: Final = 20
"""Minimum points of a class. With fewer, the assumed band stays, because learned ends are single points."""
_LEAST_SOURCES: Final = 3
"""Minimum sources of a class. With fewer, one left out leaves a single server to learn from."""
PROMISED: Final = 0.9
"""Share of the points of a source left out that a band must hold."""
_MOST_WEIGHT: Final = 10
"""Points from which on a source has full weight in that share: a server with many points counts as one with ten."""
_STEP: Final = 1.02
"""Factor by which a band is widened at a time, at both ends."""
_WIDEST: Final = 10.0

Proof = Literal["left out", "known", "unseen"]
"""`left out`: by the band of the other sources. `known`: a known source whose points set nothing. `unseen`: nothing was set from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandComparison:
    """One metric of one point."""

    point: SweepPoint
    figure: Figure
    kind: Kind
    measured: float
    planned: float

    @property
    def ratio(self) -> float:
        """Measured divided by planned."""
        return self.measured / self.planned


def comparisons(points: Sequence[SweepPoint]) -> tuple[BandComparison, ...]:
    """Return all metrics of the points whose prompts were computed, or came from the prefix cache as far as known."""
    return tuple(
        comparison
        for point, share in zip(points, cached_shares(points), strict=True)
        if point.is_comparable
        for comparison in _figures(point, share)
    )


def cached_shares(points: Sequence[SweepPoint]) -> tuple[float, ...]:
    """Return for each point the part of its prompts in the prefix cache.

    The sweep of 2026-07-25 draws the same random prompts for each number of users, so the first prompts of a point repeat those of the
    previous point, if the cache still holds them. The time to the first token shows it by falling with the second user. Points of
    other days used new prompts each time, or state it in `note`.
    """
    seen: dict[tuple[str, int], int] = defaultdict(lambda: 1)
    shares: list[float] = []
    for point in points:
        if point.date != REPEATING_DATE or point.requests is None:
            shares.append(0.0)
            continue
        key = (point.deployment, point.input_tokens)
        room = _subject_of(point).memory.kv_tokens / (point.input_tokens + point.output_tokens) - point.users
        shares.append(min(1.0, seen[key] / point.requests) if seen[key] <= room else 0.0)
        seen[key] = max(seen[key], point.requests)
    return tuple(shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class BandHits:
    """How many points of one metric and class are inside their band."""

    figure: Figure
    kind: Kind
    proof: Proof
    points: int
    inside: int


def learned(points: Sequence[SweepPoint]) -> Mapping[tuple[Figure, Kind], Spread]:
    """Return the table of bands from the points that may set them, for classes with enough of them. Each contains the planned value itself."""
    return {
        key: spread_of_sources(sources)
        for key, sources in sorted(_ratios(points, "band").items())
        if sum(map(len, sources.values())) >= _LEAST_POINTS and len(sources) >= _LEAST_SOURCES
    }


def hits(points: Sequence[SweepPoint]) -> tuple[BandHits, ...]:
    """Return how well each band holds on points that did not set it; assumed bands are not `left out`."""
    found: list[BandHits] = []
    for key, sources in sorted(_ratios(points, "band").items()):
        if BANDS[key].points:
            inside = [_inside(own, _widened(_ends(others), _factor(others))) for own, others in _each_left_out(sources)]
            found.append(_hits(key, "left out", list(sources.values()), sum(inside)))
    known = [point for point in points if not point.is_unseen]
    unseen = [point for point in points if point.is_unseen]
    proofs: tuple[tuple[Proof, Sequence[SweepPoint]], ...] = (("known", known), ("unseen", unseen))
    for proof, members in proofs:
        for key, sources in sorted(_ratios(members, "held-out").items()):
            ends = (BANDS[key].low, BANDS[key].high)
            found.append(_hits(key, proof, list(sources.values()), sum(_inside(own, ends) for own in sources.values())))
    return tuple(found)


def _hits(key: tuple[Figure, Kind], proof: Proof, sources: Sequence[Sequence[float]], inside: int) -> BandHits:
    figure, kind = key
    return BandHits(figure=figure, kind=kind, proof=proof, points=sum(map(len, sources)), inside=inside)


def _ratios(points: Sequence[SweepPoint], split: str) -> Mapping[tuple[Figure, Kind], Mapping[str, list[float]]]:
    """Return the ratios of the points of a split, by metric and class, and by source."""
    found: dict[tuple[Figure, Kind], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in comparisons(points):
        if one.point.split == split:
            found[one.figure, one.kind][one.point.source].append(one.ratio)
    return found


def is_one_wave(point: SweepPoint) -> bool:
    """Return whether the clients sent little more than one request each.

    All prompts then arrive together and all responses end together, so the times describe a burst and not a closed loop.
    """
    return point.requests is not None and point.requests < 2 * point.users


def share_within(found: Sequence[BandComparison], factor: float) -> float:
    """Return the share of comparisons whose ratio is at most `factor`, either way."""
    return sum(max(one.ratio, 1 / one.ratio) <= factor for one in found) / len(found)


def _figures(point: SweepPoint, cached_share: float) -> Iterator[BandComparison]:
    subject = _subject_of(point)
    workload = Workload(
        input_tokens=point.input_tokens,
        output_tokens=point.output_tokens,
        users=point.users,
        prefix_share=cached_share,
    )
    answer = workload_plan(subject.resolved, subject.memory, subject.cost.usd_per_hour, workload)
    pairs: tuple[tuple[Figure, float | None, float], ...] = (
        ("rate", point.output_tok_per_s, answer.output_tok_per_s.typical),
        ("ttft", point.ttft_ms, answer.ttft_s.typical * 1e3),
        ("tpot", point.tpot_ms, answer.tpot_s.typical * 1e3),
    )
    kind = kind_of(subject.resolved, prompt_of(subject.resolved, workload))
    for figure, measured, planned in pairs:
        if measured is not None and (figure == "rate" or not is_one_wave(point)):
            yield BandComparison(point=point, figure=figure, kind=kind, measured=measured, planned=planned)


def _subject_of(point: SweepPoint) -> Subject:
    return _subject(point.deployment, point.source)


@cache
def _subject(deployment: str, source: str) -> Subject:
    """Return a deployment with the vLLM version of a source: as stated, or of a boot of the source, or unknown and older."""
    found = load().deployments[deployment]
    if found.image_version is not None:
        return examine(found)
    boots = [boot.deployment for boot in load().boots if any(one is load().sources[source] for one in boot.sources)]
    version = next((boot.image_version for boot in boots if boot.image_version is not None), "")
    return examine(replace(found, image_version=version))


_Ends = tuple[float, float]


def spread_of_sources(sources: Mapping[str, Sequence[float]]) -> Spread:
    """Return the band of the ratios of each source: all percentiles, widened as the sources left out need it."""
    scale = 10**_DIGITS
    low, high = _widened(_ends(list(sources.values())), _factor(list(sources.values())))
    return Spread(
        low=math.floor(low * scale) / scale,
        high=math.ceil(high * scale) / scale,
        points=sum(map(len, sources.values())),
        sources=len(sources),
    )


def _ends(sources: Iterable[Sequence[float]]) -> _Ends:
    """Return the percentiles of all ratios, and the planned value at least."""
    ordered = sorted(chain.from_iterable(sources))
    return min(_percentile(ordered, LOW_PERCENTILE), 1.0), max(_percentile(ordered, HIGH_PERCENTILE), 1.0)


def _widened(ends: _Ends, factor: float) -> _Ends:
    return ends[0] / factor, ends[1] * factor


def _inside(ratios: Sequence[float], ends: _Ends) -> int:
    return sum(ends[0] <= ratio <= ends[1] for ratio in ratios)


def _each_left_out(sources: Mapping[str, Sequence[float]]) -> Iterator[tuple[Sequence[float], list[Sequence[float]]]]:
    """Yield the ratios of each source and those of the others."""
    for name, own in sources.items():
        yield own, [other for key, other in sources.items() if key != name]


def _factor(sources: Sequence[Sequence[float]]) -> float:
    """Return the least widening with which the others' percentiles hold enough of the sources left out, on average."""
    named = {str(number): own for number, own in enumerate(sources)}
    factor = 1.0
    while factor < _WIDEST and len(sources) > 1:
        weights = [min(len(own), _MOST_WEIGHT) for own in sources]
        shares = [_inside(own, _widened(_ends(others), factor)) / len(own) for own, others in _each_left_out(named)]
        if sum(map(operator.mul, weights, shares)) / sum(weights) >= PROMISED:
            break
        factor *= _STEP
    return factor


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values, linear between adjacent ones."""
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def main() -> None:
    """Print the table and the distribution of the points."""
    points = all_points()
    for (figure, kind), spread in learned(points).items():
        print(
            f'    ("{figure}", "{kind}"): Spread(low={spread.low}, high={spread.high}, points={spread.points}, sources={spread.sources}),'
        )
    for one in hits(points):
        print(f"{one.figure} {one.kind}, {one.proof}: {one.inside} of {one.points} points in the band")
    for split in ("fit", "band", "held-out"):
        for figure in ("rate", "tpot", "ttft"):
            found = [c for c in comparisons(points) if c.point.split == split and c.figure == figure]
            print(f"{split} {figure}: {len(found)} points, {share_within(found, 1.5):.0%} within 1.5 times")


if __name__ == "__main__":
    main()
