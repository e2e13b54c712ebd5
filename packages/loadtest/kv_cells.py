"""Closed loops that exceed the server's KV cache. Pure functions.

Beyond the KV cache the server runs fewer requests than the load, and queues or preempts the others. Such a point has a note, which names
the neighbour whose tail it leaves far behind; `--within-cache` leaves it out.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from loadtest.measure import point_text
from loadtest.traffic.points import Point
from loadtest.traffic.spec import Traffic

KV_REASON: Final = "KV cache"
"""Part of the reason of a point that was left out because it exceeds the KV cache."""
TAIL_FACTOR: Final = 10.0
"""Ratio of the p99 of two neighbours from which the note names both."""


def mean_tokens(point: Point, shared_tokens: int) -> float:
    """Return the tokens that a closed loop keeps in the KV cache on average: prompts, half of the responses, and the shared prefix once."""
    users = point.concurrency or 0
    shared = min(shared_tokens, point.input_tokens)
    return shared + users * (point.input_tokens - shared + point.output_tokens / 2)


def beyond_cache(point: Point, traffic: Traffic, tokens: int | None) -> str:
    """Return why a point exceeds a KV cache of `tokens` tokens, as the end of a sentence; empty if it does not, or if that is unknown."""
    shared = traffic.prefix_tokens or round((traffic.prefix_share or 0.0) * point.input_tokens)
    needed = mean_tokens(point, shared)
    if tokens is None or needed <= tokens:
        return ""
    return f"it needs {needed:,.0f} tokens of the {KV_REASON}, which has {tokens:,}"


def tail_text(result: Mapping[str, Any], measured: Collection[Mapping[str, Any]]) -> str:
    """Return the ratio of a point's p99 TTFT to that of its neighbour, if it is TAIL_FACTOR or more; otherwise an empty string.

    Neighbours have the next lower load with the same lengths, or the next shorter prompts at the same load.
    """
    same, found = ("mode", "output_tokens", "repeat"), list[Mapping[str, Any]]()
    for axis, other in (("level", "input_tokens"), ("input_tokens", "level")):
        line = [
            each
            for each in measured
            if each["p99_ttft_ms"]
            and each["point"][axis] < result["point"][axis]
            and all(each["point"][name] == result["point"][name] for name in (*same, other))
        ]
        found += sorted(line, key=lambda each: each["point"][axis])[-1:]
    near = min(found, key=lambda each: each["p99_ttft_ms"], default=None)
    ratio = (result["p99_ttft_ms"] or 0.0) / near["p99_ttft_ms"] if near is not None else 0.0
    if near is None or ratio < TAIL_FACTOR:
        return ""
    return f"its p99 TTFT of {result['p99_ttft_ms']:,.0f} ms is {ratio:,.0f} times that of {point_text(near['point'])}"
