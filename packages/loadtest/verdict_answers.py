"""Answers to the ten questions that a performance engineer asks first about a sweep. Pure functions."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from loadtest.bottleneck import LimitName, is_shared
from loadtest.loads import (
    NAMES,
    Load,
    best_load,
    distances,
    good_share,
    tail_of,
    usd_per_million_good_tokens,
)
from loadtest.slo_search import share_interval, wanted_text
from loadtest.steady import steady_output
from loadtest.student import student_t
from loadtest.verdict_case import Case, limit_name, miss_text, plan_text, worst_latency

REPEATS_WANTED: Final = 3
ERROR: Final = 0.05
"""Error probability of the intervals in the answers."""

QUESTIONS: Final = (
    "Is it saturated?",
    "What limits it?",
    "What does it cost?",
    "Does it meet the limits?",
    "Up to which load?",
    "By how much?",
    "Is it as planned?",
    "How certain is it?",
    "What is the tail?",
    "What to change next?",
)
"""The questions of a report's first screen, in order."""
NEXT: Final[Mapping[LimitName, str]] = {
    "client": "Run the client on a faster or less busy machine, or with more --workers, and measure again.",
    "KV cache": "Enlarge the KV cache: higher gpu-memory-utilization, an fp8 KV cache, a shorter max-model-len, or more devices.",
    "batch": "Raise max-num-seqs, because the KV cache has space for more concurrent requests.",
    "queue": "Lower the load, or add a second server: requests wait although this one runs as many as it can.",
    "server": "Use more or faster devices, fewer bits per weight, or speculative decoding.",
}
SLOW: Final[Mapping[str, str]] = {
    "ttft": "TTFT misses its limit: shorten or share prompts, raise max-num-batched-tokens, or use a faster accelerator.",
    "tpot": "TPOT misses its limit: lower max-num-seqs, use fewer bits per weight, or a faster accelerator.",
    "e2e": "E2E misses its limit: ask for fewer output tokens, or use a faster accelerator.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question with its answer."""

    question: str
    answer: str
    known: bool
    """False if the sweep does not tell. The answer then names what would."""


def answers_of(case: Case) -> tuple[Answer, ...]:
    """Return the answers, in the order of QUESTIONS."""
    return (
        _saturated(case),
        _limits(case),
        _cost(case),
        _meets(case),
        _up_to(case),
        _by_how_much(case),
        _as_planned(case),
        _certainty(case),
        _tail(case),
        _next(case),
    )


def _answered(number: int, answer: str, *, known: bool = True) -> Answer:
    return Answer(question=QUESTIONS[number], answer=answer, known=known)


def _saturated(case: Case) -> Answer:
    found = case.bottleneck
    if found.saturated is None:
        return _answered(0, f"Unknown: {found.reason}.", known=False)
    where = f"at {found.at.text}" if found.at is not None else ""
    return _answered(0, f"Yes, {where}." if found.saturated else f"No, not up to {found.at.text if found.at else ''}.")


def _limits(case: Case) -> Answer:
    found = case.bottleneck
    if found.limit == "unknown":
        return _answered(1, f"Unknown: {found.reason}.", known=False)
    if found.limit == "none":
        return _answered(1, f"Nothing yet: {found.reason}.")
    name = limit_name(found.limit)
    return _answered(1, f"{'This ' if found.limit == 'client' else 'The '}{name}: {found.reason}.")


def _cost(case: Case) -> Answer:
    load, price = case.best, case.run.get("usd_per_hour")
    if price is None:
        return _answered(2, "Unknown: no price. Pass --usd-per-hour.", known=False)
    if load is None:
        return _answered(
            2, f"Unknown: no valid load {'meets the limits' if case.objective else 'was measured'}.", known=False
        )
    cost = usd_per_million_good_tokens(case.run, load, case.objective)
    if cost is None:
        return _answered(2, "Unknown: no output.", known=False)
    kind = "good" if case.objective else "output"
    per_request = f"{cost * load.shape.output_tokens:,.3g} USD per million requests"
    return _answered(
        2, f"{cost:,.3g} USD per million {kind} tokens, {per_request}, at {price:g} USD per hour and {load.name}."
    )


def _meets(case: Case) -> Answer:
    if case.objective is None:
        return _answered(3, "Unknown: no limits. Pass --slo.", known=False)
    wanted = wanted_text(case.objective, case.share)
    if case.best is not None:
        return _answered(
            3,
            f"Yes: {wanted}, with {good_share(case.best.results):.2%} good at {case.best.name}.",
        )
    if case.missed is not None:
        return _answered(3, f"No: {wanted} at no measured load.")
    return _answered(3, "Unknown: no load is valid.", known=False)


def _up_to(case: Case) -> Answer:
    if case.objective is None or case.best is None:
        name = f"{case.best.name}, the highest output rate" if case.best and case.objective is None else "None"
        return _answered(4, f"{name}.", known=case.objective is not None and case.missed is not None)
    others = [
        found.name
        for shape in dict.fromkeys(load.shape for load in case.loads)
        if shape != case.best.shape
        and (found := best_load([load for load in case.loads if load.shape == shape], case.objective, case.share))
        is not None
    ]
    end = "" if case.missed else " (highest valid load)"
    return _answered(4, f"{case.best.name}{end}{'; ' + '; '.join(others) if others else ''}.")


def _by_how_much(case: Case) -> Answer:
    if case.objective is None:
        return _answered(5, "Unknown: no limits. Pass --slo.", known=False)
    parts: list[str] = []
    if case.best is not None:
        found = distances(case.best, case.objective, case.share)
        parts += (
            [f"at {case.best.text} {', '.join(f'{NAMES[name]} {_distance(value)}' for name, value in found.items())}"]
            if found
            else []
        )
    parts += [miss_text(case)] if case.missed is not None else []
    if not parts:
        return _answered(5, "Unknown: no valid load has values per request.", known=False)
    text = "; ".join(parts)
    return _answered(5, f"{text[:1].upper()}{text[1:]} (at the {100 * case.share:g}th percentile).")


def _distance(value: float) -> str:
    return f"{abs(value):.0%} {'above' if value > 0 else 'below'} its limit"


def _as_planned(case: Case) -> Answer:
    found = case.plan_level or case.plan
    if found is None:
        return _answered(6, f"Unknown: {case.run.get('no_forecast') or 'no forecast'}.", known=False)
    if found.is_within:
        blame = "Within the band, so the plan is right"
    elif found.measured < found.low:
        blame = "Below the band: the plan is too optimistic, or the server is slower than it should be"
    else:
        blame = "Above the band, so the plan is too pessimistic"
    return _answered(6, f"{blame}: {plan_text(case)}.")


def _certainty(case: Case) -> Answer:
    load = case.shown
    invalid = sum(not each.is_valid for each in case.loads)
    counts = f"{len(case.loads) - invalid} of {len(case.loads)} loads are valid"
    if load is None:
        return _answered(7, f"Not at all: {counts}.", known=False)
    shared = sum(any(map(is_shared, each.results)) for each in case.loads)
    others = f"other clients used the server during {shared} of them" if shared else ""
    parts = [counts, others, _share_interval(case, load)]
    repeats = len(load.results)
    if repeats < REPEATS_WANTED:
        measured = "one measurement" if repeats == 1 else f"{repeats} measurements"
        parts.append(f"the variation between runs is unknown from {measured} (--repeats {REPEATS_WANTED})")
    else:
        parts.append(f"output rate +-{_half_width(load):.1%} over {repeats} repeats (95% interval)")
    text = "; ".join(part for part in parts if part)
    return _answered(7, f"{text}.", known=repeats >= REPEATS_WANTED and not shared)


def _share_interval(case: Case, load: Load) -> str:
    """Return the share of good requests with its 95 % interval, as text."""
    if case.objective is None:
        return ""
    found = tail_of(load)
    count = found.requests if found else sum(result["completed"] for result in load.results)
    share = good_share(load.results)
    low, high = share_interval(share * count, count)
    return f"{share:.1%} good ({low:.1%} to {high:.1%}, {count:,} requests)"


def _half_width(load: Load) -> float:
    """Return half the 95 % interval of the output rate over the repeats, relative to its mean."""
    rates = list(map(steady_output, load.results))
    error = statistics.stdev(rates) / math.sqrt(len(rates))
    return student_t(ERROR, len(rates) - 1) * error / statistics.fmean(rates)


def _tail(case: Case) -> Answer:
    load = case.shown
    found = tail_of(load) if load is not None else None
    if load is None or found is None:
        return _answered(8, "Unknown: no valid load has values per request.", known=False)
    values = ", ".join(f"{NAMES[name]} {1000 * value:,.4g} ms" for name, value in found.values_s.items())
    where = " of the steady window" if any(result.get("steady") for result in load.results) else ""
    return _answered(
        8,
        f"{found.name} {values} at {load.name}, from {found.requests:,} requests{where}.",
        known=found.share is not None,
    )


def _next(case: Case) -> Answer:
    """Return the one change to make first."""
    limit = case.bottleneck.limit
    if case.shown is None:
        why = (
            NEXT["client"] if limit == "client" else f"Fix the reason that no load is valid: {case.bottleneck.reason}."
        )
        return _answered(9, why)
    if case.objective is not None and case.best is None and case.missed is not None:
        name, _ = worst_latency(case.missed, case.objective, case.share)
        return _answered(9, SLOW.get(name, "Find the cause of the failed requests, which the report lists."))
    if case.best is not None and case.missed is not None and not case.run.get("find"):
        between = f"between {case.best.level:g} and {case.missed.level:g} {case.best.unit}"
        after = f" Then: {NEXT[limit]}" if limit in NEXT and limit != "client" else ""
        return _answered(9, f"Find the exact load {between} with --find slo.{after}")
    if limit in NEXT:
        return _answered(9, NEXT[limit])
    top = case.bottleneck.at
    option = "--concurrency" if top is None or top.shape.mode == "closed" else "--request-rate"
    return _answered(9, f"Measure higher loads, such as {option} {2 * top.level if top else 1:g}.")
