"""Verdict on a sweep: one sentence, and the answers to the first ten questions of a performance engineer. Pure functions.

The verdict is computed from `run.json` and the results when a report is written, so it is the same in the terminal, the reports and JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.bottleneck import Bottleneck, LimitName
from loadtest.loads import good_output_tok_per_s, good_share, usd_per_million_good_tokens
from loadtest.verdict_answers import VerdictAnswer, answers_of
from loadtest.verdict_case import (
    Case,
    PlanMatch,
    case_of,
    figures_text,
    limit_name,
    miss_text,
    plan_text,
    worst_latency,
)


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
class SweepVerdict:
    """Verdict on a sweep."""

    sentence: str
    saturated: bool | None
    """None if the sweep does not tell."""
    limit: LimitName
    limit_reason: str
    limits: str
    """Limits of `--slo` as text; empty without."""
    slo_share: float
    best: BestLoad | None
    missed: MissedLoad | None
    plan: PlanMatch | None
    """Output rate of the best load against the forecast, in tokens per second; None without a forecast."""
    plan_level: PlanMatch | None
    """Best load within the limits against the forecast, in `best.unit`; None without a forecast or limits."""
    answers: tuple[VerdictAnswer, ...]
    """The ten questions, in the order of QUESTIONS."""


def sweep_verdict(run: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> SweepVerdict:
    """Return the verdict on a sweep from its run.json and its results."""
    case = case_of(run, results)
    return SweepVerdict(
        sentence=_sentence(case),
        saturated=case.bottleneck.saturated,
        limit=case.bottleneck.limit,
        limit_reason=case.bottleneck.reason,
        limits=case.objective.text if case.objective else "",
        slo_share=case.share,
        best=_best_json(case),
        missed=_missed_json(case),
        plan=case.plan,
        plan_level=case.plan_level,
        answers=answers_of(case),
    )


def _best_json(case: Case) -> BestLoad | None:
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


def _missed_json(case: Case) -> MissedLoad | None:
    load, objective = case.missed, case.objective
    if load is None or objective is None:
        return None
    metric, above = worst_latency(load, objective, case.share)
    return MissedLoad(
        key=load.key,
        load=load.name,
        level=load.level,
        good_share=round(good_share(load.results), 6),
        metric=metric,
        above=round(above, 4),
    )


def _sentence(case: Case) -> str:
    """Return the verdict as one sentence."""
    state = _state(case.bottleneck)
    return "; ".join(part for part in (f"{state[:1].upper()}{state[1:]}", _result(case), plan_text(case)) if part) + "."


def _state(found: Bottleneck) -> str:
    if found.saturated and found.at is not None:
        return f"saturated at {found.at.text}, limited by the {limit_name(found.limit)}"
    if found.saturated is False and found.at is not None:
        return f"not saturated up to {found.at.text}"
    if found.limit == "client":
        return f"saturation unknown, because {found.reason}"
    return f"saturation unknown: {found.reason}"


def _result(case: Case) -> str:
    """Return the best load with its price, and the next one that misses the limits."""
    best, objective = case.best, case.objective
    if objective is None:
        return (
            f"highest output rate at {best.name}{figures_text(case, best)}" if best is not None else "no load is valid"
        )
    wanted = objective.wanted(case.share)
    if best is not None:
        kept = f"meets {wanted} up to {best.name}{figures_text(case, best)}"
        return f"{kept}; {miss_text(case)}" if case.missed is not None else f"{kept}, the highest valid load"
    if case.missed is not None:
        return f"meets {wanted} at no measured load: {miss_text(case)}"
    return f"unknown whether it meets {wanted}, because no load is valid"
