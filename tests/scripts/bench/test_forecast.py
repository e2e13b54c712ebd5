"""What the plan of a stack expects of a search for limits."""

import pytest

from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.settings.deployment import Deployment
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.serving import server_of, workload_plan
from gemma_serving.scripts.bench.forecast import (
    PlanForecast,
    at_level,
    level_forecast,
    shape_of,
)
from loadtest.measure import Objective
from loadtest.settings import ForecastBand
from loadtest.traffic.points import Point
from loadtest.traffic.spec import Traffic
from tests.records import replace


def planner():
    """The planner's answers for E2B on one L4."""
    subject = examine(Deployment(model="google/gemma-4-E2B-it", accelerator="L4"))
    return lambda workload: workload_plan(server_of(subject.resolved, subject.memory, workload), 1.0)


@pytest.mark.parametrize("whole", [True, False])
def test_the_forecast_is_the_highest_load_whose_planned_times_keep_the_limits(whole):
    answers, shape, limits = (
        planner(),
        Workload(input_tokens=512, output_tokens=128),
        Objective(ttft_s=1.0, tpot_s=0.05),
    )
    band = level_forecast(answers, shape, limits, whole=whole)
    for level, end in ((band.low, "high"), (band.typical, "typical"), (band.high, "low")):
        plan = answers(at_level(shape, min(level, level if whole else answers(shape).most_requests_per_s), whole=whole))
        assert getattr(plan.ttft_s, end) <= 1.0
        assert getattr(plan.tpot_s, end) <= 0.05
    more = answers(at_level(shape, band.typical + 1 if whole else band.typical * 1.02, whole=whole))
    assert more.ttft_s.typical > 1.0 or more.tpot_s.typical > 0.05 or band.typical * 1.02 > more.most_requests_per_s
    assert level_forecast(answers, shape, Objective(ttft_s=1e-6), whole=whole).high == 0.0
    assert level_forecast(lambda _workload: None, shape, limits, whole=whole) is None


def test_a_search_gets_the_forecast_of_the_stack_or_none():
    point = Point(mode="open", level=0.5, input_tokens=512, output_tokens=128, requests=None, duration_s=None, seed=1)
    limits, forecast = Objective(ttft_s=1.0, tpot_s=0.05), PlanForecast(planner())
    shape = shape_of(Traffic(), point)
    assert forecast.level(Traffic(), point, limits, whole=False) == level_forecast(
        forecast.answers, shape, limits, whole=False
    )
    figures = forecast.figures(Traffic(), point)
    assert figures["output_throughput"] == ForecastBand(low=64.0, typical=64.0, high=64.0)
    planned = forecast.answers(at_level(shape, 0.5, whole=False))
    assert figures["mean_ttft_ms"].typical == pytest.approx(1000 * planned.ttft_s.typical)
    assert figures["mean_tpot_ms"].high == pytest.approx(1000 * planned.tpot_s.high)
    assert set(forecast.figures(Traffic(), replace(point, level=1000.0))) == {"output_throughput"}  # the queue grows
    unknown = PlanForecast(lambda _workload: None)
    assert unknown.level(Traffic(), point, limits, whole=False) is None
    assert unknown.figures(Traffic(), point) == {}
