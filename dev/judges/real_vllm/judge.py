"""Verdicts on whether two tools measured the same. Pure functions.

A busy machine changes the server's speed from run to run, and each tool sees it only through its own clock. Each metric
is therefore divided by the server's metric of the same requests, which leaves the tool's own contribution. Rounds alternate the tools, and
the ratios of the rounds yield an interval for the median without an assumption about the noise (the sign test's order statistics).
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

from dev.judges.planted import refuse_planted

SHARES: Final[Mapping[str, tuple[float, float | None]]] = {
    "ttft": (0.20, 0.10),
    "tpot": (0.05, 0.03),
    "itl": (0.08, 0.03),
    "e2el": (0.05, 0.03),
    "throughput": (0.05, None),
}
"""Relative difference allowed between two tools after division by the server's metric, and between our metric and the server's own
histogram of the same requests, which has no throughput. dev/docs/benchmark-internals.md#comparison-with-a-real-vllm lists the measured noise."""
MARKED: Final = "ttft"
"""Metric whose difference from the server may exceed its share if each result states it, because the network, a proxy and the event
loop add to it."""
CONFIDENCE: Final = 0.95
FEWEST_ROUNDS: Final = 6
"""Minimum rounds. With fewer, no interval of order statistics has 95 % confidence: 1 - 2 / 2^5 is 0.9375."""

