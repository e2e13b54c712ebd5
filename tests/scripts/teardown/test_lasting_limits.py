"""Age and cost survive the machine: further runs, replacements, preemptions and failed updates leave the first start and what was spent."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_serving.cloud.kinds import ACCOUNT, INSTANCE, NODE, QUEUED, by_name
from gemma_serving.cloud.prices import seen_instance, seen_queued
from gemma_serving.cloud.search import Scope, resource_of, search
from gemma_serving.cloud.spending import spending
from gemma_serving.contracts.answers import Absent, Present, Unknown
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.labels import NO_LIMITS, StackLimits
from gemma_serving.contracts.run_record import MOST_BYTES, RecordError, RunRecord
from gemma_serving.stacks.hooks.run_recorder import RunRecorder
from localcloud.tests.google_bodies import google_body
from localcloud.world.scenario import Fault, OperationDurations, Scenario
from tests.cloud.populated import PROJECT, ZONE, asker, off_by, open_world, owner
from tests.laws import examples
from tests.scripts.teardown.conftest import Desk

LIMITS = StackLimits(max_age_s=6 * 3600, max_usd=8)
IDENTITY = owner("x").description
ACCOUNT_ID = "gemma-x"
V6E4_USD_PER_HOUR = 4 * 1.35


@pytest.fixture
def world(desk):
    return desk.world


def recorder(*, limits=LIMITS, service=""):
    """Return what `pulumi up` records with: before it changes anything, and after a machine is there."""
    parent = f"projects/{PROJECT}/locations/{ZONE}/queuedResources"
    return RunRecorder(
        project=PROJECT,
        owner=replace(owner("x"), limits=limits),
        account=f"projects/{PROJECT}/serviceAccounts/{ACCOUNT_ID}@{PROJECT}.iam.gserviceaccount.com",
        machines=[f"{parent}/gemma-x", *filter(None, [service])],
    )


def used(world):
    scope = Scope(projects=[PROJECT], asker=asker("x"), stacks=["x"], places={}, buckets=[], kept=[])
    found = search(world.api, scope).found
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


def test_a_use_that_cannot_be_read_is_unknown(world):
    begin(world)
    fault = Fault(method="iam.projects.serviceAccounts.get", status=403, count=99)
    world.cloud.cloud.scenario = Scenario(operations=OperationDurations(instant=True), faults=[fault])
    match recorder().past_limits():
        case Unknown(why=why):
            assert why.startswith("the use of maxAge and maxUsd could not be read (")
        case other:
            pytest.fail(str(other))


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


def test_a_service_counts_from_its_first_creation_and_a_second_creation_makes_its_cost_unknown(world):
    service = f"projects/{PROJECT}/locations/us-east4/services/gemma-x"
    world.account(ACCOUNT_ID, IDENTITY)
    world.service("gemma-x", {**owner("x").labels, **LIMITS.labels})
    recorder(service=service).note()
    hours(world, 2)
    assert used(world).verdict == "within"
    world.call("DELETE", "run", f"v2/{service}")
    world.service("gemma-x", {**owner("x").labels, **LIMITS.labels})
    recorder(service=service).note()
    item = used(world)
    assert item.age_s >= 2 * 3600
    assert (item.verdict, len(item.unknown)) == ("unknown", 1)
    hours(world, 5)
    assert used(world).verdict == "exceeded"


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
        with pytest.raises(CommandRefusedError):
            recorder().note_first()
        recorder(limits=NO_LIMITS).note_first()


def test_what_may_pass_is_tried_again_and_two_writers_lose_nothing(world, monkeypatch):
    monkeypatch.setattr("gemma_serving.stacks.hooks.run_recorder._PAUSE_S", 0)
    begin(world)
    first = description(world)
    fault = Fault(method="iam.projects.serviceAccounts.get", count=2, status=503)
    world.cloud.cloud.scenario = Scenario(operations=OperationDurations(instant=True), faults=[fault])
    recorder().note()
    assert description(world) == first
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


def test_an_account_of_somebody_else_is_never_written(world):
    world.account(ACCOUNT_ID, "precious")
    world.queued("gemma-x", dict(owner("x").labels))
    recorder().note()
    assert description(world) == "precious"


# Laws

START = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp())
MAX_RUN_S = 4 * 3600
TYPES = ("v6e-1", "v6e-4", "v6e-8")


def stamp(at_s):
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Machine:
    """One machine in truth."""

    name: str
    kind: str
    requested_s: int
    started_s: int | None = None
    restarted_s: int | None = None
    ended_s: int | None = None
    request_gone: bool = False
    used_s: int = 0

    @property
    def is_up(self):
        return self.started_s is not None and self.ended_s is None and not self.request_gone


@dataclass
class Life:
    """What Google has of one stack, and what it really used."""

    api: str = QUEUED
    limited: bool = True
    now_s: int = START
    description: str | None = None
    machines: list[Machine] = field(default_factory=list)

    def documents(self):
        """Return each existing request with its node."""
        for one in self.machines:
            if not one.request_gone:
                yield one, self.request(one), self.node(one)

    def request(self, one):
        zone = "projects/p/locations/us-east5-b"
        if self.api == INSTANCE:
            compute = "https://www.googleapis.com/compute/v1/projects/p/zones/us-east5-b"
            chips = one.kind.partition("-")[2]
            stopped = {} if one.ended_s is None else {"lastStopTimestamp": stamp(one.ended_s)}
            started = {} if one.started_s is None else {"lastStartTimestamp": stamp(one.restarted_s or one.started_s)}
            status = "PENDING" if one.started_s is None else "RUNNING" if one.ended_s is None else "TERMINATED"
            body = {
                "name": one.name,
                "selfLink": f"{compute}/instances/{one.name}",
                "machineType": f"{compute}/machineTypes/ct6e-standard-{chips}t",
                "creationTimestamp": stamp(one.requested_s),
                "status": status,
                "scheduling": {"provisioningModel": "SPOT"},
                **started,
                **stopped,
            }
            return google_body("compute.v1", "Instance", body)
        state = "WAITING_FOR_RESOURCES" if one.started_s is None else "ACTIVE" if one.is_up else "SUSPENDED"
        body = {
            "name": f"{zone}/queuedResources/{one.name}",
            "createTime": stamp(one.requested_s),
            "state": {"state": state},
            "provisioningModel": "FLEX_START" if self.limited else "SPOT",
            "tpu": {
                "nodeSpec": [
                    {
                        "parent": zone,
                        "nodeId": f"{one.name}-node",
                        "node": {"acceleratorType": one.kind, "labels": {}},
                    }
                ]
            },
            **({"runDuration": {"maxRunDuration": f"{MAX_RUN_S}s"}} if self.limited else {}),
        }
        return google_body("tpu.v2alpha1", "QueuedResource", body)

    def node(self, one):
        if self.api == INSTANCE or not one.is_up:
            return None
        zone = "projects/p/locations/us-east5-b"
        body = {
            "name": f"{zone}/nodes/{one.name}-node",
            "createTime": stamp(one.started_s),
            "acceleratorType": one.kind,
            "queuedResource": f"{zone}/queuedResources/{one.name}",
        }
        return google_body("tpu.v2alpha1", "Node", body)

    # What the program does

    def note(self):
        """Record what Google shows, as a hook of `up` does."""
        seen = [
            one
            for _, request, node in self.documents()
            for one in [seen_instance(request, "us-east5-b") if self.api == INSTANCE else seen_queued(request, node)]
            if one is not None
        ]
        record = RunRecord.of(self.description) or RunRecord()
        self.description = record.after(seen, self.now_s, complete=True).written_into(self.description)
        assert len(self.description.encode()) <= MOST_BYTES

    def up(self, wait_s, kind, killed):
        """Deploy: replace what is dead or of another kind, wait for capacity, and record it unless the update is killed."""
        if self.description is None:
            self.description = IDENTITY
        self.note()
        if self.machines and self.machines[-1].is_up and self.machines[-1].kind == kind:
            return
        for one in self.machines:
            self.remove(one)
        self.machines.append(Machine("gemma-x", kind, self.now_s))
        self.wait(wait_s)
        self.grant()
        self.wait(600)
        if not killed:
            self.note()

    # What Google does

    def wait(self, seconds):
        for one in self.machines:
            if one.is_up:
                left_s = MAX_RUN_S - one.used_s if self.limited and self.api == QUEUED else seconds
                one.used_s += min(seconds, left_s)
                if left_s < seconds:
                    one.ended_s = self.now_s + left_s
        self.now_s += seconds

    def grant(self):
        for one in self.machines:
            if one.started_s is None and not one.request_gone:
                one.started_s = self.now_s

    def remove(self, one):
        one.request_gone = True
        one.ended_s = one.ended_s or self.now_s

    def preempt(self):
        for one in self.machines:
            if one.is_up:
                one.ended_s = self.now_s
                one.request_gone = self.api == INSTANCE  # Google deletes the instance, and no trace is left

    def stop(self):
        for one in self.machines:
            if one.is_up and self.api == INSTANCE:
                one.ended_s = self.now_s

    def start_again(self):
        for one in self.machines:
            if self.api == INSTANCE and one.ended_s is not None and not one.request_gone:
                one.ended_s, one.restarted_s = None, self.now_s

    # What the guard says

    def spent(self):
        found = []
        for _, request, node in self.documents():
            kind = by_name(INSTANCE if self.api == INSTANCE else QUEUED)
            found.append(resource_of(kind, request, project="p", owner=owner("x")))
            if node is not None:
                found.append(resource_of(by_name(NODE), node, project="p", owner=owner("x")))
        account = {"name": "projects/p/serviceAccounts/a@p", "email": "a@p", "description": self.description}
        account = google_body("iam.v1", "ServiceAccount", account)
        found.append(resource_of(by_name(ACCOUNT), account, project="p", owner=owner("x")))
        (item,) = spending(None, found, datetime.fromtimestamp(self.now_s, UTC))
        assert not item.unknown
        return item

    def truth_usd(self):
        price = 1.35 if self.limited and self.api == QUEUED else 0.0
        return sum(one.used_s / 3600 * price * int(one.kind.partition("-")[2]) for one in self.machines)

    def first_s(self):
        return min((one.started_s for one in self.machines if one.started_s is not None), default=None)


WAITS = st.sampled_from([0, 60, 1800, 7200, 30_000])
EVENTS = st.one_of(
    st.tuples(st.just("wait"), WAITS),
    st.tuples(st.just("up"), WAITS, st.sampled_from(TYPES), st.booleans()),
    st.tuples(st.sampled_from(["preempt", "grant", "stop", "start_again"])),
)


@settings(max_examples=examples(test=60, part=500, night=3000))
@given(st.sampled_from([QUEUED, INSTANCE]), st.booleans(), st.lists(EVENTS, min_size=1, max_size=14))
def test_neither_age_nor_cost_ever_falls_while_the_stack_stands_and_neither_is_less_than_the_truth(
    api, limited, events
):
    life = Life(api=api, limited=limited)
    age_s, usd = 0.0, 0.0
    for name, *arguments in events:
        if name == "up" and api == INSTANCE:
            arguments[-1] = False  # an instance that Google deletes leaves no request behind that would name it
        getattr(life, name)(*arguments)
        if life.description is None:
            continue
        item = life.spent()
        assert item.age_s >= age_s, (events, item)
        assert item.usd >= usd - 1e-9, (events, item)
        assert item.usd >= life.truth_usd() - 1e-9, (events, item)
        if life.first_s() is not None:
            assert item.age_s >= life.now_s - life.first_s()
        age_s, usd = item.age_s, item.usd
