"""Judgement of each load of a sweep against the limits of `--slo`: share of good requests, distance from each limit, cost. Pure functions.

A load is judged by its steady window, because the first requests meet an idle server (`loadtest.steady.judged`).
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from loadtest.client.json_values import as_list, as_mapping
from loadtest.measure import (
    DEFAULT_SHARE,
    Objective,
    has_too_many_failures,
    load_name,
    percentile,
    requested_tokens,
    shape_text,
)
from loadtest.steady import judged, output_rates

NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
"""Names of the latencies as users read them, by their names in `--slo`."""
_Result: TypeAlias = Mapping[str, Any]
Latencies: TypeAlias = Mapping[str, Sequence[float]]
"""Seconds by name of the latency, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Loads that differ only in their level."""

    mode: str
    input_tokens: int
    output_tokens: int

    @property
    def unit(self) -> str:
        """Unit of the level."""
        return "users" if self.mode == "closed" else "req/s"

    @property
    def text(self) -> str:
        """Lengths as text."""
        return shape_text({"input_tokens": self.input_tokens, "output_tokens": self.output_tokens})


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """One load with all its repeats."""

    shape: Shape
    level: float
    results: tuple[_Result, ...]
    is_valid: bool
    output_tok_per_s: float
    """Mean of the repeats: in the steady windows if each load of the sweep has one, else of the whole points."""

    @property
    def text(self) -> str:
        """The load with its unit."""
        return load_name(self.results[0]["point"])

    @property
    def name(self) -> str:
        """The load with its unit and its lengths."""
        return f"{self.text} ({self.shape.text})"

    @property
    def key(self) -> str:
        """Key of the first repeat's point."""
        return str(self.results[0]["point"]["key"])


def objective_of(run: _Result) -> Objective | None:
    """Return the limits of a sweep; None without."""
    slo = as_mapping(run.get("slo"))
    limits = {name: float(value) for name, value in slo.items() if isinstance(value, int | float)}
    return Objective(**limits) if limits else None


def share_of(run: _Result) -> float:
    """Return the share of the requests that must meet the limits."""
    found = run.get("slo_share")
    return float(found) if isinstance(found, int | float) else DEFAULT_SHARE


def loads_of(run: _Result, results: Sequence[_Result]) -> list[MeasuredLoad]:
    """Return the loads of a sweep, by shape and rising level. A load is valid if all its repeats are."""
    most = float(run.get("max_failed", 1.0))
    groups: dict[tuple[Shape, float], list[tuple[_Result, float]]] = {}
    for result, tok_per_s in zip(map(judged, results), output_rates(results), strict=True):
        point = result["point"]
        shape = Shape(mode=point["mode"], input_tokens=requested_tokens(point), output_tokens=point["output_tokens"])
        groups.setdefault((shape, float(point["level"])), []).append((result, tok_per_s))
    found = [
        MeasuredLoad(
            shape=shape,
            level=level,
            results=tuple(result for result, _ in group),
            is_valid=all(_is_usable(result, most) for result, _ in group),
            output_tok_per_s=statistics.fmean(tok_per_s for _, tok_per_s in group),
        )
        for (shape, level), group in groups.items()
    ]
    return sorted(
        found, key=lambda load: (load.shape.input_tokens + load.shape.output_tokens, load.shape.mode, load.level)
    )


def _is_usable(result: _Result, most: float) -> bool:
    return bool(result["valid"] and result["completed"]) and not has_too_many_failures(result, most)


def good_share(results: Sequence[_Result]) -> float:
    """Return the share of the requests of a load that met every limit, as the mean of the repeats. Failed requests met none."""
    return statistics.fmean(float(result["good_share"] or 0.0) for result in results)


def _rows(result: _Result) -> list[dict[str, float]]:
    """Return the latencies of each complete response, in seconds."""
    columns = [
        [float(number) for number in as_list(result.get(name)) if isinstance(number, int | float)]
        for name in ("ttfts", "e2els", "output_lens")
    ]
    if len({len(column) for column in columns}) != 1:
        return []
    return [
        {"ttft": ttft, "tpot": (e2e - ttft) / (tokens - 1) if tokens > 1 else 0.0, "e2e": e2e}
        for ttft, e2e, tokens in zip(*columns, strict=True)
    ]


def latencies_of(load: MeasuredLoad) -> Latencies:
    """Return the latencies of a load's requests, over all repeats."""
    rows = [row for result in load.results for row in _rows(result)]
    return {name: sorted(row[name] for row in rows) for name in NAMES}


def distances(load: MeasuredLoad, objective: Objective, share: float) -> dict[str, float]:
    """Return how far the latency that `share` of the requests reach is above each limit, relative to the limit; negative below it."""
    found = latencies_of(load)
    return {
        name: percentile(found[name], 100 * share) / limit - 1
        for name, limit in objective.limits.items()
        if found[name]
    }


def good_output_tok_per_s(load: MeasuredLoad, objective: Objective | None) -> float:
    """Return the output tokens per second of the requests that met the limits; of all complete responses without limits."""
    if objective is None:
        return load.output_tok_per_s
    # Failed requests have no tokens, so they are not in the output rate.
    done = sum(result["completed"] for result in load.results)
    sent = done + sum(result["failed"] for result in load.results)
    return load.output_tok_per_s * min(1.0, good_share(load.results) * sent / max(1, done))


def usd_per_million_good_tokens(run: _Result, load: MeasuredLoad, objective: Objective | None) -> float | None:
    """Return the price of a million output tokens of good requests, in USD; None without a price or without such tokens."""
    price, rate = run.get("usd_per_hour"), good_output_tok_per_s(load, objective)
    if not isinstance(price, int | float) or rate <= 0:
        return None
    return price / 3600 / rate * 1e6


def best_load(loads: Sequence[MeasuredLoad], objective: Objective | None, share: float) -> MeasuredLoad | None:
    """Return the best valid load: the highest one within the limits of the longest shape; without limits the load of the highest output rate."""
    usable = [load for load in loads if load.is_valid]
    if not usable:
        return None
    if objective is None:
        return max(usable, key=lambda load: load.output_tok_per_s)
    longest = usable[-1].shape
    kept = [load for load in usable if load.shape == longest and good_share(load.results) >= share]
    return max(kept, key=lambda load: load.level, default=None)