RealVllmVerdict = Literal["agrees", "differs", "inconclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealVllmPart:
    """Result of one part: lines of Markdown, and the faults as sentences."""

    lines: Sequence[str]
    faults: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealVllmRun:
    """One run of a tool: its metrics, and the server's counts for it."""

    requests: int
    failed: int
    input_tokens: int
    output_tokens: int
    surplus_tokens: int = 0
    """Input tokens that the tool declares beyond the requested length."""
    figures: Mapping[str, float]
    """Means in ms, and `throughput` in output tokens per second."""
    server: Mapping[str, float]
    """Increases of the server's counters: `requests`, `input_tokens`, `output_tokens`, and `ttft`, `e2el` and `decode` in seconds."""
    command: str = ""
    """For our runs, the command that measures the same point with vLLM's tool."""
    invalid_reasons: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    """Notes of our result about the difference of its time to first token from the server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureComparison:
    """One metric of one point, over all rounds."""

    point: str
    figure: str
    ours: float
    """Median of our rounds, in ms or tokens per second."""
    theirs: float
    ours_of_server: float
    """Median of our rounds, divided by the server's metric; for the throughput the requests in flight."""
    theirs_of_server: float
    relative: "RatioInterval"
    """Ratio of our metric to theirs, each divided by the server's metric."""
    own: "RatioInterval | None" = None
    """Ratio of our metric to the server's own; None for the throughput, which the server does not measure."""
    unmarked: int = 0
    """Our runs that do not mark this metric as uncertain, although it is beyond the share of `own`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioInterval:
    """Median of the rounds' ratios, its interval, and the verdict."""

    median: float
    low: float
    high: float
    share: float
    verdict: RealVllmVerdict

    def __str__(self) -> str:
        """Return the interval as percentages of difference."""
        return f"{self.median - 1:+.1%} ({self.low - 1:+.1%} to {self.high - 1:+.1%})"

    @property
    def judged(self) -> str:
        """The interval with its verdict and the allowed difference."""
        return f"{self} | {self.verdict} ({self.share:.0%})"


def in_terms_of_the_server(run: RealVllmRun) -> dict[str, float]:
    """Return the run's metrics divided by the server's histogram values for the same requests.

    The throughput becomes the mean number of requests in flight, which equals rate x time in the system (Little's law).
    """
    server = run.server
    ttft_ms = server["ttft"] / server["requests"] * 1000
    e2el_ms = server["e2el"] / server["requests"] * 1000
    tpot_ms = server["decode"] / (server["output_tokens"] - server["requests"]) * 1000
    tokens = run.output_tokens / run.requests
    return {
        "ttft": run.figures["ttft"] / ttft_ms,
        "tpot": run.figures["tpot"] / tpot_ms,
        "itl": run.figures["itl"] / tpot_ms,
        "e2el": run.figures["e2el"] / e2el_ms,
        "throughput": run.figures["throughput"] / tokens * e2el_ms / 1000,
    }


def ratio_interval(ratios: Sequence[float], share: float) -> RatioInterval:
    """Return the interval of the median with CONFIDENCE, and whether it is within the share, outside it, or neither."""
    ordered = sorted(ratios)
    rank = _rank(len(ordered))
    low, high = (ordered[rank], ordered[-1 - rank]) if rank >= 0 else (0.0, math.inf)
    least, most = 1 / (1 + share), 1 + share
    verdict: RealVllmVerdict = "inconclusive"
    if least <= low and high <= most:
        verdict = "agrees"
    elif high < least or low > most:
        verdict = "differs"
    return RatioInterval(median=statistics.median(ordered), low=low, high=high, share=share, verdict=verdict)


def _rank(count: int) -> int:
    """Return the number of values that may be cut at each end, or -1 with too few values."""
    outside = accumulate(2 * math.comb(count, rank) / 2**count for rank in range(count // 2))
    return sum(share <= 1 - CONFIDENCE for share in outside) - 1


def compare_point(point: str, rounds: Sequence[tuple[RealVllmRun, RealVllmRun]]) -> list[FigureComparison]:
    """Compare our runs with theirs, by metric."""
    divided = [(in_terms_of_the_server(ours), in_terms_of_the_server(theirs)) for ours, theirs in rounds]
    compared: list[FigureComparison] = []
    for name, (share, own_share) in SHARES.items():
        own = [ours[name] for ours, _ in divided]
        limit = own_share or math.inf
        unmarked = [
            ratio
            for (ours, _), ratio in zip(rounds, own, strict=True)
            if not 1 / (1 + limit) <= ratio <= 1 + limit and not (name == MARKED and ours.marks)
        ]
        compared.append(
            FigureComparison(
                point=point,
                figure=name,
                ours=statistics.median(ours.figures[name] for ours, _ in rounds),
                theirs=statistics.median(theirs.figures[name] for _, theirs in rounds),
                ours_of_server=statistics.median(own),
                theirs_of_server=statistics.median(theirs[name] for _, theirs in divided),
                relative=ratio_interval([ours[name] / theirs[name] for ours, theirs in divided], share),
                own=None if own_share is None else ratio_interval(own, own_share),
                unmarked=len(unmarked),
            )
        )
    return compared


def count_faults(point: str, asked: Mapping[str, int], rounds: Sequence[tuple[RealVllmRun, RealVllmRun]]) -> list[str]:
    """Return every count of requests or tokens that differs from the requested one or the server's.

    `asked` contains `requests`, `input_tokens` and `output_tokens` of the whole point.
    """
    faults: list[str] = []
    for number, pair in enumerate(rounds, start=1):
        for tool, run in zip(("scripts.bench", "vllm bench serve"), pair, strict=True):
            where = f"{point}, round {number}, {tool}"
            if run.failed:
                faults.append(f"{where}: {run.failed} requests failed")
            for name, surplus in (("requests", 0), ("input_tokens", run.surplus_tokens), ("output_tokens", 0)):
                count, wanted = getattr(run, name), asked[name] + surplus
                what = f"{where}: {count} {name.replace('_', ' ')}, but"
                if count != wanted:
                    faults.append(f"{what} {wanted} were requested")
                if count != run.server[name]:
                    faults.append(f"{what} the server counted {run.server[name]:g}")
    return faults


def faults_of(compared: Sequence[FigureComparison]) -> list[str]:
    """Return differing metrics and inconclusive points, as sentences."""
    return [*_differing_metrics(compared), *_inconclusive_points(compared)]


def _differing_metrics(compared: Sequence[FigureComparison]) -> Iterator[str]:
    for row in compared:
        named = {" from vllm bench serve, relative to the server's metric": row.relative}
        if row.own is not None and row.unmarked:
            named[" from the server's own histogram"] = row.own
        for source, interval in named.items():
            if interval.verdict == "differs":
                yield f"{row.point}: {row.figure} differs by {interval}{source}, more than {interval.share:.0%}"


def _inconclusive_points(compared: Sequence[FigureComparison]) -> Iterator[str]:
    by_point: dict[str, list[FigureComparison]] = {}
    for row in compared:
        by_point.setdefault(row.point, []).append(row)
    for point, rows in by_point.items():
        if all(row.relative.verdict == "inconclusive" for row in rows):
            yield f"{point}: inconclusive because the noise exceeds every allowed difference. Use an idle machine or more --rounds."


def planted_lie() -> None:
    """Refuse a tool that measures each time 30 % too long, and one that loses a token of each round."""
    counts = {"requests": 10, "input_tokens": 1000, "output_tokens": 640}
    right = {"ttft": 20.0, "tpot": 3.0, "itl": 3.0, "e2el": 200.0, "throughput": 300.0}

    def run(factor: float) -> RealVllmRun:
        figures = {name: factor * figure for name, figure in right.items()}
        server = {**counts, "ttft": 0.2, "decode": 1.8, "e2el": 2.0}
        return RealVllmRun(requests=10, failed=0, input_tokens=1000, output_tokens=640, figures=figures, server=server)

    rounds = [(run(1.3), run(1.0))] * FEWEST_ROUNDS
    refuse_planted("times that are 30 % longer are the same", lambda: faults_of(compare_point("planted", rounds)))
    more = {**counts, "output_tokens": 641}
    refuse_planted("640 of 641 tokens are all", lambda: count_faults("planted", more, rounds))
