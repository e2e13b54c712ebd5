"""Verdict on a sweep: the best load within the limits, the next load that misses them, the price, and the plan's forecast. Pure functions.

The verdict is computed from `run.json` and the results when a report is written, so it is the same in the terminal, the report and JSON.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from loadtest.client.json_values import as_list, as_mapping
from loadtest.loads import (
    NAMES,
    MeasuredLoad,
    Shape,
    best_load,
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
class BestLoad:
    """The best valid load: the highest one within the limits, or the load of the highest output rate without limits."""

    key: str
    load: str
    """The load with its unit."""
    lengths: str
    """Prompt and output tokens as text."""
    level: float
    unit: str
    good_share: float | None
    """Share of the requests within the limits; None without limits."""
    output_tok_per_s: float
    good_tok_per_s: float
    usd_per_million_good_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedLoad:
    """The lowest valid load above the best one that misses the limits."""

    key: str
    load: str
    level: float
    good_share: float
    metric: str
    """Latency that is farthest above its limit: ttft, tpot or e2e; empty if only failed requests miss the limits."""
    above: float
    """Distance of that latency from its limit, relative to the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMatch:
    """A measured value and the plan's forecast with its band, in the same unit."""

    low: float
    typical: float
    high: float
    measured: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepVerdict:
    """Verdict on a sweep."""

    sentence: str
    limits: str
    """Limits of `--slo` as text; empty without."""
    slo_share: float
    best: BestLoad | None
    missed: MissedLoad | None
    plan: PlanMatch | None
    """Output rate of the best load against the forecast, in tokens per second; None without a forecast."""
    plan_level: PlanMatch | None
    """Best load within the limits against the forecast, in `best.unit`; None without a forecast or limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """Evidence of a sweep."""

    run: Run
    objective: Objective | None
    share: float
    best: MeasuredLoad | None
    missed: MeasuredLoad | None
    shape: Shape | None


def sweep_verdict(run: Run, results: Sequence[Run]) -> SweepVerdict:
    """Return the verdict on a sweep from its run.json and its results."""
    case = _case(run, results)
    shown = case.best or case.missed
    plan = _output_match(shown) if shown is not None else None
    plan_level = _level_match(case) if shown is not None and case.objective is not None else None
    return SweepVerdict(
        sentence=_sentence(case, plan, plan_level),
        limits=case.objective.text if case.objective else "",
        slo_share=case.share,
        best=_best_json(case),
        missed=_missed_json(case),
        plan=plan,
        plan_level=plan_level,
    )


def _case(run: Run, results: Sequence[Run]) -> _Case:
    loads = loads_of(run, results)
    objective = objective_of(run)
    share = share_of(run)
    best = best_load(loads, objective, share)
    valid = [load for load in loads if load.is_valid]
    shape = best.shape if best else (valid or loads)[-1].shape if loads else None
    missed = None
    if objective is not None:
        above = [load for load in valid if load.shape == shape and (best is None or load.level > best.level)]
        missed = next((load for load in above if good_share(load.results) < share), None)
    return _Case(run=run, objective=objective, share=share, best=best, missed=missed, shape=shape)


def _output_match(load: MeasuredLoad) -> PlanMatch | None:
    return _match(as_mapping(load.results[0].get("forecast")).get("output_throughput"), load.output_tok_per_s)


def _level_match(case: _Case) -> PlanMatch | None:
    """Return the best load within the limits against the forecast of its shape."""
    shape = case.shape
    level = case.best.level if case.best is not None else 0.0
    for row in map(as_mapping, as_list(case.run.get("forecast_levels"))):
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


def _best_json(case: _Case) -> BestLoad | None:
    load = case.best
    if load is None:
        return None
    price = usd_per_million_good_tokens(case.run, load, case.objective)
    return BestLoad(
        key=load.key,
        load=load.text,
        lengths=load.shape.text,
        level=load.level,
        unit=load.shape.unit,
        good_share=round(good_share(load.results), 6) if case.objective else None,
        output_tok_per_s=round(load.output_tok_per_s, 4),
        good_tok_per_s=round(good_output_tok_per_s(load, case.objective), 4),
        usd_per_million_good_tokens=None if price is None else round(price, 8),
    )


def _missed_json(case: _Case) -> MissedLoad | None:
    load, objective = case.missed, case.objective
    if load is None or objective is None:
        return None
    metric, above = _worst_latency(load, objective, case.share)
    return MissedLoad(
        key=load.key,
        load=load.name,
        level=load.level,
        good_share=round(good_share(load.results), 6),
        metric=metric,
        above=round(above, 4),
    )


def _worst_latency(load: MeasuredLoad, objective: Objective, share: float) -> tuple[str, float]:
    """Return the latency that is farthest above its limit, and its relative distance; an empty name if none is above."""
    found = distances(load, objective, share)
    name = max(found, key=lambda each: found[each], default="")
    return (name, found[name]) if name and found[name] > 0 else ("", 0.0)


def _sentence(case: _Case, plan: PlanMatch | None, plan_level: PlanMatch | None) -> str:
    """Return the verdict as one sentence: the best load, and its comparison with the plan if there is a forecast."""
    unit = case.shape.unit if case.shape is not None else ""
    matches = [_match_text(found, name) for found, name in ((plan_level, unit), (plan, "tok/s")) if found is not None]
    text = "; ".join(part for part in (_result(case), ", ".join(matches)) if part)
    return f"{text[:1].upper()}{text[1:]}."


def _result(case: _Case) -> str:
    """Return the best load with its price, and the next one that misses the limits."""
    best, objective = case.best, case.objective
    if objective is None:
        return f"highest output rate at {best.name}{_figures(case, best)}" if best is not None else "no load is valid"
    wanted = objective.wanted(case.share)
    if best is not None:
        kept = f"meets {wanted} up to {best.name}{_figures(case, best)}"
        return f"{kept}; {_miss(case, objective)}" if case.missed is not None else f"{kept}, the highest valid load"
    if case.missed is not None:
        return f"meets {wanted} at no measured load: {_miss(case, objective)}"
    return f"unknown whether it meets {wanted}, because no load is valid"


def _figures(case: _Case, load: MeasuredLoad) -> str:
    """Return the output rate of a load and its price, as the continuation of a sentence."""
    price = usd_per_million_good_tokens(case.run, load, case.objective)
    kind = "good" if case.objective else "output"
    rate = good_output_tok_per_s(load, case.objective)
    cost = f"{price:,.3g} USD per million {kind} tokens" if price is not None else "no price without --usd-per-hour"
    return f", {rate:,.4g} {'good ' if case.objective else ''}tok/s, {cost}"


def _miss(case: _Case, objective: Objective) -> str:
    """Return by how much the next load misses the limits; empty if none does."""
    load = case.missed
    if load is None:
        return ""
    name, above = _worst_latency(load, objective, case.share)
    if not name:
        return f"at {load.text}, failed requests miss them ({good_share(load.results):.1%} are good)"
    return f"{load.text} {'miss' if load.shape.unit == 'users' and load.level != 1 else 'misses'} {NAMES[name]} by {above:.0%}"


def _match_text(found: PlanMatch, unit: str) -> str:
    band = f"{found.typical:,.4g} {unit} ({found.low:,.4g} to {found.high:,.4g})"
    if found.typical <= 0:
        return f"the plan expects {band}"
    change = found.measured / found.typical - 1
    return f"{abs(change):.0%} {'above' if change >= 0 else 'below'} the plan's {band}"
