"""The plan's output rate beside the measured one, at the valid load of the highest output rate. Pure functions."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.measure import point_text
from loadtest.steady import output_rates


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMatch:
    """A planned output rate with its band, and the measured one, in tokens per second."""

    point: str
    """The load for a reader, without the repeat."""
    low: float
    typical: float
    high: float
    measured: float
    """Mean of the repeats: in the steady windows if each point of the sweep has one, else of the whole points."""
    ratio: float
    """Measured divided by planned."""

    @property
    def text(self) -> str:
        """Both rates and their ratio, on one line."""
        band = f"{self.typical:,.4g} tok/s ({self.low:,.4g} to {self.high:,.4g})"
        return f"{self.point}: planned {band}, measured {self.measured:,.4g} tok/s, ratio {self.ratio:.2f}"


def plan_match(results: Sequence[Mapping[str, Any]]) -> PlanMatch | None:
    """Return the match of the fastest load whose repeats are all valid; None without one, or without a forecast for it."""
    loads: dict[str, list[tuple[Mapping[str, Any], float]]] = {}
    for result, tok_per_s in zip(results, output_rates(results), strict=True):
        loads.setdefault(point_text(result["point"] | {"repeat": 0}), []).append((result, tok_per_s))
    rates = {
        name: statistics.fmean(tok_per_s for _, tok_per_s in repeats)
        for name, repeats in loads.items()
        if all(result["valid"] and result["completed"] for result, _ in repeats)
    }
    if not rates:
        return None
    name = max(rates, key=lambda each: rates[each])
    forecast: Mapping[str, Any] = loads[name][0][0].get("forecast") or {}
    band: Mapping[str, float] = forecast.get("output_throughput") or {}
    if not band or band["typical"] <= 0:
        return None
    return PlanMatch(
        point=name,
        low=band["low"],
        typical=band["typical"],
        high=band["high"],
        measured=round(rates[name], 4),
        ratio=round(rates[name] / band["typical"], 4),
    )
