"""What the planner expects of a search for limits: the highest load that keeps them, and the output rate of each step. Pure functions.

The planner computes mean times; a search asks for a share of the requests. So the forecast is the load at which the mean request keeps
the limits, and a measured load below it is no surprise where times vary.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from planning.question.types import Band, WorkloadPlan
from planning.question.workload import Workload
from scripts.bench.measure import Objective
from scripts.bench.traffic.points import Point
from scripts.bench.traffic.spec import Traffic

Answers: TypeAlias = Callable[[Workload], WorkloadPlan | None]
"""What a deployment makes of a workload; None if the deployment is not known (`scripts.cli.measured.planned`)."""

WITHOUT_STACK: Final = "no forecast without --stack"
OF_FILE: Final = "no forecast, because the planner describes no dataset"
NOT_DEPLOYED: Final = "no forecast, because the stack's settings file is not what is deployed"

LEAST: Final = 0.01
MOST_RATE: Final = 10_000.0
MOST_USERS: Final = 4_096.0
"""Loads that a forecast looks at: those of a search without limits of its own."""
WIDTH: Final = 1.005
"""A forecast of a rate is exact to this factor."""

_End: TypeAlias = Literal["low", "typical", "high"]
_LATENCY_END: Final[dict[_End, _End]] = {"low": "high", "typical": "typical", "high": "low"}
"""The load is at its low end where times are at their high end."""


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
        return None if plan is None else plan.output_tok_per_s
    full = answers(shape)
    if full is None:
        return None
    most = _saturated_per_s(full)
    ends = [min(level, end) * shape.output_tokens for end in (most.low, most.typical, most.high)]
    return Band(low=ends[0], typical=ends[1], high=ends[2])


def _saturated_per_s(full: WorkloadPlan) -> Band:
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


def forecast_text(forecast: Band, unit: str, *, whole: bool) -> str:
    """Return the forecast as the end of a sentence."""
    band = f"({forecast.low:.3g} to {forecast.high:.3g})"
    if forecast.typical == 0.0:
        return f"the plan expects no load to keep them {band}"
    more = " or more" if forecast.typical >= (MOST_USERS if whole else MOST_RATE) else ""
    return f"the plan expects {forecast.typical:.3g} {unit}{more} {band}"
