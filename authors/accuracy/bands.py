"""Bands of `planning.speed.bands`, learned from the sweep points: measured over planned, by metric and class.

    python -m authors.accuracy.bands

prints the table in the format of planning/speed/bands.py, and the number of points within 1.5 times, separately for fit and held-out points.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from authors.accuracy.sweeps import SweepPoint, load_points
from planning.cost.subject import Subject, examine
from planning.question.workload import Workload
from planning.speed.bands import HIGH_PERCENTILE, LOW_PERCENTILE, Figure, Kind, Spread, kind_of
from planning.speed.prefill import prompt_of
from planning.speed.serving import workload_plan
from scripts.plan.corpus.measured import load

_DIGITS: Final = 2
_LEAST_POINTS: Final = 20
"""Minimum points of a class. With fewer, the assumed band stays, because learned ends are single points."""


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
        if point.split != "fit" or point.requests is None:
            shares.append(0.0)
            continue
        key = (point.deployment, point.input_tokens)
        room = _subject_of(point).memory.kv_tokens / (point.input_tokens + point.output_tokens) - point.users
        shares.append(min(1.0, seen[key] / point.requests) if seen[key] <= room else 0.0)
        seen[key] = max(seen[key], point.requests)
    return tuple(shares)


def learned(points: Sequence[SweepPoint]) -> Mapping[tuple[Figure, Kind], Spread]:
    """Return the table of bands from the points, for classes with enough of them. Each contains the planned value itself."""
    ratios: dict[tuple[Figure, Kind], list[float]] = defaultdict(list)
    for comparison in comparisons(points):
        ratios[comparison.figure, comparison.kind].append(comparison.ratio)
    return {key: _spread(sorted(values)) for key, values in sorted(ratios.items()) if len(values) >= _LEAST_POINTS}


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
    return _subject(point.deployment)


@cache
def _subject(deployment: str) -> Subject:
    return examine(load().deployments[deployment])


def _spread(ratios: Sequence[float]) -> Spread:
    scale = 10**_DIGITS
    low = math.floor(_percentile(ratios, LOW_PERCENTILE) * scale) / scale
    high = math.ceil(_percentile(ratios, HIGH_PERCENTILE) * scale) / scale
    return Spread(low=min(low, 1.0), high=max(high, 1.0), points=len(ratios))


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values, linear between adjacent ones."""
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def main() -> None:
    """Print the table and the distribution of the points."""
    points = load_points()
    for (figure, kind), spread in learned(points).items():
        print(f'    ("{figure}", "{kind}"): Spread(low={spread.low}, high={spread.high}, points={spread.points}),')
    for split in ("fit", "held-out"):
        for figure in ("rate", "tpot", "ttft"):
            found = [c for c in comparisons(points) if c.point.split == split and c.figure == figure]
            print(f"{split} {figure}: {len(found)} points, {share_within(found, 1.5):.0%} within 1.5 times")


if __name__ == "__main__":
    main()
