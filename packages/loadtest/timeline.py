"""Time series of a point in at most BINS equal parts, small enough to store for every point."""

import math
import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

from loadtest.records import RequestRecord

BINS: Final = 100
LEAST_BIN_S: Final = 0.02
ROUNDING: Final = 1e-6


def point_timeline(records: Sequence[RequestRecord]) -> dict[str, Any] | None:
    """Return requests in flight, output tokens per second, median TTFT and failures of each bin; None without a request.

    Times are in seconds of the point, from `start_s`. A TTFT belongs to the bin of the intended send time, and is null in a bin
    without one. A failure belongs to the bin in which it ended. A request's tokens are spread evenly over its events.
    """
    if not records:
        return None
    start_s = min(record.intended_s for record in records)
    length_s = max(record.end_s for record in records) - start_s
    bin_s = max(LEAST_BIN_S, length_s / BINS)
    count = max(1, math.ceil(length_s / bin_s - ROUNDING))

    def bin_of(at_s: float) -> int:
        return min(count - 1, max(0, int((at_s - start_s) / bin_s)))

    tokens: defaultdict[int, float] = defaultdict(float)
    ttfts: defaultdict[int, list[float]] = defaultdict(list)
    failed: Counter[int] = Counter()
    for record in records:
        if record.error is not None:
            failed[bin_of(record.end_s)] += 1
            continue
        weight = record.output_tokens / len(record.times_s)
        for at_s in record.times_s:
            tokens[bin_of(at_s)] += weight
        ttfts[bin_of(record.intended_s)].append(record.ttft_s)
    edges = [start_s + number * bin_s for number in range(count + 1)]
    return {
        "start_s": round(start_s, 6),
        "bin_s": round(bin_s, 6),
        "in_flight": [round(busy_s / bin_s, 2) for busy_s in _busy(records, edges)],
        "output_tok_per_s": [round(tokens[number] / bin_s, 1) for number in range(count)],
        "median_ttft_ms": [
            round(statistics.median(ttfts[number]) * 1000, 2) if number in ttfts else None for number in range(count)
        ],
        "failed": [failed[number] for number in range(count)],
    }


def _busy(records: Sequence[RequestRecord], edges: Sequence[float]) -> list[float]:
    """Return the request-seconds in flight between adjacent edges, from send to end, including failed requests."""
    begun_s = _passed_s(sorted(record.sent_s for record in records), edges)
    over_s = _passed_s(sorted(record.end_s for record in records), edges)
    busy_s = [begun - over for begun, over in zip(begun_s, over_s, strict=True)]
    return [later - earlier for earlier, later in pairwise(busy_s)]


def _passed_s(ordered: Sequence[float], edges: Sequence[float]) -> list[float]:
    """Return, at each edge, the sum of the seconds since each earlier moment."""
    sums = [0.0, *accumulate(ordered)]
    return [edge * (before := bisect_left(ordered, edge)) - sums[before] for edge in edges]
