"""Cells of a grid that exceed the server's KV cache. Pure functions.

A grid has several loads and several lengths. Beyond the KV cache the server runs fewer requests than the load and queues or preempts the others,
so the point measures a lower load than its name, often for hours. A list of loads with one length is always measured.
"""

from collections.abc import Sequence
from typing import Final

from loadtest.traffic.points import Point
from loadtest.traffic.spec import Traffic

KV_REASON: Final = "KV cache"
"""Part of the reason of a point that was left out because it exceeds the KV cache."""


def mean_tokens(point: Point, shared_tokens: int) -> float:
    """Return the tokens that a closed loop keeps in the KV cache on average: prompts, half of the responses, and the shared prefix once."""
    users = point.concurrency or 0
    shared = min(shared_tokens, point.input_tokens)
    return shared + users * (point.input_tokens - shared + point.output_tokens / 2)


def beyond_cache(points: Sequence[Point], traffic: Traffic, tokens: int | None) -> dict[str, str]:
    """Return the reasons of the cells of a grid that exceed a KV cache of `tokens` tokens, by key."""
    closed = [point for point in points if point.mode == "closed"]
    lengths = {(point.input_tokens, point.output_tokens) for point in closed}
    is_grid = len(lengths) > 1 and len({point.level for point in closed}) > 1
    if tokens is None or not is_grid:
        return {}
    found: dict[str, str] = {}
    for point in closed:
        shared = traffic.prefix_tokens or round((traffic.prefix_share or 0.0) * point.input_tokens)
        needed = mean_tokens(point, shared)
        if needed > tokens:
            found[point.key] = f"it needs {needed:,.0f} tokens of the {KV_REASON}, which has {tokens:,}"
    return found
