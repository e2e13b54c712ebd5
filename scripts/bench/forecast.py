"""Planner's forecast of the metrics of each point. Pure functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from gemma_serving.planning.question.types import Band, WorkloadPlan
from gemma_serving.planning.settings.workload import Workload
from loadtest.settings import ForecastBand
from loadtest.traffic.points import Point
from loadtest.traffic.spec import Traffic

Answers: TypeAlias = Callable[[Workload], WorkloadPlan | None]
"""Plans a workload on a deployment. Returns None if the deployment is unknown (`scripts.stack.deployed_plan`)."""


@dataclass(frozen=True, slots=True)
class PlanForecast:
    """Forecast from a stack's plan."""

    answers: Answers

    def figures(self, traffic: Traffic, point: Point) -> Mapping[str, ForecastBand]:
        """Return the output rate of a point and the mean times of its requests. Above saturation it has no times: the queue grows."""
        shape = shape_of(traffic, point)
        whole = point.concurrency is not None
        output = output_forecast(self.answers, shape, point.level, whole=whole)
        if output is None:
            return {}
        found = {"output_throughput": output}
        plan = self.answers(at_level(shape, point.level, whole=whole))
        if plan is not None and (whole or point.level < _saturated_per_s(plan).low):
            found |= {"mean_ttft_ms": _band(plan.ttft_s.times(1000)), "mean_tpot_ms": _band(plan.tpot_s.times(1000))}
        return found


def shape_of(traffic: Traffic, point: Point) -> Workload:
    """Return the planner's workload for a load, without its level. Distributions are replaced by their means."""
    shared = traffic.prefix_share or (traffic.prefix_tokens or 0) / point.input_tokens
    return Workload(
        input_tokens=point.input_tokens,
        output_tokens=point.output_tokens,
        prefix_share=min(shared, 1.0),
        adapters=len(traffic.adapters),
    )


def at_level(shape: Workload, level: float, *, whole: bool) -> Workload:
    """Return the workload at a level: users if `whole`, otherwise requests per second."""
    return replace(shape, users=round(level)) if whole else replace(shape, rate_per_s=level)


def output_forecast(answers: Answers, shape: Workload, level: float, *, whole: bool) -> ForecastBand | None:
    """Return the output tokens per second at a load, with the band; None without a plan.

    An open loop gets its requested rate up to saturation, which can occur at the low or the high end of the band.
    """
    if whole:
        plan = answers(at_level(shape, level, whole=True))
        return None if plan is None else _band(plan.output_tok_per_s)
    full = answers(shape)
    if full is None:
        return None
    most = _saturated_per_s(full)
    ends = [min(level, end) * shape.output_tokens for end in (most.low, most.typical, most.high)]
    return ForecastBand(low=ends[0], typical=ends[1], high=ends[2])


def _band(planned: Band) -> ForecastBand:
    return ForecastBand(low=planned.low, typical=planned.typical, high=planned.high)


def _saturated_per_s(full: WorkloadPlan) -> Band:
    """Return the requests per second at saturation, with the band of the output rate."""
    output = full.output_tok_per_s
    return output.times(full.most_requests_per_s / output.typical)
