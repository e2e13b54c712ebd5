"""`--solve --hours-per-day`: what a day costs by each way to pay for the server, and the sentences that decide."""

import json
import re
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemma_serving.planning.cost.running_costs import CLOUD_RUN_LINGER_S, running_costs
from gemma_serving.planning.machine.hardware import FLEX_START_MAX_RUN_S
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.workload import parse_workload
from gemma_serving.planning.solve.candidates import checkpoints_of, rentable_accelerators
from gemma_serving.planning.solve.profiles import Choice, Profile, Way, choose, ways_of
from gemma_serving.planning.solve.search import Goal, ServiceLimits, SolutionSet, solve
from gemma_serving.planning.units import MONTH_H, format_duration
from gemma_serving.scripts.plan.__main__ import main
from gemma_serving.scripts.plan.profile import conditions, decision, profile_json
from gemma_serving.scripts.plan.stack_text import StackFile, stack_text
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_deployment
from tests.records import replace

LOAD = "in=4000,out=500,users=32"
EIGHT = Profile(hours_per_day=8)
START_S = 360.0


@cache
def solved(
    model: str | None = "26B", goal: Goal = "cost", workload: str = LOAD, accelerator: str | None = None
) -> SolutionSet:
    places = rentable_accelerators((), accelerator=accelerator)
    return solve(parse_workload(workload), ServiceLimits(), goal=goal, checkpoints=checkpoints_of(model), places=places)


def chosen(profile: Profile = EIGHT, model: str | None = "26B", goal: Goal = "cost") -> Choice:
    return choose(solved(model, goal).solutions, profile, goal)


def ways(profile: Profile, *, on_cloud_run: bool, start_s: float = START_S) -> dict[str, Way]:
    """Return the ways at round figures, so that a test's expectation can be computed by hand."""
    one = solved().solutions[0]
    linger_s = CLOUD_RUN_LINGER_S if on_cloud_run else 0.0
    running = replace(running_costs(one.subject), cold_start_s=start_s, idle_billing_s=linger_s, idle_usd_per_hour=2.0)
    running = replace(running, always_on_usd_per_month=4.0 * MONTH_H)
    return {way.kind: way for way in ways_of(one, running, profile)}


def test_a_run_ends_and_is_written_with_its_end():
    assert ways(EIGHT, on_cloud_run=False)["flex-start"].run_s == 8 * 3_600 + 600
    assert ways(Profile(hours_per_day=24), on_cloud_run=False)["flex-start"].run_s == FLEX_START_MAX_RUN_S
    assert ways(EIGHT, on_cloud_run=False)["on-demand"].run_s is None
    assert ways(EIGHT, on_cloud_run=True)["scale-to-zero"].run_s is None


HOURS = st.floats(0.25, 24)
MINUTES = st.integers(1, 60).map(float)


@given(st.tuples(HOURS, HOURS), st.tuples(MINUTES, MINUTES), st.booleans(), st.floats(30, 3_600))
@example((8, 8), (44, 45), True, START_S)
@example((7.9, 8.1), (10, 10), True, START_S)
def test_more_traffic_never_costs_less_and_no_day_has_more_than_24_hours(hours, minutes, on_cloud_run, start_s):
    less, more = (Profile(hours_per_day=end(hours), busy_minutes=end(minutes)) for end in (min, max))
    each = (ways(profile, on_cloud_run=on_cloud_run, start_s=start_s).values() for profile in (less, more))
    for before, after in zip(*each, strict=True):
        assert before.billed_h <= after.billed_h + 1e-9
        assert 0 < after.billed_h <= 24
        assert before.billed_h >= min(less.hours_per_day * less.busy_minutes / 60, 24) - 1e-9


def test_steady_traffic_goes_to_the_cheaper_hour_and_bursts_to_what_scales_to_zero():
    names = {"v5e-4", "RTX PRO 6000"}  # a cheaper card does not change the claim
    solutions = [one for one in solved("12B").solutions if one.subject.resolved.accelerator.name in names]
    steady, bursts = (choose(solutions, profile, "cost") for profile in (EIGHT, replace(EIGHT, busy_minutes=10)))
    assert steady.chosen.kind == "flex-start"
    assert bursts.chosen.kind == "scale-to-zero"
    for choice in (steady, bursts):
        assert choice.chosen.usd_per_day == min(way.usd_per_day for way in choice.ways)
        assert choice.other.kind != choice.chosen.kind
        hours = [
            f"{round(way.billed_h, 1):g} billed h at ${way.usd_per_hour:.2f}/h" for way in (choice.chosen, choice.other)
        ]
        assert re.search(
            rf"costs \$\S+/day: {re.escape(hours[0])}\. .* costs \$\S+/day: {re.escape(hours[1])}\.$", decision(choice)
        )
    assert "makes a client wait up to" in " ".join(conditions(bursts))


