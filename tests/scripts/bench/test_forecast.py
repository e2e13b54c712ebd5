"""What the plan of a stack expects of a point."""

import pytest

from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.speed.serving import server_of, workload_plan
from gemma_serving.scripts.bench.forecast import PlanForecast, at_level, shape_of
from loadtest.settings import ForecastBand
from loadtest.traffic.points import Point
from loadtest.traffic.spec import Traffic
from tests.records import replace


def planner():
    """The planner's answers for E2B on one L4."""
    subject = examine(Question().changed(model="google/gemma-4-E2B-it", accelerator="L4"))
    return lambda workload: workload_plan(server_of(subject.resolved, subject.memory, workload), 1.0)


def test_a_point_gets_the_forecast_of_the_stack_or_none():
    point = Point(mode="open", level=0.5, input_tokens=512, output_tokens=128, requests=None, duration_s=None, seed=1)
    forecast = PlanForecast(planner())
    figures = forecast.figures(Traffic(), point)
    assert figures["output_throughput"] == ForecastBand(low=64.0, typical=64.0, high=64.0)
    planned = forecast.answers(at_level(shape_of(Traffic(), point), 0.5, whole=False))
    assert figures["mean_ttft_ms"].typical == pytest.approx(1000 * planned.ttft_s.typical)
    assert figures["mean_tpot_ms"].high == pytest.approx(1000 * planned.tpot_s.high)
    assert set(forecast.figures(Traffic(), replace(point, level=1000.0))) == {"output_throughput"}  # the queue grows
    assert PlanForecast(lambda _workload: None).figures(Traffic(), point) == {}
