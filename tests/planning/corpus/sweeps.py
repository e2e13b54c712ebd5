"""Measured sweep points from sweeps.csv, with the planner's figures: output rate, TTFT and TPOT at N users and a context.

The clients of every sweep are closed loops: `users` requests are in flight, and a new one starts when one finishes.
"""

import csv
import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.question.types import Band
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.bands import Figure, Kind
from gemma_serving.planning.speed.serving import server_of, workload_plan
from tests.planning.corpus.measured import MeasurementError, load
from tests.planning.corpus.traffic import Benchmark

FILE: Final = Path(__file__).with_name("sweeps.csv")
FACTORS: Final[Mapping[Figure, float]] = {"rate": 1.5, "ttft": 2.0, "tpot": 1.5}
"""Tolerated factor between measured and predicted."""

REPEATING_DATE: Final = dt.date(2026, 7, 25)
"""Day of the sweep that draws the same prompts for each number of users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One measured point. The field names are the columns of the file."""

    deployment: str
    """An id of `[deployments]` in the corpus."""
    input_tokens: int
    output_tokens: int
    users: int
    requests: int | None = None
    """Requests of the point. With few, the ramp-down has more weight than in a long run."""
    failed: int
    output_tok_per_s: float
    ttft_ms: float | None = None
    """Median time to the first token, in milliseconds (mean if stated in `note`); empty if the source has none."""
    tpot_ms: float | None = None
    """Median time per output token of one request, in milliseconds (mean if stated in `note`)."""
    date: dt.date
    split: Literal["fit", "band", "held-out"]
    """`fit`: constants were fitted to points of this server. `band`: the bands are learned from it. `held-out`: it only checks both."""
    note: Literal["", "mean-tpot", "means", "mean-bursts", "prefix-cache", "prefix-cache-suspected"] = ""
    """`mean-tpot`, `means`: the time per output token, or both times, are means.
    `mean-bursts`: both are means of bursts: all users send one request at once, and the next one when all responses have ended.
    `prefix-cache`: the source shows that the prompts came from the prefix cache; `-suspected`: the source suspects it."""
    source: str
    """An id of `[sources]` in the corpus, which has the URL, the path and the commit."""

    @property
    def is_unseen(self) -> bool:
        """True if nothing in the planner was set from the point's source, so nothing may be fitted to it."""
        return load().sources[self.source].unseen

    @property
    def benchmark(self) -> Benchmark:
        """How the clients sent their requests."""
        if self.note == "mean-bursts":
            return Benchmark(rounds=1.0, is_mean=True)
        rounds = None if self.requests is None else self.requests / self.users
        return Benchmark(rounds=rounds, is_mean=self.note == "means")

    @property
    def is_one_wave(self) -> bool:
        """True if the clients sent little more than one request each.

        All prompts then arrive together and all responses end together, so the times describe a burst and not a closed loop.
        """
        return self.requests is not None and self.requests < 2 * self.users


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPoint:
    """One metric of one point."""

    point: SweepPoint
    figure: Figure
    kind: Kind
    measured: float
    band: Band
    unexplained: float
    """Part of a step that the plan cannot explain. It is in the band's slow end and in no prediction."""

    @property
    def predicted(self) -> float:
        """The planned value."""
        return self.band.typical

    @property
    def ratio(self) -> float:
        """Measured divided by predicted."""
        return self.measured / self.predicted

    @property
    def explained_ratio(self) -> float:
        """The same of the nearest value between the planned one and what it is with the unexplained part."""
        slower = 1 - self.unexplained
        if self.figure == "rate":
            return max(self.ratio, min(self.ratio / slower, 1.0))
        return min(self.ratio, max(self.ratio * slower, 1.0))

    @property
    def is_within(self) -> bool:
        """True if the factor between the two is tolerated, either way."""
        return 1 / FACTORS[self.figure] <= self.ratio <= FACTORS[self.figure]

    @property
    def is_in_band(self) -> bool:
        """True if the measured value is inside the band that the plan states, which is wider on a card with few sources."""
        return self.band.low <= self.measured <= self.band.high


