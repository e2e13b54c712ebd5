"""Steady part of a point, its metrics, and whether the server kept up with an open loop.

The first responses of a point come from an idle server and the last from an emptying one. The steady window between them starts
when the load is full and ends when the last request is sent. Percentiles, distributions, goodput and verdicts are of the requests sent
in it (`judged`). The metrics of the whole point keep the definitions of `vllm bench serve` and serve only to compare with that tool.
"""

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadtest.measure import (
    JUDGED_PERCENTILE,
    PERCENTILES,
    Objective,
    latency_figures,
    requests_for,
    supported_percentile,
)
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
LISTS: Final = ("ttfts", "e2els", "input_lens", "output_lens", "start_times")
"""Fields of a result with one value per complete response, which `--json` omits."""
LATENCIES: Final = ("ttft", "tpot", "itl", "e2el")
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


def steady_window(records: Sequence[RequestRecord], point: Point) -> SteadyWindow | None:
    """Return the steady part of a point, or None if the point is too short: if its steady part is shorter than a median request.

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
    request_s = statistics.median(record.end_s - record.sent_s for record in records)
    return window if window.length_s >= request_s > 0 and inside >= FEWEST_REQUESTS else None


def mean_in_flight(records: Sequence[RequestRecord], window: SteadyWindow) -> float:
    """Return the mean number of requests in flight, from send to end, including failed ones."""
    spans_s = [min(record.end_s, window.end_s) - max(record.sent_s, window.start_s) for record in records]
    return sum(span_s for span_s in spans_s if span_s > 0) / window.length_s


def tokens_in(record: RequestRecord, window: SteadyWindow) -> float:
    """Return the output tokens that arrived in the window. A request's tokens are spread evenly over its events."""
    times = record.times_s
    return (bisect_left(times, window.end_s) - bisect_left(times, window.start_s)) / len(times) * record.output_tokens


def steady_figures(
    records: Sequence[RequestRecord], window: SteadyWindow | None, objective: Objective | None = None
) -> dict[str, Any] | None:
    """Return the metrics of the steady window, or None without one.

    Rates count arrivals in the window. Latencies and `good_share` are of the requests sent in it, `first_wave` of those sent before.
    """
    if window is None:
        return None
    done = [record for record in records if record.error is None]
    sent = [record for record in done if window.holds(record.intended_s)]
    good = [record for record in done if objective is not None and objective.kept_by(record)]
    judged_sent = [record for record in records if window.holds(record.intended_s)]
    good_share = sum(window.holds(record.intended_s) for record in good) / max(1, len(judged_sent))
    good_per_s = sum(window.holds(record.times_s[-1]) for record in good) / window.length_s
    return {
        "start_s": round(window.start_s, 6),
        "end_s": round(window.end_s, 6),
        "requests": len(sent),
        "requests_left_out": len(done) - len(sent),
        "request_throughput": round(sum(window.holds(r.times_s[-1]) for r in done) / window.length_s, 4),
        "output_throughput": round(sum(tokens_in(record, window) for record in done) / window.length_s, 4),
        "mean_in_flight": round(mean_in_flight(records, window), 4),
        "request_goodput": None if objective is None else round(good_per_s, 4),
        "good_share": None if objective is None else round(good_share, 6),
        "highest_percentile": supported_percentile(len(sent)),
        **latency_figures(sent),
        "first_wave": _first_wave([record for record in done if record.intended_s < window.start_s]),
    }


def _first_wave(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Return the latencies of the requests that filled the idle server."""
    figures = latency_figures(records)
    ttfts = [record.ttft_s for record in records]
    return {
        "requests": len(records),
        "median_ttft_ms": figures["median_ttft_ms"],
        "max_ttft_ms": round(max(ttfts) * 1000, 4) if ttfts else None,
        "median_tpot_ms": figures["median_tpot_ms"],
        "median_e2el_ms": figures["median_e2el_ms"],
    }


def steady_notes(steady: Mapping[str, Any] | None, *, unsteady: bool, complete: int) -> list[str]:
    """Return notes about the base of a point's percentiles: too few requests, or the whole point instead of a steady window."""
    if not complete:
        return []
    count = complete if steady is None else steady["requests"]
    where = "the whole point" if steady is None else "the steady window"
    notes = (
        ["the point is too short for a steady window, so its percentiles and its goodput include the cold first wave"]
        if steady is None and not unsteady
        else []
    )
    if count < requests_for(JUDGED_PERCENTILE):
        highest = supported_percentile(count)
        carried = (
            "they support no percentile above the median"
            if highest is None
            else f"the highest reliable is p{highest:g}"
        )
        wanted = f"p{JUDGED_PERCENTILE} needs {requests_for(JUDGED_PERCENTILE)}"
        notes.append(f"{where} has {count} complete requests, but {wanted}: {carried}")
    return notes


def judged(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored result whose latencies, goodput and per-request lists are its steady window's.

    Without a window, they stay the whole point's, without the percentiles that its number of requests does not support.
    """
    steady = result.get("steady")
    if not steady:
        unsupported = [share for share in PERCENTILES if result["completed"] < requests_for(share)]
        return {**result, **{f"p{share:g}_{name}_ms": None for share in unsupported for name in LATENCIES}}
    kept = [number for number, at_s in enumerate(result["start_times"]) if steady["start_s"] <= at_s <= steady["end_s"]]
    columns = ("start_s", "end_s", "requests", "requests_left_out", "first_wave", *_RATES)
    return {
        **result,
        **{name: value for name, value in steady.items() if name not in columns},
        **{name: [result[name][number] for number in kept] for name in LISTS},
    }


_RATES: Final = ("request_throughput", "output_throughput", "mean_in_flight")
"""Rates of the window that have a separate field in addition to the whole point's."""


def tail(result: Mapping[str, Any], latency: str) -> tuple[float, float] | None:
    """Return the highest percentile that the requests of a judged result support, and its value in ms; None if they support none."""
    found = ((share, result.get(f"p{share:g}_{latency}_ms")) for share in PERCENTILES if share <= JUDGED_PERCENTILE)
    return max(((share, float(value)) for share, value in found if value is not None), default=None)


def output_rates(results: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the output tokens per second of points to compare: in their steady windows if each has one, else of the whole points."""
    are_steady = all(result.get("steady") for result in results)
    return [float((result["steady"] if are_steady else result)["output_throughput"]) for result in results]


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
            "reason": "the point is too short, because the load had not filled up when the last request was sent",
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
    sent = sorted(r.sent_s for r in records)
    ended = sorted(r.end_s for r in records)
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
