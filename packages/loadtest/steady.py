"""Steady part of a point, its metrics, and whether the server kept up with an open loop.

The first responses of a point come from an idle server and the last from an emptying one. The steady window between them starts
when the load is full and ends when the last request is sent. The metrics of the whole point keep the definitions of
`vllm bench serve`; the metrics of the window are listed in addition.
"""

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadtest.records import RequestRecord
from loadtest.traffic.points import Point

FEWEST_REQUESTS: Final = 4
"""Minimum requests in a window, and in each of its parts when trends are evaluated."""
EARLY_REQUESTS: Final = 8
"""Open-loop requests whose response times determine when the load is full."""
PARTS: Final = 8
"""Parts of a window. A trend uses the medians of the parts, so single late responses do not matter."""
SAMPLES: Final = 64
"""Times at which the requests in flight are counted."""
GROWTH: Final = 0.05
"""An open loop is over-saturated if requests in flight grow by more than this share of the rate, and latency grows by more than
this many seconds per second. At a load 5 % above the capacity both do; below it neither keeps growing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyWindow:
    """Steady part of a point, in seconds from its start."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Length in seconds."""
        return self.end_s - self.start_s

    def holds(self, at_s: float) -> bool:
        """Return whether a time is within the window."""
        return self.start_s <= at_s <= self.end_s

    def part_of(self, start_s: float, end_s: float) -> float:
        """Return the seconds of a span that are within the window."""
        return max(0.0, min(end_s, self.end_s) - max(start_s, self.start_s))


def steady_window(records: Sequence[RequestRecord], point: Point) -> SteadyWindow | None:
    """Return the steady part of a point, or None if the point is too short.

    A closed loop is full when as many requests have finished as it has slots, which is the end of its first wave. An open loop is
    full after the time of its first responses. Both windows end when the last request is sent.
    """
    if len(records) < FEWEST_REQUESTS:
        return None
    if point.concurrency is not None:
        ends = sorted(record.end_s for record in records)
        start_s = ends[min(point.concurrency, len(ends)) - 1]
    else:
        first = sorted(records, key=lambda record: record.intended_s)[:EARLY_REQUESTS]
        start_s = first[0].intended_s + statistics.median(record.end_s - record.intended_s for record in first)
    window = SteadyWindow(start_s=start_s, end_s=max(record.sent_s for record in records))
    inside = sum(window.holds(record.sent_s) for record in records)
    return window if window.length_s > 0 and inside >= FEWEST_REQUESTS else None


def mean_in_flight(records: Sequence[RequestRecord], window: SteadyWindow) -> float:
    """Return the mean number of requests in flight, from send to end, including failed ones."""
    return sum(window.part_of(record.sent_s, record.end_s) for record in records) / window.length_s


def tokens_in(record: RequestRecord, window: SteadyWindow) -> float:
    """Return the output tokens that arrived in the window. A request's tokens are spread evenly over its events."""
    times = record.times_s
    return (bisect_left(times, window.end_s) - bisect_left(times, window.start_s)) / len(times) * record.output_tokens


def steady_figures(records: Sequence[RequestRecord], window: SteadyWindow | None) -> dict[str, Any] | None:
    """Return the metrics of the steady window, or None without one.

    Rates count arrivals in the window. Latencies are of the requests sent in it.
    """
    if window is None:
        return None
    done = [record for record in records if record.error is None]
    sent = [record for record in done if window.holds(record.intended_s)]
    ttfts = [record.ttft_s for record in sent]
    tpots = [tpot for record in sent if (tpot := record.tpot_s) is not None]
    return {
        "start_s": round(window.start_s, 6),
        "end_s": round(window.end_s, 6),
        "requests": len(sent),
        "requests_left_out": len(done) - len(sent),
        "request_throughput": round(sum(window.holds(r.times_s[-1]) for r in done) / window.length_s, 4),
        "output_throughput": round(sum(tokens_in(record, window) for record in done) / window.length_s, 4),
        "mean_in_flight": round(mean_in_flight(records, window), 4),
        "mean_ttft_ms": _ms(statistics.fmean(ttfts)) if ttfts else None,
        "median_ttft_ms": _ms(statistics.median(ttfts)) if ttfts else None,
        "mean_tpot_ms": _ms(statistics.fmean(tpots)) if tpots else None,
        "mean_e2el_ms": _ms(statistics.fmean(record.e2e_s for record in sent)) if sent else None,
    }


def steady_output(result: Mapping[str, Any]) -> float:
    """Return a point's output tokens per second in its steady window, or in the whole point without one."""
    steady = result.get("steady")
    return float((steady or result)["output_throughput"])


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 4)


def saturation_figures(
    records: Sequence[RequestRecord], window: SteadyWindow | None, rate_per_s: float | None
) -> dict[str, Any] | None:
    """Return whether an open loop sent more than the server can answer; None for a closed loop.

    `over` is None if the window is too short. The verdict uses the growth of requests in flight and of latency over the window,
    not the random number of requests in a draw of arrivals. A server without a queue shows growth in E2E instead of TTFT.
    """
    if rate_per_s is None:
        return None
    if window is None:
        return {
            "over": None,
            "reason": "the point is too short: the load had not filled up when the last request was sent",
        }
    sent = sorted((r for r in records if r.error is None and window.holds(r.intended_s)), key=lambda r: r.intended_s)
    if len(sent) < PARTS * FEWEST_REQUESTS:
        return {"over": None, "reason": f"the steady window of the point has {len(sent)} requests, too few for a trend"}
    in_flight = _in_flight_slope(records, window)
    ttft = _slope([(record.intended_s, record.ttft_s) for record in sent])
    e2e = _slope([(record.intended_s, record.e2e_s) for record in sent])
    return {
        "over": in_flight > GROWTH * rate_per_s and max(ttft, e2e) > GROWTH,
        "reason": None,
        "in_flight_growth_per_s": round(in_flight, 4),
        "ttft_growth_s_per_s": round(ttft, 5),
        "e2e_growth_s_per_s": round(e2e, 5),
        "answered_per_s": round(
            sum(window.holds(r.times_s[-1]) for r in records if r.error is None) / window.length_s, 4
        ),
    }


def _in_flight_slope(records: Sequence[RequestRecord], window: SteadyWindow) -> float:
    sent, ended = sorted(r.sent_s for r in records), sorted(r.end_s for r in records)
    moments = [window.start_s + window.length_s * (number + 0.5) / SAMPLES for number in range(SAMPLES)]
    counts = [bisect_left(sent, at_s) - bisect_left(ended, at_s) for at_s in moments]
    return statistics.linear_regression(moments, counts).slope


def _slope(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the slope of a line through the medians of the parts."""
    size = len(pairs) / PARTS
    parts = [pairs[round(number * size) : round((number + 1) * size)] for number in range(PARTS)]
    return statistics.linear_regression(
        [statistics.fmean(x for x, _ in part) for part in parts],
        [statistics.median(y for _, y in part) for part in parts],
    ).slope
