"""Search for the highest load that meets given limits, by bisection with a sequential test at each step. Pure functions and values.

The test is Wald's sequential probability ratio test of a share (A. Wald, Sequential Tests of Statistical Hypotheses, Annals of
Mathematical Statistics 16, 1945). With `m` as the share of requests that may miss a limit (1 % by default), it distinguishes a miss rate
of m / 2 from one of 2 m, with an error of 5 % each way. It evaluates requests in the order they were sent, so fast responses do not count
before slow ones. Requests are not independent, so the 5 % apply to a
steady load, and the start of a step is skipped (`skipped_requests`). Dependence is strongest near saturation, where a
queue of random arrivals may stay short during a step. A longer step therefore confirms or lowers the rate found by bisection.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Final, Literal

from loadtest.forecast import NO_FORECAST, Band, forecast_text
from loadtest.measure import Objective
from loadtest.records import EndLoad, RequestRecord, StopLoad
from loadtest.ttft_uncertainty import invalid_reasons

DEFAULT_SHARE: Final = 0.99
"""Share of the requests that must meet the limits."""
ERROR: Final = 0.05
"""Probability of a wrong verdict at a miss rate of m / 2 or 2 m."""
FACTOR: Final = 2.0
MOST_REQUESTS: Final = 1000
"""Maximum requests of one step. The observed share then decides."""
CONFIRM_S: Final = 600.0
"""Time whose requests confirm a rate ..."""
FEWEST_CONFIRMING: Final = 300
"""... but at least this many, and at most MOST_REQUESTS."""
MOST_CONFIRMATIONS: Final = 8
PROBE_USERS: Final = 16
"""Users of the closed loop that finds the first rate of a search without a forecast."""
PROBE_S: Final = 5.0
"""Seconds that the probe sends requests."""
PROBE_SHARE: Final = 0.75
"""The first rate, as a share of the rate that the probe completed: limits are met below the capacity."""
INTERVAL: Final = 0.95
"""Confidence of the interval of the share that met the limits."""
WIDTH: Final = 1.05
"""The search ends if the lowest load that misses is at most this factor above the highest that meets the limits."""
MOST_STEPS: Final = 16
BACKLOG_TIMES: Final = 20.0
"""The test of an open loop starts after this multiple of the shortest limit. A server overloaded by 5 % then has a backlog as
long as the limit, and every further request misses it."""
SKIPPED_WAVES: Final = 2
"""The test of a closed loop starts after this many requests per user."""
MOST_BACKLOG_S: Final = 60.0

HOPELESS: Final = 20
"""Consecutive misses that end a step before its test has started."""

Verdict = Literal["keeps", "misses"]
"""Verdicts as results store them. `verdict_name` is the text for users."""


def backlog_s(objective: Objective) -> float:
    """Return the time after which the backlog of an overloaded open loop shows."""
    limits = [limit for limit in (objective.ttft_s, objective.e2e_s) if limit is not None]
    return min(MOST_BACKLOG_S, BACKLOG_TIMES * min(limits)) if limits else 0.0


def verdict_name(verdict: str) -> str:
    """Return a verdict as text that "the limits" follows."""
    return "meets" if verdict == "keeps" else verdict


def skipped_requests(objective: Objective, *, users: int | None, rate_per_s: float | None) -> int:
    """Return the number of requests at the start of a step that its test skips."""
    return SKIPPED_WAVES * users if users is not None else math.ceil((rate_per_s or 0.0) * backlog_s(objective))


@dataclass(slots=True, kw_only=True)
class ShareTest:
    """Test whether the share of requests that meet the limits is `share`: with as few requests as possible, or with `most`."""

    share: float
    most: int | None = None
    """Requests of a confirming step; None for a sequential test."""
    kept: int = 0
    missed: int = 0

    @property
    def verdict(self) -> Verdict | None:
        """Verdict, or None while further requests can change it."""
        allowed = 1 - self.share
        if self.most is not None:
            if self.missed > allowed * self.most:
                return "misses"
            return "keeps" if self.kept + self.missed >= self.most else None
        low, high = allowed / FACTOR, min(allowed * FACTOR, (1 + allowed) / 2)
        ratio = self.missed * math.log(high / low) + self.kept * math.log((1 - high) / (1 - low))
        bound = math.log((1 - ERROR) / ERROR)
        if ratio >= bound:
            return "misses"
        return "keeps" if ratio <= -bound else None

    @property
    def forced(self) -> Verdict:
        """Verdict from the observed share alone, if no more requests may be sent."""
        return self.verdict or ("keeps" if self.missed <= (1 - self.share) * (self.kept + self.missed) else "misses")


def confirming_requests(rate_per_s: float, most: int) -> int:
    """Return the number of requests that confirm a rate."""
    return min(most, max(FEWEST_CONFIRMING, round(rate_per_s * CONFIRM_S)))


@dataclass(slots=True, kw_only=True)
class StepTest:
    """Test of one step, fed with the verdicts of requests as they arrive."""

    test: ShareTest
    skipped: int
    """Requests at the start that the test skips, while the backlog or the queue of users builds up."""
    ended: Verdict | None = None
    _waiting: dict[int, bool] = field(default_factory=dict[int, bool])
    _next: int = 0
    _missed_in_a_row: int = 0

    def take(self, verdicts: Sequence[tuple[int, bool]]) -> EndLoad | StopLoad | None:
        """Add verdicts in any order. Return how to end the step, or None to continue."""
        self._waiting.update(verdicts)
        while self.ended is None and self._next in self._waiting:
            self._count(kept=self._waiting.pop(self._next))
            self._next += 1
            if self.ended is not None:
                # Answering the backlog takes long and changes nothing.
                return StopLoad() if self.ended == "misses" else EndLoad()
        return None

    def _count(self, *, kept: bool) -> None:
        self._missed_in_a_row = 0 if kept else self._missed_in_a_row + 1
        if self._next >= self.skipped:
            self.test.kept, self.test.missed = self.test.kept + kept, self.test.missed + (not kept)
            self.ended = self.test.verdict
        elif self._missed_in_a_row >= HOPELESS:
            self.ended = "misses"

    def finish(self, records: Sequence[RequestRecord], objective: Objective) -> Verdict:
        """Return the verdict of a step whose requests are all finished."""
        if self.ended is None:
            for record in sorted(records, key=lambda record: record.index):
                if self.ended is None and record.index >= self._next:
                    self._next = record.index  # a missing index was never sent
                    self.take([(record.index, record.error is None and objective.kept_by(record))])
        return self.ended or self.test.forced


@dataclass(slots=True, kw_only=True)
class Bisection:
    """Choice of the next load from the verdicts so far. Loads double or halve until both verdicts are known."""

    first: float
    least: float
    most: float
    whole: bool
    """True if loads are whole numbers, that is users rather than requests per second."""
    steps: int = 0
    kept: float | None = None
    missed: float | None = None

    def learn(self, level: float, verdict: Verdict) -> None:
        """Record the verdict of a step."""
        self.steps += 1
        if verdict == "keeps":
            self.kept = level if self.kept is None else max(self.kept, level)
        else:
            self.missed = level if self.missed is None else min(self.missed, level)

    def next_level(self) -> float | None:
        """Return the load of the next step, or None when the search is over."""
        if self.steps >= MOST_STEPS:
            return None
        low, high = self.kept, self.missed
        if low is None and high is None:
            return self.rounded(self.first)
        if high is None and low is not None:
            return None if low >= self.most else self.rounded(min(self.most, low * 2))
        if low is None and high is not None:
            return None if high <= self.least else self.rounded(max(self.least, high / 2))
        if low is None or high is None or high <= low * WIDTH or (self.whole and high - low <= 1):
            return None
        middle = self.rounded(math.sqrt(low * high))
        return None if middle <= low or middle >= high else middle

    def rounded(self, value: float) -> float:
        """Return a measurable load: a whole number of users, or a rate with three digits."""
        return float(max(1, round(value))) if self.whole else float(f"{value:.3g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One measurement of a search."""

    level: float
    confirms: bool = False
    """True if it confirms the rate found, with more requests."""


