"""Answers to the first ten questions of a performance engineer about a sweep. Pure functions."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, TypeAlias

from loadtest.bottleneck import LimitName, is_shared
from loadtest.loads import (
    NAMES,
    best_load,
    distances,
    good_share,
    tail_of,
    usd_per_million_good_tokens,
)
from loadtest.measure import REPEATS_WANTED, student_t
from loadtest.steady import steady_output
from loadtest.verdict_case import Case, limit_name, miss_text, plan_text, worst_latency

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
    "e2e": "E2E misses its limit: request fewer output tokens, or use a faster accelerator.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictAnswer:
    """One question with its answer."""

    question: str
    answer: str
    known: bool
    """False if the sweep does not tell. The answer then names the missing measurement."""


_Found: TypeAlias = tuple[str, bool]
"""An answer, and whether it is known."""


def answers_of(case: Case) -> tuple[VerdictAnswer, ...]:
    """Return the answers, in the order of QUESTIONS."""
    found = (
        _saturated(case),
        _limits(case),
        _cost(case),
        _meets(case),
        _up_to(case),
        _by_how_much(case),
        _as_planned(case),
        _certainty(case),
        _tail(case),
        (_next(case), True),
    )
    return tuple(
        VerdictAnswer(question=question, answer=answer, known=known)
        for question, (answer, known) in zip(QUESTIONS, found, strict=True)
    )


def _saturated(case: Case) -> _Found:
    found = case.bottleneck
    if found.saturated is None:
        return f"Unknown: {found.reason}.", False
    at = found.at.text if found.at is not None else ""
    return (f"Yes, at {at}." if found.saturated else f"No, not up to {at}."), True


def _limits(case: Case) -> _Found:
    found = case.bottleneck
    if found.limit == "unknown":
        return f"Unknown: {found.reason}.", False
    if found.limit == "none":
        return f"Nothing yet: {found.reason}.", True
    return f"{'This' if found.limit == 'client' else 'The'} {limit_name(found.limit)}: {found.reason}.", True


def _cost(case: Case) -> _Found:
    load, price = case.best, case.run.get("usd_per_hour")
    if price is None:
        return "Unknown: no price. Pass --usd-per-hour.", False
    if load is None:
        return f"Unknown: no valid load {'meets the limits' if case.objective else 'was measured'}.", False
    cost = usd_per_million_good_tokens(case.run, load, case.objective)
    if cost is None:
        return "Unknown: no output.", False
    kind = "good" if case.objective else "output"
    per_request = f"{cost * load.shape.output_tokens:,.3g} USD per million requests"
    return f"{cost:,.3g} USD per million {kind} tokens, {per_request}, at {price:g} USD per hour and {load.name}.", True


def _meets(case: Case) -> _Found:
    if case.objective is None:
        return "Unknown: no limits. Pass --slo.", False
    wanted = case.objective.wanted(case.share)
    if case.best is not None:
        return f"Yes: {wanted}, with {good_share(case.best.results):.2%} good at {case.best.name}.", True
    if case.missed is not None:
        return f"No: {wanted} at no measured load.", True
    return "Unknown: no load is valid.", False


def _up_to(case: Case) -> _Found:
    if case.objective is None or case.best is None:
        name = f"{case.best.name}, the highest output rate" if case.best and case.objective is None else "None"
        return f"{name}.", case.objective is not None and case.missed is not None
    others = [
        found.name
        for shape in dict.fromkeys(load.shape for load in case.loads)
        if shape != case.best.shape
        and (found := best_load([load for load in case.loads if load.shape == shape], case.objective, case.share))
        is not None
    ]
    end = "" if case.missed else " (highest valid load)"
    return f"{'; '.join([case.best.name + end, *others])}.", True


def _by_how_much(case: Case) -> _Found:
    if case.objective is None:
        return "Unknown: no limits. Pass --slo.", False
    parts: list[str] = []
    found = distances(case.best, case.objective, case.share) if case.best is not None else {}
    if case.best is not None and found:
        far = (
            f"{NAMES[name]} {abs(value):.0%} {'above' if value > 0 else 'below'} its limit"
            for name, value in found.items()
        )
        parts.append(f"at {case.best.text} {', '.join(far)}")
    if case.missed is not None:
        parts.append(miss_text(case))
    if not parts:
        return "Unknown: no valid load has values per request.", False
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]} (at the {100 * case.share:g}th percentile).", True


def _as_planned(case: Case) -> _Found:
    found = case.plan_level or case.plan
    if found is None:
        return f"Unknown: {case.run.get('no_forecast') or 'no forecast'}.", False
    blame = "Above the band, so the plan is too pessimistic"
    if found.is_within:
        blame = "Within the band, so the plan is right"
    elif found.measured < found.low:
        blame = "Below the band: the plan is too optimistic, or the server is slower than it should be"
    return f"{blame}: {plan_text(case)}.", True


def _certainty(case: Case) -> _Found:
    load = case.shown
    invalid = sum(not each.is_valid for each in case.loads)
    counts = f"{len(case.loads) - invalid} of {len(case.loads)} loads are valid"
    if load is None:
        return f"Not at all: {counts}.", False
    shared = sum(any(map(is_shared, each.results)) for each in case.loads)
    parts = [counts, f"other clients used the server during {shared} of them" if shared else ""]
    if case.objective is not None:
        tail, share = tail_of(load), good_share(load.results)
        count = tail.requests if tail else sum(result["completed"] for result in load.results)
        low, high = _share_interval(share * count, count)
        parts.append(f"{share:.1%} good ({low:.1%} to {high:.1%}, {count:,} requests)")
    repeats = len(load.results)
    if repeats < REPEATS_WANTED:
        measured = "one measurement" if repeats == 1 else f"{repeats} measurements"
        parts.append(f"the variation between runs is unknown from {measured} (--repeats {REPEATS_WANTED})")
    else:
        rates = list(map(steady_output, load.results))
        error = statistics.stdev(rates) / math.sqrt(repeats) / statistics.fmean(rates)
        half = student_t(ERROR, repeats - 1) * error
        parts.append(f"output rate +-{half:.1%} over {repeats} repeats (95% interval)")
    return f"{'; '.join(part for part in parts if part)}.", repeats >= REPEATS_WANTED and not shared


def _share_interval(kept: float, total: int) -> tuple[float, float]:
    """Return the interval of a share with the error probability ERROR (E. B. Wilson, Journal of the American Statistical Association 22, 1927)."""
    if not total:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(1 - ERROR / 2)
    centre = (kept + z * z / 2) / (total + z * z)
    half = z / (total + z * z) * math.sqrt(kept * (total - kept) / total + z * z / 4)
    return max(0.0, centre - half), min(1.0, centre + half)


def _tail(case: Case) -> _Found:
    load = case.shown
    found = tail_of(load) if load is not None else None
    if load is None or found is None:
        return "Unknown: no valid load has values per request.", False
    values = ", ".join(f"{NAMES[name]} {1000 * value:,.4g} ms" for name, value in found.values_s.items())
    where = " of the steady window" if any(result.get("steady") for result in load.results) else ""
    return f"{found.name} {values} at {load.name}, from {found.requests:,} requests{where}.", found.share is not None


def _next(case: Case) -> str:
    """Return the one change to make first."""
    limit = case.bottleneck.limit
    best = case.best
    missed = case.missed
    if case.shown is None and limit != "client":
        return f"Fix the reason that no load is valid: {case.bottleneck.reason}."
    if case.objective is not None and best is None and missed is not None:
        name, _ = worst_latency(missed, case.objective, case.share)
        return SLOW.get(name, "Find the cause of the failed requests, which the report lists.")
    if best is not None and missed is not None and missed.level > 1.25 * best.level:
        after = f" Then: {NEXT[limit]}" if limit in NEXT and limit != "client" else ""
        option = "--concurrency" if best.shape.mode == "closed" else "--request-rate"
        middle = math.sqrt(best.level * missed.level)
        level = f"{round(middle)}" if best.shape.mode == "closed" else f"{middle:.3g}"
        return f"Measure loads between {best.level:g} and {missed.level:g} {best.shape.unit}, such as {option} {level}.{after}"
    if limit in NEXT:
        return NEXT[limit]
    top = case.bottleneck.at
    option = "--concurrency" if top is None or top.shape.mode == "closed" else "--request-rate"
    return f"Measure higher loads, such as {option} {2 * top.level if top else 1:g}."
