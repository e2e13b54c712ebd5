"""The preset `quick` ends in the time that its pages promise, on each shipped stack at the slow end of its plan."""

import re
from pathlib import Path

import pytest

from gemma_serving.contracts.settings_files import shipped_files, stack_of_file
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.serving import server_of, workload_plan
from gemma_serving.scripts.bench.forecast import PlanForecast
from gemma_serving.scripts.stack.settings import NO_PROJECT
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question, today
from loadtest.settings import SweepSettings, warm_up_requests
from loadtest.sweep import WARM_UP_TOKENS
from loadtest.traffic.points import ENOUGH_S, PRESETS, QUICK_MINUTES, plan_points, planned_s
from loadtest.traffic.spec import FIXED_LENGTHS

ROOT = Path(__file__).parents[3]
QUICK = PRESETS["quick"]
FILES = {stack_of_file(path.name): path for path in shipped_files(ROOT)}


def answers_of(path):
    subject = examine(to_question(from_file(path, project=NO_PROJECT), ROOT, today=today()))
    return lambda workload: workload_plan(server_of(subject.resolved, subject.memory, workload), 1.0)


def slow_end_s(answers, point):
    """Seconds of a point by the plan's slow ends: the warm-up, the requests, and the responses in flight at the end."""
    users = round(point.level)
    load = answers(Workload(input_tokens=point.input_tokens, output_tokens=point.output_tokens, users=users))
    count = warm_up_requests(SweepSettings(url="", model=None, out=ROOT), point)
    warm_up = answers(Workload(input_tokens=point.input_tokens, output_tokens=WARM_UP_TOKENS, users=count))
    per_s = load.output_tok_per_s.low / point.output_tokens
    sending_s = min(point.requests / per_s, max(point.least_requests / per_s, ENOUGH_S))
    return warm_up.request_s.high + sending_s + load.request_s.high


@pytest.mark.parametrize("stack", FILES)
def test_quick_ends_in_time_on_each_shipped_stack_and_still_loads_it(stack):
    answers, measured, planned, slow = answers_of(FILES[stack]), [], 0.0, 0.0
    for point in plan_points(QUICK, None)[0]:
        output = PlanForecast(answers).figures(FIXED_LENGTHS, point)["output_throughput"]
        takes_s = planned_s(point, output.low)
        if planned + takes_s <= QUICK.limit_s:
            planned += takes_s
            slow += slow_end_s(answers, point)
            measured.append(point.level)
    assert slow <= QUICK_MINUTES * 60
    assert measured[:2] == [1, 16]  # latency, and a load that the plan's rate is compared with


def test_the_pages_promise_the_minutes_of_the_preset():
    """A page that names the preset and minutes has those of the preset."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    lines = [line for page in pages for line in page.read_text().splitlines()]
    promised = [line for line in lines if re.search(r"\bquick\b", line) and re.search(r"\bminutes?\b", line)]
    assert len(promised) >= 2
    assert [line for line in promised if f"{QUICK_MINUTES} minutes" not in line] == []
