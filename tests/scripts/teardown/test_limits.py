"""A guard takes down what is older or has cost more than its limits, by Google's word, and nothing else."""

from datetime import UTC, datetime, timedelta

import pytest

from gemma_serving.cloud.clock import GoogleClock
from gemma_serving.cloud.search import Scope, search
from gemma_serving.cloud.spending import spending
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.labels import StackLimits
from gemma_serving.scripts.teardown import removal
from localcloud.world.scenario import Fault, OperationDurations, Scenario, Tpu
from tests.cloud.populated import PROJECT, WRONG_CLOCKS, asker, off_by, open_world, owner
from tests.polling import until

HOUR = timedelta(hours=1)
L4_USD_PER_HOUR = 3600 * (0.0001867 + 8 * 0.000018 + 32 * 0.000002)


@pytest.fixture
def world(desk):
    return desk.world


def used(world, now=None, stack=None):
    scope = Scope(
        projects=[PROJECT], asker=asker(stack), stacks=[stack] if stack else [], places={}, buckets=[], kept=[]
    )
    return {
        item.owner.stack: item for item in spending(world.api, search(world.api, scope).found, now or datetime.now(UTC))
    }


def later(hours):
    return datetime.now(UTC) + hours * HOUR


def ready_revision(world):
    """Wait until the service's revision is ready: its use counts from then on."""
    store = world.cloud.cloud.store
    until(
        lambda: any("latestReadyRevision" in item for _, item in store.under("run.services")), "the revision is ready"
    )


def test_waiting_for_capacity_is_free_and_not_old():
    zones = dict(Tpu().zones)
    zones["us-east5-a"] = zones["us-east5-a"].model_copy(update={"capacity": {"v6e-4": 0}})
    with open_world(Scenario(operations=OperationDurations(instant=True), tpu=Tpu(zones=zones))) as world:
        world.queued("gemma-x", {**owner("x").labels, "gemma-serving-max-age": "60"}, active=False)
        item = used(world, later(10))["x"]
    assert (item.age_s, item.usd, item.exceeded) == (0.0, 0.0, [])


def test_a_service_costs_what_monitoring_says_that_it_was_billed_for(world):
    world.account("gemma-x", owner("x").description)
    world.service("gemma-x", {**owner("x").labels, "gemma-serving-max-usd": "3"}, minInstanceCount=0)
    ready_revision(world)
    world.cloud.cloud.timeline.advance(2 * 3600 + 210)
    item = used(world, later(2 + 210 / 3600))["x"]
    assert item.usd == pytest.approx(2 * L4_USD_PER_HOUR, rel=0.01)
    assert (item.usd_per_hour, item.exceeded, item.unknown) == (0.0, [], ())


def test_where_monitoring_is_refused_only_instances_that_always_run_count_and_the_guard_fails(desk):
    fault = Fault(method="monitoring.projects.timeSeries.list", count=99, status=403)
    desk.world.cloud.cloud.scenario = Scenario(operations=OperationDurations(instant=True), faults=[fault])
    desk.world.account("gemma-x", owner("x").description)
    desk.world.service("gemma-x", {**owner("x").labels, "gemma-serving-max-usd": "3"})
    item = used(desk.world, later(2))["x"]
    assert item.usd == pytest.approx(2 * L4_USD_PER_HOUR, rel=0.01)
    assert "only instances that always run are counted" in item.unknown[0]
    code, report, _ = desk.run("--over-limit", "--yes", stack=None)
    assert (code, report["clean"], report["receipts"]) == (ExitCode.FAILED, False, [])


def test_the_guard_takes_down_what_exceeds_its_limits_and_nothing_else(desk):
    desk.world.strangers("x")
    desk.world.account("gemma-x-2", owner("x-2").description)
    theirs, policy = desk.world.resources(), desk.world.policy()
    desk.world.everything("x", limits=StackLimits(max_usd=10))
    desk.world.everything("y", limits=StackLimits(max_usd=1000))
    desk.world.everything("z")
    kept = desk.world.resources() - theirs
    desk.monkeypatch.setattr(GoogleClock, "now", lambda _: later(10))
    code, report, said = desk.run("--over-limit", "--yes", stack=None)
    assert (code, report["clean"]) == (ExitCode.DONE, True), said
    found = {item["stack"]: item for item in report["stacks"]}
    assert set(found) >= {"x", "y", "z"}
    assert [len(found[name]["exceeded"]) for name in ("x", "y", "z")] == [1, 0, 0]
    assert "stack z has no limit" in said
    assert [receipt["stack"] for receipt in report["receipts"]] == ["x"]
    left = desk.world.resources()
    assert theirs <= left
    assert not [name for name in left - theirs if "gemma-x" in name]
    assert {name for name in kept if "gemma-y" in name or "gemma-z" in name} <= left
    assert policy <= desk.world.policy()


def test_a_stack_that_is_within_its_limits_when_its_turn_comes_is_kept(desk):
    """Its server was replaced while the guard tore down other stacks, which may take hours."""
    desk.machine(limits=StackLimits(max_age_s=3600))
    before, known, hours = desk.world.resources(), removal.spending, [10, 0, 0]
    desk.monkeypatch.setattr(GoogleClock, "now", lambda _: later(hours[0]))
    desk.monkeypatch.setattr(removal, "spending", lambda *given: (known(*given), hours.pop(0))[0])
    code, report, said = desk.run("--over-limit", "--yes", stack=None)
    assert (code, report["receipts"], desk.world.resources()) == (ExitCode.DONE, [], before)
    assert "stack x exceeds no limit any more and is kept" in said


def test_a_wrong_clock_of_this_machine_neither_takes_down_nor_spares_a_stack(desk):
    for stack, max_age_s in (("x", 1800), ("y", 7200)):
        desk.machine(stack, StackLimits(max_age_s=max_age_s))
    timeline = desk.world.cloud.cloud.timeline
    timeline.advance(3600)
    for skew, words in zip(WRONG_CLOCKS, (["--dry-run"], ["--yes"]), strict=True):
        with desk.monkeypatch.context() as clock:
            off_by(clock, skew)
            code, report, said = desk.run("--over-limit", *words, stack=None)
        assert (code == ExitCode.DONE) is (words == ["--yes"]), said
        ages = {item["stack"]: item["age_s"] for item in report["stacks"]}
        assert 3600 <= ages["x"] < 3900
        assert 3600 <= ages["y"] < 3900
        assert [receipt["stack"] for receipt in report["receipts"]] == ["x"]
        started = datetime.fromisoformat(report["receipts"][0]["started"])
        assert abs(timeline.now() - started) < timedelta(minutes=2)


def test_a_dry_run_names_what_would_go_and_without_yes_and_a_terminal_nothing_goes(desk):
    desk.machine(limits=StackLimits(max_age_s=3600))
    desk.monkeypatch.setattr(GoogleClock, "now", lambda _: later(10))
    before = desk.world.resources()
    desk.leave()
    code, _, said = desk.run("--over-limit", stack=None)
    assert (code, desk.world.resources()) == (ExitCode.REFUSED, before)
    assert "Pass --yes" in said
    code, report, said = desk.run("--over-limit", "--dry-run", stack=None)
    assert "exceeds maxAge 60 min" in said or "exceeds maxAge 1 h" in said
    assert (code, desk.world.resources()) == (ExitCode.FAILED, before)
    assert report["receipts"][0]["leaked"]
