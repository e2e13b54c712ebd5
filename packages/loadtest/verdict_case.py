"""Evidence for the verdict on a sweep: its loads, the best one, the next one that misses the limits, and the plan's forecast. Pure functions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from loadtest.bottleneck import Bottleneck, LimitName, bottleneck_of
from loadtest.client.json_values import as_list, as_mapping
from loadtest.loads import (
    NAMES,
    MeasuredLoad,
    Shape,
    best_of,
    distances,
    good_output_tok_per_s,
    good_share,
    loads_of,
    objective_of,
    share_of,
    usd_per_million_good_tokens,
)
from loadtest.measure import Objective

Run: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMatch:
    """A measured value and the plan's forecast with its band, in the same unit."""

    low: float
    typical: float
    high: float
    measured: float

    @property
    def is_within(self) -> bool:
        """True if the measured value is within the band."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Evidence of a sweep."""

    run: Run
    loads: Sequence[MeasuredLoad]
    objective: Objective | None
    share: float
    best: MeasuredLoad | None
    missed: MeasuredLoad | None
    shape: Shape | None
    bottleneck: Bottleneck
    plan: PlanMatch | None
    plan_level: PlanMatch | None

    @property
    def shown(self) -> MeasuredLoad | None:
        """Load whose figures are shown: the best one, or the one that misses the limits."""
        return self.best or self.missed


def case_of(run: Run, results: Sequence[Run]) -> Case:
    """Return the evidence of a sweep from its run.json and its results."""
    loads = loads_of(run, results)
    objective = objective_of(run)
    share = share_of(run)
    best = best_of(run, loads)
    valid = [load for load in loads if load.is_valid]
    shape = best.shape if best else (valid or loads)[-1].shape if loads else None
    missed = _first_missed(valid, shape, best, objective, share)
    shown = best or missed
    return Case(
        run=run,
        loads=loads,
        objective=objective,
        share=share,
        best=best,
        missed=missed,
        shape=shape,
        bottleneck=bottleneck_of(run, loads, shape)
        if shape
        else Bottleneck(saturated=None, at=None, limit="unknown", reason="no point was measured"),
        plan=_output_match(shown),
        plan_level=_level_match(run, shape, best) if shown is not None and objective is not None else None,
    )


def _first_missed(
    valid: Sequence[MeasuredLoad],
    shape: Shape | None,
    best: MeasuredLoad | None,
    objective: Objective | None,
    share: float,
) -> MeasuredLoad | None:
    if objective is None:
        return None
    above = [load for load in valid if load.shape == shape and (best is None or load.level > best.level)]
    return next((load for load in above if good_share(load.results) < share), None)


def _output_match(load: MeasuredLoad | None) -> PlanMatch | None:
    if load is None:
        return None
    return _match(as_mapping(load.results[0].get("forecast")).get("output_throughput"), load.output_tok_per_s)


def _level_match(run: Run, shape: Shape | None, best: MeasuredLoad | None) -> PlanMatch | None:
    """Return the best load within the limits against the forecast of its shape."""
    level = best.level if best is not None else 0.0
    for row in map(as_mapping, as_list(run.get("forecast_levels"))):
        if shape is not None and (row.get("mode"), row.get("input_tokens"), row.get("output_tokens")) == (
            shape.mode,
            shape.input_tokens,
            shape.output_tokens,
        ):
            return _match(row, level)
    return None


def _match(band: object, measured: float) -> PlanMatch | None:
    """Return a planned band with the measured value, or None if the plan has no number for one of its ends."""
    found = as_mapping(band)
    ends = {name: found.get(name) for name in ("low", "typical", "high")}
    numbers = {name: float(end) for name, end in ends.items() if isinstance(end, int | float) and not math.isnan(end)}
    if len(numbers) < len(ends):
        return None
    return PlanMatch(**numbers, measured=round(measured, 4))


def worst_latency(load: MeasuredLoad, objective: Objective, share: float) -> tuple[str, float]:
    """Return the latency that is farthest above its limit, and its relative distance; an empty name if none is above."""
    found = distances(load, objective, share)
    name = max(found, key=lambda each: found[each], default="")
    return (name, found[name]) if name and found[name] > 0 else ("", 0.0)


def limit_name(limit: LimitName) -> str:
    """Return a limit as text that "the" precedes."""
    return {"client": "client", "batch": "batch (max-num-seqs)", "server": "server's speed"}.get(limit, limit)


def figures_text(case: Case, load: MeasuredLoad) -> str:
    """Return the output rate of a load and its price, as the continuation of a sentence."""
    price = usd_per_million_good_tokens(case.run, load, case.objective)
    kind = "good" if case.objective else "output"
    rate = good_output_tok_per_s(load, case.objective)
    cost = f"{price:,.3g} USD per million {kind} tokens" if price is not None else "no price without --usd-per-hour"
    return f", {rate:,.4g} {'good ' if case.objective else ''}tok/s, {cost}"


def miss_text(case: Case) -> str:
    """Return by how much the next load misses the limits; empty if none does."""
    load, objective = case.missed, case.objective
    if load is None or objective is None:
        return ""
    name, above = worst_latency(load, objective, case.share)
    if not name:
        return f"at {load.text}, failed requests miss them ({good_share(load.results):.1%} are good)"
    return f"{load.text} {'miss' if load.shape.unit == 'users' and load.level != 1 else 'misses'} {NAMES[name]} by {above:.0%}"


def plan_text(case: Case) -> str:
    """Return the comparison with the plan's forecast: of the load within the limits, or else of the output rate; empty without one."""
    unit = case.shape.unit if case.shape is not None else ""
    parts = [
        _match_text(found, name) for found, name in ((case.plan_level, unit), (case.plan, "tok/s")) if found is not None
    ]
    return ", ".join(parts)


def _match_text(found: PlanMatch, unit: str) -> str:
    band = f"{found.typical:,.4g} {unit} ({found.low:,.4g} to {found.high:,.4g})"
    if found.typical <= 0:
        return f"the plan expects {band}"
    change = found.measured / found.typical - 1
    return f"{abs(change):.0%} {'above' if change >= 0 else 'below'} the plan's {band}"
