"""The planner's steps and times to the first token are those of vLLM's own scheduler (tests/planning/corpus/scheduler.csv)."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.planning.speed.sharing import StepShares, shares_of
from tests.laws import examples
from tests.planning.corpus.scheduler import SchedulerRow, stored_rows
from tests.planning.corpus.traffic import burst_s

ROWS = stored_rows()
ASYNC_STEPS = 2.0
"""Steps that a request waits for with asynchronous scheduling while others decode: the one that runs and the one that is scheduled."""
STEADY = [row for row in ROWS if row.drawn]
TOGETHER = [row for row in ROWS if not row.drawn]


def shares(row: SchedulerRow, users: float) -> StepShares:
    return shares_of(
        requests=users,
        prompt_tokens=row.prompt_tokens - row.shared_tokens,
        output_steps=row.output_tokens,
        budget_tokens=row.budget_tokens,
        tokens_per_decode=1,
        arrival_steps=ASYNC_STEPS if users > 1 else 0.0,
    )


def step_time(row: SchedulerRow, decoding: float) -> float:
    return 1 + row.decode_cost * (decoding - 1)


def prompt_time(row: SchedulerRow) -> float:
    return row.prompt_cost * (row.prompt_tokens - row.shared_tokens) / 1_000


def steady_time(row: SchedulerRow) -> float:
    found = shares(row, row.users)
    return found.first_token_s(step_time(row, found.decoding), prompt_time(row))


def in_step_time(row: SchedulerRow) -> float:
    found = shares(row, row.users)
    return found.in_step_s(step_time(row, found.decoding), prompt_time(row))


def burst_time(row: SchedulerRow) -> float:
    half = shares(row, (row.users + 1) / 2)
    return burst_s(row.users, half.prompt_steps, step_time(row, (row.users + 1) / 2), prompt_time(row))


def share_within(rows: list[SchedulerRow], time: Callable[[SchedulerRow], float], column: str, factor: float) -> float:
    ratios = [time(row) / getattr(row, column) for row in rows]
    return sum(1 / factor <= ratio <= factor for ratio in ratios) / len(ratios)


def test_the_scenarios_are_of_every_kind():
    assert {1, 2, 256} <= {row.users for row in ROWS}
    fill = [shares(row, row.users).prompt_steps for row in STEADY]
    assert min(fill) < 0.1
    assert max(fill) > 4
    assert any(row.shared_tokens for row in STEADY)
    assert any(row.users * shares(row, row.users).prompt_steps > 2 * row.output_tokens for row in STEADY)
    assert any(row.users * 2 == row.budget_tokens for row in STEADY)


@pytest.mark.parametrize("row", STEADY, ids=lambda row: f"{row.users}x{row.prompt_tokens}/{row.budget_tokens}")
def test_steps_and_times_at_random_phases_are_within_a_fifth_of_the_scheduler(row: SchedulerRow):
    found = shares(row, row.users)
    steps = found.arrival_steps + found.queue_steps + found.whole_steps
    assert steps == pytest.approx(row.later_steps, rel=0.2)
    assert steady_time(row) == pytest.approx(row.later_time, rel=0.2)
    rate = found.requests_per_s(step_time(row, found.decoding), prompt_time(row))
    assert rate == pytest.approx(row.requests_per_time, rel=0.2)


def test_the_mean_is_within_a_fifth_of_the_median():
    """The plan states one time, and most sources measure medians."""
    assert share_within(STEADY, lambda row: row.later_time, "later_median_time", 1.2) == 1


def test_benchmarks_that_begin_together_are_within_a_quarter_of_the_scheduler():
    assert share_within(TOGETHER, in_step_time, "later_time", 1.25) >= 0.9
    assert share_within(TOGETHER, burst_time, "first_time", 1.25) >= 0.9


def test_equal_lengths_keep_requests_in_step():
    """Why a benchmark with equal lengths measures up to six times the time of a steady server."""
    ratios = [row.later_time / steady_time(row) for row in TOGETHER if row.users > 1]
    assert max(ratios) > 4
    assert min(ratios) > 0.9


traffic = st.builds(
    dict,
    prompt_tokens=st.integers(1, 100_000),
    output_steps=st.floats(1, 10_000),
    budget_tokens=st.sampled_from([512, 2_048, 16_384]),
    tokens_per_decode=st.sampled_from([1, 5]),
)


@pytest.mark.law
@settings(max_examples=examples(test=100, part=1_000, night=10_000), deadline=None, derandomize=True)
@given(traffic, st.floats(1, 1_000), st.floats(1, 2), st.floats(0, 50))
def test_more_requests_never_wait_less_nor_lower_the_rate(
    load: dict[str, float], requests: float, more: float, prompt_s: float
):
    few, many = (shares_of(requests=count, arrival_steps=ASYNC_STEPS, **load) for count in (requests, requests * more))
    assert many.first_token_s(1.0, prompt_s) >= few.first_token_s(1.0, prompt_s) * (1 - 1e-6)
    assert many.requests_per_s(1.0, prompt_s) >= few.requests_per_s(1.0, prompt_s) * (1 - 1e-6)


@pytest.mark.parametrize("requests", [1.0, 7.0, 300.0])
def test_no_step_has_more_tokens_than_its_budget(requests: float):
    for row in ROWS:
        found = shares(row, requests)
        own = row.prompt_tokens - row.shared_tokens
        assert found.decoding + found.prompts_per_step * own <= row.budget_tokens * 1.02


@pytest.mark.parametrize("steps", [0.5, 1, 4])
@pytest.mark.parametrize("output_steps", [1, 2, 100])
def test_one_request_alone_shares_no_step(steps: float, output_steps: float):
    """It finds an idle server, and a prompt of whole steps with one token leaves no other step at all."""
    alone = shares_of(
        requests=1,
        prompt_tokens=steps * 4_096,
        output_steps=output_steps,
        budget_tokens=4_096,
        tokens_per_decode=1,
        arrival_steps=0.0,
    )
    assert alone.others_per_step == 0
    assert alone.first_token_s(1.0, 2.0) == alone.in_step_s(1.0, 2.0) == alone.whole_steps + 2