def test_latency_first_takes_the_shortest_request_and_names_the_cheapest():
    choice = chosen(goal="latency")
    fastest = solved(goal="latency").best["latency"]
    assert choice.chosen.solution == fastest == solved(goal="latency").chosen
    assert choice.cheapest.usd_per_day < choice.chosen.usd_per_day
    assert "has the shortest request" in decision(choice)
    assert f"at ${choice.cheapest.usd_per_day:,.2f}/day." in decision(choice)


def test_throughput_first_fills_the_server_and_has_the_lowest_price_per_token():
    full = solved(goal="throughput", workload="in=4000,out=500")
    assert full.chosen.usd_per_million_tokens == min(one.usd_per_million_tokens for one in full.solutions)
    assert full.chosen.usd_per_million_tokens < solved().best["cost"].usd_per_million_tokens
    assert full.chosen.answer.running_requests.typical > 32
    choice = choose(full.solutions, EIGHT, "throughput")
    assert f"${choice.chosen.usd_per_million_tokens:.3f} per 1M tokens" in decision(choice)


def test_the_price_of_a_token_counts_starts_and_idle_time():
    """A server without a pause costs its price per hour; one with pauses costs more per token."""
    always = next(way for way in chosen(Profile(hours_per_day=24)).ways if way.kind == "min-instance")
    assert always.usd_per_million_tokens == pytest.approx(always.solution.usd_per_million_tokens)
    half = next(way for way in chosen(Profile(hours_per_day=12)).ways if way.kind == "min-instance")
    assert half.usd_per_million_tokens == pytest.approx(2 * half.solution.usd_per_million_tokens)


@pytest.mark.parametrize("profile", [EIGHT, Profile(hours_per_day=8, busy_minutes=10), Profile(hours_per_day=24)])
def test_each_way_is_written_as_a_stack_that_fits_and_costs_what_was_shown(tmp_path, profile):
    for way in chosen(profile).ways:
        path = tmp_path / "Pulumi.new.yaml"
        file = StackFile(name="new", solution=way.deployed(), limits=ServiceLimits(), revision="a" * 40)
        path.write_text(stack_text(file), encoding="utf-8")
        planned = plan(to_deployment(from_file(path, project="my-project")))
        assert planned.fits, (way.kind, [finding.id for finding in planned.stopping])
        assert planned.cost.usd_per_hour == pytest.approx(way.usd_per_hour)
        text = path.read_text(encoding="utf-8")
        assert ("minInstances: 1" in text) == (way.kind == "min-instance")
        assert ("maxRunDuration" in text) == (way.kind == "flex-start")
        if way.run_s is not None:
            assert planned.cost.max_usd == pytest.approx(way.usd_per_hour * way.run_s / 3_600)


def test_the_command_answers_a_person_who_asks_for_a_day(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    asked = ("--solve", "--workload", LOAD, "--model", "26B", "--hours-per-day", "8", "--accelerator", "v6e-4")
    choice = choose(solved(accelerator="v6e-4").solutions, EIGHT, "cost")
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert "Cost per day: steady traffic for 8 h per day" in text
    run_s = choice.chosen.run_s
    assert 8 * 3_600 < run_s < 9 * 3_600
    assert f"ends: {format_duration(run_s)}" in text
    assert main((*asked, "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    profile = answer["profile"]
    assert profile["decision"] in text
    assert all(sentence in text for sentence in profile["conditions"])
    (first, *_) = profile["ways"]
    assert first["chosen"]
    assert first["ends_after_s"] == run_s
    assert answer["chosen_by"] == "cost"
    assert profile == profile_json(choice)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--traffic", "steady"), "--traffic requires --hours-per-day."),
        (("--hours-per-day", "8", "--traffic", "burst"), "it must be steady, or burst=MINUTES with the minutes"),
        (("--hours-per-day", "8", "--traffic", "burst=nan"), "it must be steady, or burst=MINUTES"),
        (("--hours-per-day", "25"), "--hours-per-day is '25'; it must be a number"),
        (("--latency-first", "--throughput-first"), "--latency-first and --throughput-first cannot be combined."),
    ],
)
def test_a_wrong_profile_is_one_sentence(run, arguments, said):
    code, out, err = run("--solve", "--workload", LOAD, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
