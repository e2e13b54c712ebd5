"""Metrics of a point, computed from its requests. Pure functions.

Field names and definitions match `vllm bench serve`, so results are comparable. `_ms` fields are in milliseconds, other times
in seconds.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from loadtest.records import RequestRecord, WorkerResult

PERCENTILES: Final = (90, 95, 99, 99.9)
ALWAYS: Final = frozenset({90, 99})
"""Percentiles that every whole point has, regardless of the number of requests, as in `vllm bench serve`. Nothing is judged by them."""
JUDGED_PERCENTILE: Final = 99
"""Largest percentile that a point is judged by. The default number of requests supports it unless the server is slow."""
OUTSIDE: Final = 0.05
"""A percentile is supported if the probability that the largest value is below it is at most this (S. S. Wilks, Determination of Sample Sizes
for Setting Tolerance Limits, Annals of Mathematical Statistics 12, 1941)."""
SCHEMA_VERSION: Final = 2
"""2: `duration` ends with the last request of any kind; `tpot`, `itl` and `e2el` end with the last event of the choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A service-level objective in seconds. A request is good if it meets every limit that is set."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def kept_by(self, record: RequestRecord) -> bool:
        """Return whether a completed request is good. A single token has no time per output token and meets that limit."""
        found_s = (record.ttft_s, record.tpot_s or 0.0, record.e2e_s)
        limits_s = (self.ttft_s, self.tpot_s, self.e2e_s)
        return all(limit is None or found <= limit for found, limit in zip(found_s, limits_s, strict=True))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of sorted values, `share` in percent, linear between adjacent values (numpy's default)."""
    if not ordered:
        return math.nan
    position = (len(ordered) - 1) * share / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def requests_for(share: float) -> int:
    """Return the number of values that supports a percentile, `share` in percent: 59 for p95, 299 for p99, 2,995 for p99.9."""
    return math.ceil(math.log(OUTSIDE) / math.log(share / 100))


def supported_percentile(count: int) -> float | None:
    """Return the highest of PERCENTILES up to JUDGED_PERCENTILE that `count` values support, or None if they support none."""
    return max(
        (share for share in PERCENTILES if share <= JUDGED_PERCENTILE and count >= requests_for(share)), default=None
    )


def _statistics(name: str, values_s: Iterable[float], always: AbstractSet[float]) -> dict[str, float | None]:
    ordered = sorted(values_s)
    keys = ("mean", "median", "std", *(f"p{share:g}" for share in PERCENTILES))
    if not ordered:
        return {f"{key}_{name}_ms": None for key in keys}
    figures = (
        statistics.fmean(ordered),
        percentile(ordered, 50),
        statistics.pstdev(ordered),
        *(
            percentile(ordered, share) if share in always or len(ordered) >= requests_for(share) else None
            for share in PERCENTILES
        ),
    )
    return {
        f"{key}_{name}_ms": None if value is None else round(value * 1000, 4)
        for key, value in zip(keys, figures, strict=True)
    }


def latency_figures(done: Sequence[RequestRecord], *, always: AbstractSet[float] = frozenset()) -> dict[str, Any]:
    """Return the latencies of complete requests. A percentile is None if the values do not support it, except those in `always`."""
    # An event may contain several tokens.
    gaps_s = [later - earlier for record in done for earlier, later in pairwise(record.times_s)]
    return {
        **_statistics("ttft", (record.ttft_s for record in done), always),
        **_statistics("tpot", (tpot for record in done if (tpot := record.tpot_s) is not None), always),
        **_statistics("itl", gaps_s, always),
        **_statistics("e2el", (record.e2e_s for record in done), always),
    }


def _peak_concurrency(records: Sequence[RequestRecord]) -> int:
    """Return the maximum number of requests in flight at any time."""
    changes = sorted([(record.sent_s, 1) for record in records] + [(record.end_s, -1) for record in records])
    running = peak = 0
    for _, change in changes:
        running += change
        peak = max(peak, running)
    return peak


def load_figures(records: Sequence[RequestRecord], objective: Objective | None) -> dict[str, Any]:
    """Return all metrics of a point. Failed requests count only as failed."""
    done = [record for record in records if record.error is None]
    failed = [record for record in records if record.error is not None]
    # Until the last request of any kind finishes, as in vllm bench serve, so a server that hangs or rejects is not fast.
    begin_s = min((record.intended_s for record in records), default=0.0)
    duration = max((record.end_s for record in records), default=begin_s) - begin_s
    tokens_in = sum(r.prompt_tokens for r in done)
    tokens_out = sum(r.output_tokens for r in done)

    def rate(amount: float) -> float:
        return round(amount / duration, 4) if duration > 0 else 0.0

    good = [record for record in done if objective is not None and objective.kept_by(record)]
    figures: dict[str, Any] = {
        "duration": round(duration, 6),
        "completed": len(done),
        "failed": len(failed),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": rate(len(done)),
        "request_goodput": rate(len(good)) if objective is not None else None,
        "good_share": round(len(good) / len(records), 6) if objective is not None and records else None,
        "output_throughput": rate(tokens_out),
        "total_token_throughput": rate(tokens_in + tokens_out),
        "max_concurrent_requests": _peak_concurrency(records),
    }
    figures |= latency_figures(done, always=ALWAYS)
    figures |= {
        "ttfts": [round(record.ttft_s, 6) for record in done],
        "e2els": [round(record.e2e_s, 6) for record in done],
        "input_lens": [record.prompt_tokens for record in done],
        "output_lens": [record.output_tokens for record in done],
        "start_times": [round(record.intended_s, 6) for record in done],
    }
    return figures


def failed_share(*results: Mapping[str, Any]) -> float:
    """Return the failure rate of the requests of these points."""
    failed = sum(result["failed"] for result in results)
    return failed / max(1, failed + sum(result["completed"] for result in results))


def failed_text(share: float) -> str:
    """Return a failure rate as text. A nonzero rate is never shown as zero."""
    least = 0.001
    return f"<{least:.1%}" if 0 < share < least else f"{share:.1%}"


def has_too_many_failures(result: Mapping[str, Any], most: float) -> bool:
    """Return whether the failure rate of a point exceeds `most`."""
    return failed_share(result) > most


def failure_reason(figures: Mapping[str, Any], most: float) -> str | None:
    """Return the reason if a point is invalid because of too many failures, or None."""
    if not has_too_many_failures(figures, most):
        return None
    total = figures["failed"] + figures["completed"]
    return f"{figures['failed']} of {total} requests failed ({failed_share(figures):.1%}), more than --max-failed {most:.3g}"


def error_figures(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Return the failures by kind, with the message of the first of each."""
    kinds: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for record in records:
        if record.error is not None:
            kinds[record.error] += 1
            examples.setdefault(record.error, record.error_detail)
    return {"errors_by_kind": dict(kinds.most_common()), "error_examples": examples}


def client_figures(results: Sequence[WorkerResult]) -> dict[str, Any]:
    """Return the load generator's metrics: lag, processor time, requests not sent."""
    lags = sorted(lag for result in results for lag in result.lags_s)
    late = sorted(record.sent_s - record.intended_s for result in results for record in result.records)
    return {
        "workers": len(results),
        "cpu_s": round(math.fsum(result.cpu_s for result in results), 4),
        "cpu_share_max": round(max((r.cpu_s / r.wall_s for r in results if r.wall_s > 0), default=0.0), 4),
        "lag_mean_ms": round(statistics.fmean(lags) * 1000, 4) if lags else 0.0,
        "lag_p99_ms": round(percentile(lags, 99) * 1000, 4) if lags else 0.0,
        "lag_max_ms": round(lags[-1] * 1000, 4) if lags else 0.0,
        "send_late_p99_ms": round(percentile(late, 99) * 1000, 4) if late else 0.0,
        "stale_retries": sum(result.stale_retries for result in results),
        "shed": sum(result.shed for result in results),
    }


def points_text(count: int) -> str:
    """Return a number of points as text."""
    return f"{count:,} point{'' if count == 1 else 's'}"


def load_text(result: Mapping[str, Any]) -> str:
    """Return a point's load as text."""
    point = result["point"]
    return f"{point['level']:,g}" if point["mode"] == "closed" else f"{point['level']:,g}/s"


def load_name(point: Mapping[str, Any]) -> str:
    """Return the load of a point for a reader: `16 users` or `2.5 req/s`."""
    if point["mode"] == "open":
        return f"{point['level']:,.6g} req/s"
    return f"{point['level']:,g} user{'' if point['level'] == 1 else 's'}"


def shape_text(point: Mapping[str, Any]) -> str:
    """Return the requested tokens of a point for a reader: `1,024 in, 128 out`. A server with a short max-model-len clamps them."""
    return f"{point.get('requested_input_tokens') or point['input_tokens']:,} in, {point['output_tokens']:,} out"


def point_text(point: Mapping[str, Any]) -> str:
    """Return a point for a reader: `16 users, 1,024 in, 128 out`. Its key is for files and options."""
    repeat = f", repeat {point['repeat'] + 1}" if point["repeat"] else ""
    return f"{load_name(point)}, {shape_text(point)}{repeat}"