@cache
def all_points() -> tuple[SweepPoint, ...]:
    """Return the points of the project. Raises MeasurementError."""
    return parse_points(FILE.read_text(encoding="utf-8"))


def parse_points(text: str) -> tuple[SweepPoint, ...]:
    """Return the points in a CSV text. Raises MeasurementError for the first invalid line."""
    rows = [{name: value for name, value in row.items() if value} for row in csv.DictReader(text.splitlines())]
    try:
        return TypeAdapter(tuple[SweepPoint, ...], config=ConfigDict(extra="forbid")).validate_python(rows)
    except ValidationError as error:
        first = error.errors()[0]
        number, name = first["loc"]
        raise MeasurementError(f"{FILE.name}: line {int(number) + 2}: {name}: {first['msg']}.") from None


@cache
def all_comparisons() -> tuple[ComparedPoint, ...]:
    """Return all metrics of the project's points."""
    return comparisons(all_points())


def comparisons(points: Sequence[SweepPoint]) -> tuple[ComparedPoint, ...]:
    """Return all metrics of the points whose prompts were computed, or came from the prefix cache as far as known."""
    return tuple(
        comparison
        for point, share in zip(points, cached_shares(points), strict=True)
        if not point.note.startswith("prefix-cache")
        for comparison in _figures(point, share)
    )


def cached_shares(points: Sequence[SweepPoint]) -> tuple[float, ...]:
    """Return for each point the part of its prompts in the prefix cache.

    The sweep of 2026-07-25 draws the same random prompts for each number of users, so the first prompts of a point repeat the previous
    point's, if the cache still holds them. The time to the first token shows it by falling with the second user. Points of
    other days used new prompts each time, or state it in `note`.
    """
    seen: dict[tuple[str, int], int] = defaultdict(lambda: 1)
    shares: list[float] = []
    for point in points:
        if point.date != REPEATING_DATE or point.requests is None:
            shares.append(0.0)
            continue
        key = (point.deployment, point.input_tokens)
        tokens = _subject(point.deployment, point.source).memory.kv_tokens
        room = tokens / (point.input_tokens + point.output_tokens) - point.users
        shares.append(min(1.0, seen[key] / point.requests) if seen[key] <= room else 0.0)
        seen[key] = max(seen[key], point.requests)
    return tuple(shares)


def _figures(point: SweepPoint, cached_share: float) -> Iterator[ComparedPoint]:
    subject = _subject(point.deployment, point.source)
    workload = Workload(
        input_tokens=point.input_tokens,
        output_tokens=point.output_tokens,
        users=point.users,
        prefix_share=cached_share,
    )
    server = server_of(subject.resolved, subject.memory, workload)
    answer = workload_plan(server, subject.cost.usd_per_hour)
    replicas = min(point.users, subject.resolved.dp)
    running = min(point.users / replicas, server.slots)
    ttft_s, tpot_s = point.benchmark.times(server, running)
    unexplained = answer.unexplained_share
    pairs: tuple[tuple[Figure, float | None, Band], ...] = (
        ("rate", point.output_tok_per_s, answer.output_tok_per_s),
        ("ttft", point.ttft_ms, server.band("ttft", ttft_s + answer.queue_s.typical, unexplained).times(1e3)),
        ("tpot", point.tpot_ms, server.band("tpot", tpot_s, unexplained).times(1e3)),
    )
    kind: Kind = "tpu" if subject.resolved.is_tpu else "gpu"
    for figure, measured, band in pairs:
        if measured is not None and (figure == "rate" or not point.is_one_wave):
            yield ComparedPoint(
                point=point, figure=figure, kind=kind, measured=measured, band=band, unexplained=unexplained
            )


@cache
def _subject(deployment: str, source: str) -> Subject:
    """Return a deployment with the vLLM version of a source: as stated, or of a boot of the source, or unknown and older."""
    found = load().deployments[deployment]
    if found.image_version is not None:
        return examine(found)
    boots = [boot.deployment for boot in load().boots if load().sources[source] in boot.sources]
    version = next((boot.image_version for boot in boots if boot.image_version is not None), "")
    return examine(found.changed(image=image_of_version(version)))
