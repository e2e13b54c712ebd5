"""Cost of solutions per day, with steady traffic or bursts, for each payment mode of the server.

A slice with flex-start runs once per day and is deleted at the end of its run. A Cloud Run instance starts with the first
request, and is billed until it has been idle for some minutes. A minimum instance and a slice on demand are billed all day.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace as replace_struct

from gemma_serving.planning.cost.running_costs import running_costs
from gemma_serving.planning.cost.subject import subject_of
from gemma_serving.planning.machine.hardware import FLEX_START_MAX_RUN_S
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.question.types import RunningCosts
from gemma_serving.planning.solve.search import Goal, Rank, Solution, rank
from gemma_serving.planning.units import DAY_S, HOUR_S, MONTH_H, align_to

DAY_H: Final = DAY_S / HOUR_S
HOUR_MINUTES: Final = 60.0
_RUN_STEP_S: Final = 300
"""A run duration is rounded up to this step."""
_MILLION: Final = 1_000_000
Kind: TypeAlias = Literal["flex-start", "on-demand", "scale-to-zero", "min-instance"]
"""Payment mode of the server. `min-instance` and `on-demand` never stop."""


class Profile(Struct, frozen=True, kw_only=True):
    """Traffic of one day, which repeats each day of the month."""

    hours_per_day: float
    """Hours per day in which the server has to answer: one period."""
    busy_minutes: float = HOUR_MINUTES
    """Minutes of traffic in each of these hours: fewer than 60 for one burst per hour."""


class Way(Struct, frozen=True, kw_only=True):
    """A solution with one payment mode, under a profile."""

    kind: Kind
    solution: Solution
    profile: Profile
    usd_per_hour: float
    start_s: float
    """Start of the server, except for the first one."""
    billed_h: float
    """Hours per day that are billed."""
    starts_per_day: float = 0.0
    """Cold starts per day that clients wait for. A flex-start run starts before the period."""

    @property
    def usd_per_day(self) -> float:
        """Cost per day, without parts of the bill that are not billed by the hour."""
        return self.usd_per_hour * self.billed_h

    @property
    def usd_per_month(self) -> float:
        """Cost per month."""
        return self.usd_per_day * MONTH_H / DAY_H

    @property
    def usd_per_million_tokens(self) -> float:
        """Cost per million tokens, prompts and responses together, if the workload runs in all minutes of traffic."""
        busy_s = self.profile.hours_per_day * self.profile.busy_minutes * HOUR_S / HOUR_MINUTES
        return self.usd_per_day / (self.solution.tokens_per_s * busy_s) * _MILLION

    @property
    def run_s(self) -> int | None:
        """Duration of a flex-start run, after which Google deletes the slice; None if the server has no end."""
        if self.kind != "flex-start":
            return None
        return FLEX_START_MAX_RUN_S if self.billed_h >= DAY_H else round(self.billed_h * HOUR_S)

    def rank(self, goal: Goal) -> Rank:
        """Return the order of ways by a goal, the lowest first."""
        return rank(goal, self.solution, self.usd_per_day, self.usd_per_million_tokens, starts=self.starts_per_day)

    def deployed(self) -> Solution:
        """Return the solution with the run duration, provisioning model or minimum instance of this way."""
        whole = self.solution.deployment
        if self.kind == "min-instance":
            whole = replace_struct(whole, cloud_run=dataclasses.replace(whole.cloud_run, min_instances=1))
        elif self.kind == "flex-start":
            whole = replace_struct(whole, tpu=dataclasses.replace(whole.tpu, max_run_duration_s=self.run_s))
        elif self.kind == "on-demand":
            whole = replace_struct(
                whole, tpu=dataclasses.replace(whole.tpu, provisioning=("standard",), max_run_duration_s=None)
            )
        return replace_struct(self.solution, subject=subject_of(resolve(whole)))


class Choice(Struct, frozen=True, kw_only=True):
    """The options to serve a workload under a profile, the chosen one first."""

    profile: Profile
    goal: Goal
    ways: tuple[Way, ...]
    """The best of each kind, or of each family if several exist; the best first."""
    other: Way | None
    """The best way on the other platform, otherwise of another kind; None if none exists."""
    cheapest: Way
    stays: Way | None
    """The chosen deployment without cold starts, if it has some."""

    @property
    def chosen(self) -> Way:
        """The best way by the goal."""
        return self.ways[0]


def choose(solutions: Iterable[Solution], profile: Profile, goal: Goal) -> Choice:
    """Return the best ways by the goal. `solutions` must not be empty."""
    ways = (way for one in solutions for way in ways_of(one, running_costs(one.subject), profile))
    found = sorted(ways, key=lambda way: way.rank(goal))
    chosen, groups = found[0], dict[str, Way]()
    has_families = len({way.solution.architecture for way in found}) > 1
    for way in found:
        groups.setdefault(way.solution.architecture if has_families else way.kind, way)
    on_slice = chosen.solution.subject.resolved.is_tpu
    elsewhere = [way for way in found if way.solution.subject.resolved.is_tpu != on_slice]
    otherwise = [way for way in found if way.kind != chosen.kind]
    fewer = [way for way in otherwise if way.solution is chosen.solution and way.starts_per_day < chosen.starts_per_day]
    return Choice(
        profile=profile,
        goal=goal,
        ways=tuple(groups.values()),
        other=next(iter((*elsewhere, *otherwise)), None),
        cheapest=min(found, key=lambda way: way.rank("cost")),
        stays=next(iter(fewer), None),
    )


def ways_of(solution: Solution, running: RunningCosts, profile: Profile) -> Iterator[Way]:
    """Yield the payment modes of a solution with these costs."""
    start_s = running.cold_start_s
    if start_s is None:  # a solution's start is known
        return
    way = partial(Way, solution=solution, profile=profile, start_s=start_s, usd_per_hour=running.idle_usd_per_hour)
    if running.idle_billing_s:
        billed_h, starts = _on_request(start_s / HOUR_S, running.idle_billing_s / HOUR_S, profile)
        yield way(kind="scale-to-zero", billed_h=billed_h, starts_per_day=starts)
        yield way(kind="min-instance", billed_h=DAY_H)
        return
    run_s = align_to(math.ceil(profile.hours_per_day * HOUR_S + start_s), _RUN_STEP_S)
    yield way(kind="flex-start", billed_h=min(run_s / HOUR_S, DAY_H))
    yield way(kind="on-demand", billed_h=DAY_H, usd_per_hour=running.always_on_usd_per_month / MONTH_H)


def _on_request(start_h: float, linger_h: float, profile: Profile) -> tuple[float, float]:
    """Return the billed hours and the cold starts per day of an instance that scales to zero.

    If a pause is shorter than the billed idle time, the instance stays for the whole period, which is the maximum.
    Otherwise each burst has its own start and its own idle time.
    """
    pause_h = (HOUR_MINUTES - profile.busy_minutes) / HOUR_MINUTES
    burst_h = min(profile.busy_minutes / HOUR_MINUTES, profile.hours_per_day)
    whole_h = start_h + max(profile.hours_per_day - pause_h, burst_h) + linger_h
    if pause_h <= linger_h:
        return min(whole_h, DAY_H), 0.0 if whole_h >= DAY_H else 1.0
    bursts = math.ceil(profile.hours_per_day)
    return min(bursts * (start_h + burst_h + linger_h), whole_h, DAY_H), float(bursts)
