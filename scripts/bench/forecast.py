"""What the planner expects of a search for limits: the highest load that keeps them, and the output rate of each step. Pure functions.

The planner computes mean times; a search asks for a share of the requests. So the forecast is the load at which the mean request keeps
the limits, and a measured load below it is no surprise where times vary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from loadtest.forecast import LEAST, MOST_RATE, MOST_USERS, Band
from loadtest.measure import Objective
from loadtest.traffic.points import Point
from loadtest.traffic.spec import Traffic
from planning.question.types import Band as PlannedBand
from planning.question.types import WorkloadPlan
from planning.question.workload import Workload

Answers: TypeAlias = Callable[[Workload], WorkloadPlan | None]
"""What a deployment makes of a workload; None if the deployment is not known (`scripts.cli.measured.planned`)."""

WITHOUT_STACK: Final = "no forecast without --stack"
OF_FILE: Final = "no forecast, because the planner describes no dataset"
NOT_DEPLOYED: Final = "no forecast, because the stack's settings file is not what is deployed"

WIDTH: Final = 1.005
"""A forecast of a rate is exact to this factor."""

_End: TypeAlias = Literal["low", "typical", "high"]
_LATENCY_END: Final[dict[_End, _End]] = {"low": "high", "typical": "typical", "high": "low"}
"""The load is at its low end where times are at their high end."""


@dataclass(frozen=True, slots=True)
class PlanForecast:
    """The forecast of a stack's plan."""

    answers: Answers

    def level(self, traffic: Traffic, point: Point, objective: Objective, *, whole: bool) -> Band | None:
        """Return the highest load that keeps the limits."""
        shape = shape_of(traffic, point)
        return None if shape is None else level_forecast(self.answers, shape, objective, whole=whole)

    def output_tok_per_s(self, traffic: Traffic, point: Point, *, whole: bool) -> Band | None:
        """Return the output rate of a point."""
        shape = shape_of(traffic, point)
        return None if shape is None else output_forecast(self.answers, shape, point.level, whole=whole)

    def why_none(self, traffic: Traffic) -> str:
        """Return why there is no forecast."""
        return OF_FILE if traffic.dataset is not None or traffic.trace is not None else NOT_DEPLOYED


def shape_of(traffic: Traffic, point: Point) -> Workload | None:
    """Return the planner's workload of a load, without its level; None for the rows of a file. Distributions have their means."""
    if traffic.dataset is not None or traffic.trace is not None:
        return None
    shared = traffic.prefix_share or (traffic.prefix_tokens or 0) / point.input_tokens
    return Workload(
        input_tokens=point.input_tokens,
        output_tokens=point.output_tokens,
        prefix_share=min(shared, 1.0),
        images=traffic.images,
    )


def at_level(shape: Workload, level: float, *, whole: bool) -> Workload:
    """Return the workload with a level: users if it is `whole`, else requests per second."""
    return replace(shape, users=round(level)) if whole else replace(shape, rate_per_s=level)


def level_forecast(answers: Answers, shape: Workload, objective: Objective, *, whole: bool) -> Band | None:
    """Return the highest load that keeps the limits, with its band; 0.0 if none does, and None without a plan.

    The ends come from the planner's bands (`planning.speed.bands`): of the times, and of the rate at which the server is saturated.
    """
    full = answers(shape)
    if full is None:
        return None
    most_per_s = _saturated_per_s(full)

    def keeps(level: float, end: _End) -> bool:
        if not whole and level > getattr(most_per_s, end):
            return False
        # Above the planned saturation the plan has a queue that grows, which a server at the high end of the band has not.
        plan = answers(at_level(shape, level if whole else min(level, full.most_requests_per_s), whole=whole))
        return plan is not None and _meets(plan, objective, _LATENCY_END[end])

    def highest(end: _End) -> float:
        return _highest(lambda level: keeps(level, end), whole=whole)

    return Band(low=highest("low"), typical=highest("typical"), high=highest("high"))


def output_forecast(answers: Answers, shape: Workload, level: float, *, whole: bool) -> Band | None:
    """Return the output tokens per second at a load, with the band; None without a plan.

    An open loop gets what it asks for up to saturation, which may come at the low end of the band or at the high one.
    """
    if whole:
        plan = answers(at_level(shape, level, whole=True))
        return None if plan is None else _band(plan.output_tok_per_s)
    full = answers(shape)
    if full is None:
        return None
    most = _saturated_per_s(full)
    ends = [min(level, end) * shape.output_tokens for end in (most.low, most.typical, most.high)]
    return Band(low=ends[0], typical=ends[1], high=ends[2])


def _band(planned: PlannedBand) -> Band:
    return Band(low=planned.low, typical=planned.typical, high=planned.high)


def _saturated_per_s(full: WorkloadPlan) -> PlannedBand:
    """Return the requests per second at which the server is saturated, with the band of its output rate."""
    output = full.output_tok_per_s
    return output.times(full.most_requests_per_s / output.typical)


def _meets(plan: WorkloadPlan, objective: Objective, end: _End) -> bool:
    pairs = ((objective.ttft_s, plan.ttft_s), (objective.tpot_s, plan.tpot_s), (objective.e2e_s, plan.request_s))
    return all(limit is None or getattr(band, end) <= limit for limit, band in pairs)


def _highest(keeps: Callable[[float], bool], *, whole: bool) -> float:
    """Return the highest load that keeps; 0.0 if the lowest does not."""
    low, high = (1.0, MOST_USERS) if whole else (LEAST, MOST_RATE)
    if not keeps(low):
        return 0.0
    if keeps(high):
        return high
    while (high - low > 1) if whole else (high > low * WIDTH):
        middle = float((low + high) // 2) if whole else math.sqrt(low * high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low
