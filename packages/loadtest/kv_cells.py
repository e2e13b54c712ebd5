"""Cells of a grid that exceed the server's KV cache, and the size of that cache from the server's metrics. Pure functions.

A grid has several loads and several lengths. Beyond the KV cache the server runs fewer requests than the load and queues or preempts the others,
so the point measures a lower load than its name, often for hours. A list of loads with one length is always measured.
"""

from collections.abc import Sequence
from typing import Final

from loadtest.client.metrics import CACHE_CONFIG, Scrape
from loadtest.traffic.points import Point
from loadtest.traffic.spec import Traffic

KV_REASON: Final = "KV cache"
"""Part of the reason of a point that was left out because it exceeds the KV cache."""


def cache_tokens(scrape: Scrape) -> int | None:
    """Return the tokens of all blocks of the KV cache, over all engines; None if the server does not report them.

    It is an upper limit: a model with sliding windows needs blocks for each kind of layer.
    """
    sizes = [
        int(sample.labels["num_gpu_blocks"]) * int(sample.labels["block_size"])
        for name in CACHE_CONFIG
        for sample in scrape.samples.get(name, ())
        if sample.labels.get("num_gpu_blocks", "").isdecimal() and sample.labels.get("block_size", "").isdecimal()
    ]
    return sum(sizes) or None


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