@dataclass(slots=True, kw_only=True)
class Search:
    """Choice of the steps of a search: bisection, then longer steps until one confirms the rate. An unconfirmed rate is lowered."""

    bisection: Bisection
    confirmed: bool = False
    _tried: list[float] = field(default_factory=list[float])

    def next_step(self) -> Step | None:
        """Return the next step, or None when the search is over."""
        level = self.bisection.next_level()
        if level is not None:
            return Step(level=level)
        kept = self.bisection.kept
        # Users wait for their responses, so no queue grows and bisection is sufficient.
        if kept is None or self.bisection.whole or self.confirmed or len(self._tried) >= MOST_CONFIRMATIONS:
            return None
        level = kept if not self._tried else self.bisection.rounded(self._tried[-1] / WIDTH)
        return Step(level=level, confirms=True) if level >= self.bisection.least else None

    def learn(self, step: Step, verdict: Verdict) -> None:
        """Record the verdict of a step."""
        if step.confirms:
            self._tried.append(step.level)
            self.confirmed = verdict == "keeps"
        else:
            self.bisection.learn(step.level, verdict)


def bisection_for(concurrency: Sequence[int], rates: Sequence[float]) -> Bisection:
    """Return the search for the given loads: users between the lowest and the highest, or else rates."""
    levels = [float(level) for level in (concurrency or rates)]
    whole = bool(concurrency)
    if len(levels) > 1:
        return Bisection(first=math.sqrt(min(levels) * max(levels)), least=min(levels), most=max(levels), whole=whole)
    return Bisection(
        first=levels[0] if levels else 1.0,
        least=1.0 if whole else 0.01,
        most=4096.0 if whole else 10_000.0,
        whole=whole,
    )


