"""The text of a plan has no more digits than are known: two of a speed, a load or a price per token, three of memory."""

import io
import re
from contextlib import redirect_stdout
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_serving.cloud.model_files import PROJECT
from gemma_serving.contracts.settings_files import settings_file, shipped_files, stack_of_file
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.residuals import BURST_REQUESTS, smoke_figures
from gemma_serving.planning.units import figure
from gemma_serving.scripts.plan.question import CommandWording
from gemma_serving.scripts.plan.table import show
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import headline, to_question
from tests.records import replace

STACKS = [stack_of_file(path.name) for path in shipped_files(PROJECT) if path.parent == PROJECT]
CLOSE = re.compile(r"█ weights|KV cache(?: of each of \d+ replicas)?: [\d,]+ tokens|Weights: ")
ROUGH = re.compile(r"tok/s|tokens/s|per 1M output|requests/s|Preemption: |^  Load ")
ROW = re.compile(r"^(\S[^│]+)│([^│]+)│([^│]+)│([^│]+)$")
GIVEN = re.compile(
    r"^.* on \S+ \([\w-]+\): |^.* fits on [^.]+\. |^Workload: .*|^  Load .*?: |[\d.,]+ GiB (?:usable|budget|per device)|of [\d.]+ GiB|"
    r"requests of [\d,]+ tokens|[\d,]+ concurrent requests? of this|for [\d,]+ concurrent|holds [\d,]+ requests?|but [\d,]+ run|1M output|\$[\d.,]+/h|"
    r"of each of \d+ replicas|\(\d+\)"
)
"""Settings, facts of the device, prices, and counts of requests, which are values for a setting."""
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def digits_of(number: str) -> int:
    plain = number.replace(",", "")
    return len((plain if "." in plain else plain.rstrip("0")).replace(".", "").lstrip("0"))


def too_exact(line: str) -> list[str]:
    """Return the numbers of a line that have more digits than are known."""
    if row := ROW.match(line):
        low, typical, high = (cell.strip() for cell in row.groups()[1:])
        is_known = low == typical == high
        return [] if is_known else [one for one in (low, typical, high) if digits_of(one.rstrip("%")) > 2]
    most = 3 if CLOSE.search(line) else 2 if ROUGH.search(line) else None
    return [] if most is None else [one for one in NUMBER.findall(GIVEN.sub("", line)) if digits_of(one) > most]


def check_digits(plan: Plan) -> None:
    """Assert that no line about figures of a plan, and of its headline, has more digits than are known. Findings compare amounts, so they may."""
    with redirect_stdout(io.StringIO()) as out:
        for has_table in (False, True):
            show(replace(plan, findings=()), CommandWording(), has_table=has_table)
    lines = (*out.getvalue().splitlines(), *headline(plan).splitlines())
    assert {line: found for line in lines if (found := too_exact(line))} == {}


@pytest.mark.parametrize(
    "load", [{"users": 1}, {"users": 137}, {"rate_per_s": 0.37}, {"input_tokens": 4_001, "users": 29}]
)
@pytest.mark.parametrize("stack", STACKS)
def test_no_figure_of_a_stack_has_more_digits_than_are_known(stack: str, load: dict[str, Any]):
    question = to_question(from_file(settings_file(stack, PROJECT), project="my-project"))
    check_digits(plan_of(examine(question.changed(workload=Workload(**load)))))


@given(st.floats(1e-3, 1e12), st.integers(1, 6))
def test_a_figure_is_the_nearest_number_with_its_digits(value: float, digits: int):
    shown = figure(value, digits)
    assert float(shown.replace(",", "")) == float(f"{value:.{digits - 1}e}")
    assert digits_of(shown) <= digits
    assert "e" not in shown.lower()


@pytest.mark.parametrize("stack", STACKS)
def test_speed_and_price_of_one_request_have_the_band_of_the_smoke_checks(
    stack: str, capsys: pytest.CaptureFixture[str]
):
    subject = examine(to_question(from_file(settings_file(stack, PROJECT), project="my-project")))
    plan = plan_of(subject)
    show(plan, CommandWording())
    text = capsys.readouterr().out
    band = smoke_figures(subject.resolved, subject.memory, subject.throughput, BURST_REQUESTS).decode_tok_per_s
    assert text.splitlines()[0].count(f" tok/s ({band.words})") == 1
    assert f" tokens/s for one request ({band.words})" in text
    assert f" tok/s for one request ({band.words})" in headline(plan)
    usd = [figure(plan.cost.usd_per_hour / 0.0036 / rate, 2) for rate in (band.typical, band.high, band.low)]
    assert "${} (${} to ${}) per 1M output tokens of one request".format(*usd) in text
