"""Age and cost survive the machine: further runs, replacements, preemptions and failed updates leave the first start and what was spent."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gemma_serving.cloud.search import Scope, search
from gemma_serving.cloud.spending import spending
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.labels import NO_LIMITS, StackLimits
from gemma_serving.contracts.run_record import RecordError, RunRecord
from gemma_serving.contracts.three_answers import Absent, Present, Unknown
from gemma_serving.stacks.hooks.run_recorder import RunRecorder
from localcloud.world.scenario import Fault, OperationDurations, Scenario
from tests.cloud.populated import PROJECT, WRONG_CLOCKS, ZONE, asker, off_by, open_world, owner
from tests.cloud.test_deletion import Patience
from tests.scripts.teardown.conftest import Desk

LIMITS = StackLimits(max_age_s=6 * 3600, max_usd=8)
IDENTITY = owner("x").description
ACCOUNT_ID = "gemma-x"
V6E4_USD_PER_HOUR = 4 * 1.35


@pytest.fixture
def world(desk):
    return desk.world


def recorder(*, limits=LIMITS):
    """Return what `pulumi up` records with: before it changes anything, and after a machine is there."""
    parent = f"projects/{PROJECT}/locations/{ZONE}/queuedResources"
    return RunRecorder(
        project=PROJECT,
        owner=replace(owner("x"), limits=limits),
        account=f"projects/{PROJECT}/serviceAccounts/{ACCOUNT_ID}@{PROJECT}.iam.gserviceaccount.com",
        machines=[f"{parent}/gemma-x"],
    )


def used(world):
    scope = Scope(projects=[PROJECT], asker=asker("x"), stacks=["x"], places={}, buckets=[], kept=[])
    found = search(world.api, scope, clock=Patience().clock).found
    (item,) = spending(world.api, found, world.cloud.cloud.timeline.now())
    return item


def run_again(world):
    """Start another run as an `up` does: what remains of the last one is deleted, then requested again."""
    recorder().note_first()
    delete(world, "gemma-x")
    world.queued("gemma-x", {**owner("x").labels, **LIMITS.labels})
    recorder().note()


def delete(world, name):
    world.call("DELETE", "tpu", f"v2alpha1/projects/{PROJECT}/locations/{ZONE}/queuedResources/{name}?force=true")


def begin(world):
    """Deploy for the first time."""
    recorder().note_first()  # nothing exists yet
    world.account(ACCOUNT_ID, IDENTITY)
    world.queued("gemma-x", {**owner("x").labels, **LIMITS.labels})
    recorder().note()


def hours(world, count):
    world.cloud.cloud.timeline.advance(count * 3600)


def description(world):
    account = f"v1/projects/{PROJECT}/serviceAccounts/{ACCOUNT_ID}@{PROJECT}.iam.gserviceaccount.com"
    return str(world.call("GET", "iam", account)["description"])


def test_nothing_starts_again_past_a_limit_and_a_server_that_runs_is_not_stopped_by_it(world):
    assert isinstance(recorder().past_limits(), Unknown)  # no account, as before the first `up` or after a teardown
    begin(world)
    hours(world, 3)
    running = recorder().runs().value.spent("x", StackLimits(max_age_s=600, max_usd=1))
    assert running.exceeded == ["maxAge 10 min (age 3 h)", "maxUsd 1 (cost $16.20)"]
    exceeds = "Stack x exceeds maxUsd 8 (cost $16.20), so"
    assert recorder().note_first() == Absent()
    assert recorder().past_limits() == Present(f"{exceeds} the next run of a guard deletes its server")
    delete(world, "gemma-x")
    assert recorder().past_limits() == recorder().note_first()
    assert recorder().past_limits() == Present(f"{exceeds} its server is not created again")
    assert recorder(limits=StackLimits(max_usd=30, max_age_s=6 * 3600)).past_limits() == Absent()
    hours(world, 4)
    match recorder(limits=StackLimits(max_usd=60, max_age_s=6 * 3600)).past_limits():
        case Present(value=refusal):
            assert "exceeds maxAge 6 h (age 7 h)" in refusal
        case other:
            pytest.fail(str(other))
    assert recorder(limits=NO_LIMITS).past_limits() == Absent()


def test_four_runs_later_the_guard_still_counts_from_the_first_start(tmp_path, monkeypatch, capsys):
    with open_world() as world:
        desk = Desk(world, tmp_path, monkeypatch, capsys)
        begin(world)
        for _ in range(4):
            hours(world, 3.2)
            run_again(world)
        off_by(monkeypatch, timedelta())  # the clock of Google shows what was advanced
        code, report, said = desk.run("--over-limit", "--dry-run", stack=None)
        (stack,) = report["stacks"]
        assert stack["age_s"] == pytest.approx(12.8 * 3600, abs=120)
        assert 12.79 * V6E4_USD_PER_HOUR <= stack["usd"] <= 13 * V6E4_USD_PER_HOUR
        assert (stack["verdict"], len(stack["exceeded"]), stack["record"]) == ("exceeded", 2, "present")
        assert code == ExitCode.FAILED
        assert any(line.startswith("age 12 h 48 min: first start ") and ACCOUNT_ID in line for line in stack["read"]), (
            stack
        )
        assert any(": past TPU VMs, from the description of gemma-x@" in line for line in stack["read"])
        assert all(line in said for line in stack["read"])
        # Nothing of it is left after a complete teardown.
        code, report, said = desk.run("--over-limit", "--yes", stack=None)
        assert (code, report["clean"]) == (ExitCode.DONE, True), said
        assert not [name for name in world.resources() if "gemma-x" in name]


def test_a_record_that_cannot_be_read_is_unknown_and_never_within(world):
    begin(world)
    assert used(world).verdict == "within"
    account = f"v1/projects/{PROJECT}/serviceAccounts/{ACCOUNT_ID}@{PROJECT}.iam.gserviceaccount.com"
    text = description(world).replace("gemma-serving-runs=", "gemma-serving-runs=about")
    world.call("PATCH", "iam", account, {"serviceAccount": {"description": text}, "updateMask": "description"})
    item = used(world)
    assert (item.verdict, item.record) == ("unknown", "unknown")
    assert "within" not in item.sentence().partition("unknown")[0]
    with pytest.raises(RecordError):
        recorder().note()
    with pytest.raises(CommandRefusedError, match=r"Nothing was changed.*maxAge"):
        recorder().note_first()


@pytest.mark.parametrize("method", ["iam.projects.serviceAccounts.list", "iam.projects.serviceAccounts.get"])
def test_a_refused_read_is_unknown_for_the_guard_and_stops_an_update_with_limits(method, monkeypatch):
    fault = Fault(method=method, count=99, status=403)
    with open_world() as world:
        begin(world)
        world.cloud.cloud.scenario = Scenario(operations=OperationDurations(instant=True), faults=[fault])
        if method.endswith("list"):
            item = used(world)
            assert (item.verdict, item.record) == ("unknown", "unknown")
            assert "was not found" in item.unknown[0]
            return
        assert recorder().past_limits().why.startswith("the use of maxAge and maxUsd could not be read (")
        with pytest.raises(CommandRefusedError):
            recorder().note_first()
        recorder(limits=NO_LIMITS).note_first()


def test_two_writers_lose_nothing(world, monkeypatch):
    begin(world)
    mine, asked = recorder(), []
    ask = RunRecorder._call

    def interrupted(self, api, path, body=None, **more):
        if body and not asked:
            asked.append(path)  # another writer is faster
            account = path.partition("?")[0]
            world.call("PATCH", api, account, {"serviceAccount": {"displayName": "d"}, "updateMask": "displayName"})
        return ask(self, api, path, body, **more)

    monkeypatch.setattr(RunRecorder, "_call", interrupted)
    hours(world, 1)
    delete(world, "gemma-x")
    world.queued("gemma-x", {**owner("x").labels, **LIMITS.labels})
    mine.note()
    assert asked
    record = RunRecord.of(description(world))
    assert (len(record.runs), record.spent_micros > 0) == (1, True)


def test_where_monitoring_is_refused_only_instances_that_always_run_count_and_the_guard_fails(desk):
    fault = Fault(method="monitoring.projects.timeSeries.list", count=99, status=403)
    desk.world.cloud.cloud.scenario = Scenario(operations=OperationDurations(instant=True), faults=[fault])
    desk.world.account(ACCOUNT_ID, IDENTITY)
    desk.world.service("gemma-x", {**owner("x").labels, "gemma-serving-max-usd": "3"})
    hours(desk.world, 2)
    code, report, said = desk.run("--over-limit", "--yes", stack=None)
    assert (code, report["clean"], report["receipts"]) == (ExitCode.FAILED, False, [])
    assert "only instances that always run are counted" in said


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