def share_interval(kept: float, total: int) -> tuple[float, float]:
    """Return the interval of a share with the confidence INTERVAL (E. B. Wilson, Journal of the American Statistical Association 22, 1927)."""
    if not total:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + INTERVAL) / 2)
    centre = (kept + z * z / 2) / (total + z * z)
    half = z / (total + z * z) * math.sqrt(kept * (total - kept) / total + z * z / 4)
    return max(0.0, centre - half), min(1.0, centre + half)


def limits_text(objective: Objective) -> str:
    """Return the limits as text."""
    return ", ".join(f"{name.upper()} <= {limit:g} s" for name, limit in objective.limits.items())


def found_json(
    results: Sequence[Mapping[str, Any]],
    *,
    name: str,
    objective: Objective,
    share: float,
    whole: bool,
    forecast: Band | None = None,
    no_forecast: str = NO_FORECAST,
) -> dict[str, Any]:
    """Return the result of the search, with its sentence, from the results of its steps.

    It is valid if the highest load that meets the limits is a valid point, and if no late client caused the next load to miss them.
    """
    steps = [result for result in results if "search" in result]
    best, is_sure = _best(steps, whole=whole)
    missed = [result for result in steps if result["search"]["verdict"] == "misses"]
    above = [result for result in missed if best is None or result["point"]["level"] > best["point"]["level"]]
    worst = min(above, key=lambda result: result["point"]["level"], default=None)
    unit = "users" if whole else "req/s"
    doubts = ([] if is_sure else ["no longer step confirmed it"]) + _doubts(best, worst, unit)
    expected = no_forecast if forecast is None else forecast_text(forecast, unit, whole=whole)
    sentence = f"{name} meets {wanted_text(objective, share)} {_found(best, worst, unit)}; {expected}"
    return {
        "sentence": "; ".join([sentence, *doubts]),
        "level": best["point"]["level"] if best is not None else None,
        "unit": unit,
        "missed_at": worst["point"]["level"] if worst is not None else None,
        "met": _met(best) if best is not None else None,
        "share": share,
        "steps": len(steps),
        "requests": sum(result["search"]["kept"] + result["search"]["missed"] for result in steps),
        "usd_per_million_output_tokens": best["usd_per_million_output_tokens"] if best is not None else None,
        "forecast": forecast.rounded(4) if forecast is not None else None,
        "no_forecast": no_forecast if forecast is None else None,
        "doubts": doubts,
        "valid": best is not None and not doubts,
    }


def _best(steps: Sequence[Mapping[str, Any]], *, whole: bool) -> tuple[Mapping[str, Any] | None, bool]:
    """Return the step with the highest load that meets the limits, and whether it is confirmed. Only a rate needs confirmation."""
    kept = [step for step in steps if step["search"]["verdict"] == "keeps"]
    sure = [step for step in kept if whole or step["search"].get("confirms")]
    if sure:
        return max(sure, key=lambda step: step["point"]["level"]), True
    refuted = [s["point"]["level"] for s in steps if s["search"].get("confirms")]
    quick = [step for step in kept if step["point"]["level"] < min(refuted, default=math.inf)]
    return max(quick, key=lambda step: step["point"]["level"], default=None), not quick


def _met(best: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of the requests that met the limits at the load that was found, with its interval."""
    kept, requests = best["search"]["kept"], best["search"]["kept"] + best["search"]["missed"]
    low, high = share_interval(kept, requests)
    return {
        "share": round(kept / max(1, requests), 6),
        "low": round(low, 6),
        "high": round(high, 6),
        "requests": requests,
    }


def wanted_text(objective: Objective, share: float) -> str:
    """Return the limits and the share of the requests that must meet them, as text."""
    return f"{limits_text(objective)} for {_percent(share)} of the requests"


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def _found(best: Mapping[str, Any] | None, worst: Mapping[str, Any] | None, unit: str) -> str:
    """Return the load that was found and its cost, as text."""
    if best is None:
        lowest = f", not even {worst['point']['level']:g} {unit}" if worst is not None else ""
        return f"at no tested load{lowest}"
    cost = best["usd_per_million_output_tokens"]
    price = f"{cost:.2f} USD per million output tokens" if cost is not None else "no price without --usd-per-hour"
    level, met = best["point"]["level"], _met(best)
    above = (
        f" (between {level:g} and {worst['point']['level']:g})" if worst is not None else ", the highest tested load"
    )
    share = (
        f"{_percent(met['share'])} of {met['requests']} requests met them, {INTERVAL:.0%} interval {_percent(met['low'])} to"
        f" {_percent(met['high'])}"
    )
    return f"up to {level:g} {unit}{above}: {share}; {price}"


def _doubts(best: Mapping[str, Any] | None, worst: Mapping[str, Any] | None, unit: str) -> list[str]:
    """Return why the load that was found may be wrong. A late client can make requests miss limits that the server met."""
    doubts: list[str] = []
    if best is not None and not best["valid"]:
        doubts.append(f"that point is invalid: {best['invalid_reasons'][0]}")
    late = invalid_reasons(worst["client"], worst) if worst is not None else []
    if worst is not None and late:
        doubts.append(f"at {worst['point']['level']:g} {unit} the client was the limit: {late[0]}")
    return doubts
