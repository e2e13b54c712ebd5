"""Renewal: the second queued resource takes over before the deadline of the first, and every end in the middle keeps both known."""

from collections.abc import Callable
from typing import Any

import pytest
from pulumi.runtime.proto import provider_pb2

from gcp_tpu_provider import wire
from gcp_tpu_provider.errors import GoogleError
from gcp_tpu_provider.tests.cloud import FakeTpu
from gcp_tpu_provider.tests.harness import Aborted, Context, FakeEngine, wanted
from gcp_tpu_provider.tests.test_lifecycle import boots, serving

HOUR_S = 3600
A, B = "us-east5-a", "us-east5-b"


def renewing(**changes: Any) -> dict[str, Any]:
    """A run of four hours that is renewed in its last hour."""
    return wanted(renewBeforeS=HOUR_S, **changes)


@pytest.fixture
def cloud() -> FakeTpu:
    return FakeTpu()


@pytest.fixture
def engine(cloud: FakeTpu) -> FakeEngine:
    return FakeEngine(cloud)


@pytest.fixture
def due(engine: FakeEngine, cloud: FakeTpu) -> FakeEngine:
    """An engine whose run is in its last hour: the next `up` renews it."""
    engine.up(renewing())
    cloud.pass_time(3)
    return engine


def name(engine: FakeEngine) -> str:
    return engine.outputs["name"]


def other(engine: FakeEngine) -> str | None:
    return engine.outputs.get("renewalName")


def first(cloud: FakeTpu, zone: str = A) -> str:
    return cloud.name(zone)


def second(cloud: FakeTpu, zone: str = A) -> str:
    return cloud.name(zone, "serve-b")


def interrupt(engine: FakeEngine, cloud: FakeTpu, text: str, given: dict[str, Any] | None = None) -> None:
    """Run up and press Ctrl-C at the first call that contains the text."""

    def on_call(call: str) -> None:
        if text in call:
            cloud.on_call = None
            engine.provider.cancel_all()

    cloud.on_call = on_call
    with pytest.raises(Aborted, match="interrupted"):
        engine.up(given or renewing())


class TestDue:
    def test_long_before_the_deadline_nothing_changes(self, engine: FakeEngine, cloud: FakeTpu):
        engine.up(renewing())
        cloud.pass_time(2.9)
        assert engine.preview(renewing()) == "same"

    def test_a_deadline_that_is_a_secret_output_is_read(self, due: FakeEngine, cloud: FakeTpu):
        assert due.state
        inputs = due.inputs(renewing())
        outputs = due.outputs | {"deadline": {wire.SIGNATURE: wire.SECRET, "value": "2026-11-20T12:00:00Z"}}
        request = provider_pb2.UpdateRequest(
            id=due.state.id,
            urn=due.urn,
            olds=wire.write(outputs),
            old_inputs=wire.write(due.state.inputs),
            news=wire.write(inputs),
            preview=True,
        )
        answer = due.run(due.provider.Update(request, Context()))
        assert wire.read(answer.properties)["name"] == wire.UNKNOWN

    def test_the_warning_of_the_end_names_the_update_that_renews(self, engine: FakeEngine, cloud: FakeTpu):
        engine.up(renewing())
        cloud.pass_time(3.8)
        engine.preview(renewing())
        assert [warning.rpartition(". ")[2] for warning in engine.warnings] == [
            "Run `pulumi up` before then to renew it."
        ]

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"renewBeforeS": 0}, "must be at least 1"),
            ({"renewBeforeS": 14400}, "must be less than `maxRunDurationS`, which is 14400"),
            ({"provisioningModel": "standard", "maxRunDurationS": None}, "the nodes have no deadline"),
        ],
    )
    def test_what_cannot_be_renewed_is_a_mistake(self, engine: FakeEngine, changes: dict[str, Any], words: str):
        given = {key: value for key, value in (renewing() | changes).items() if value is not None}
        assert words in engine.mistakes(given)["renewBeforeS"]


class TestChangeOver:
    @staticmethod
    def told(engine: FakeEngine, cloud: FakeTpu, after_the_end: list[dict[str, str]]) -> list[str]:
        """Renew with machines that get their deadline; return the calls. `after_the_end` is what the old one then publishes."""
        given = serving(renewBeforeS=HOUR_S)
        given["ready"] = {**given["ready"], "deadlineMetadataKey": "ends-at"}
        cloud.boots = boots
        engine.up(given)
        (old,) = cloud.nodes
        first_end = cloud.nodes[old]["metadata"]["ends-at"]

        def booted(metadata: dict[str, Any]) -> list[dict[str, str]]:
            end = metadata.get("ends-at", "")
            return after_the_end if end and end < first_end else boots(metadata)

        cloud.boots = booted
        cloud.pass_time(3)
        cloud.calls.clear()
        engine.up(given)
        assert list(cloud.queued) == [second(cloud)]
        asked = (f"PATCH v2alpha1/{old}", "DELETE", f"POST v2alpha1/{old}:get")
        return [call for call in cloud.calls if call.startswith(asked)]

    def test_the_old_machine_ends_its_requests_before_it_is_deleted(self, engine: FakeEngine, cloud: FakeTpu):
        still = {"phase": "ready", "serving-hash": "x"}
        calls = self.told(engine, cloud, [still, still, {"phase": "ending", "serving-hash": "x"}, {"phase": "ending"}])
        asked = [index for index, call in enumerate(calls) if "getGuestAttributes" in call]
        patched = next(index for index, call in enumerate(calls) if call.startswith("PATCH"))
        deleted = next(index for index, call in enumerate(calls) if call.startswith("DELETE"))
        after = [index for index in asked if index > patched]
        assert len(after) == 4, calls
        assert max(after) < deleted

    def test_a_machine_that_never_ends_its_requests_is_deleted_all_the_same(self, cloud: FakeTpu):
        calls = self.told(FakeEngine(cloud), cloud, [{"phase": "ready", "serving-hash": "x"}])
        assert len([call for call in calls if "getGuestAttributes" in call]) > 5

    def test_a_machine_that_cannot_be_told_is_deleted_all_the_same(self, engine: FakeEngine, cloud: FakeTpu):
        def refuse(call: str) -> None:
            if call.startswith("PATCH") and call.endswith("serve-node"):
                raise GoogleError(403, "PERMISSION_DENIED", "no right to change the node")

        given = serving(renewBeforeS=HOUR_S)
        given["ready"] = {**given["ready"], "deadlineMetadataKey": "ends-at"}
        cloud.boots = boots
        engine.up(given)
        cloud.pass_time(3)
        cloud.on_call = refuse
        engine.up(given)
        assert list(cloud.queued) == [second(cloud)]
        assert any("could not drain the requests of" in line for line in engine.lines)

    def test_a_machine_that_fails_leaves_the_old_one_serving_and_both_are_in_the_state(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        cloud.boots = boots
        engine.up(serving(renewBeforeS=HOUR_S))
        cloud.pass_time(3)
        cloud.boots = lambda metadata: [
            *boots(metadata)[:2],
            {**boots(metadata)[1], "phase": "failed", "detail": "INFO one\nboom"},
        ]
        said = "The server failed: boom\nLast lines before it:\nINFO one\nThe capacity is kept, and costs money"
        with pytest.raises(Aborted, match=said):
            engine.up(serving(renewBeforeS=HOUR_S))
        assert (name(engine), other(engine)) == (first(cloud), second(cloud))
        assert set(cloud.queued) == {first(cloud), second(cloud)}
        cloud.guests[f"projects/my-project/locations/{A}/nodes/serve-node-b"] = boots({"document": '{"schema": 1}'})
        engine.up(serving(renewBeforeS=HOUR_S))
        assert list(cloud.queued) == [second(cloud)]

    def test_an_active_successor_is_not_replaced_while_the_old_one_ends(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.boots = boots
        engine.up(serving(renewBeforeS=HOUR_S))
        cloud.pass_time(3)
        cloud.boots = lambda metadata: [{**boots(metadata)[1], "phase": "failed", "detail": "boom"}]
        with pytest.raises(Aborted, match="The server failed: boom"):
            engine.up(serving(renewBeforeS=HOUR_S))
        assert engine.outputs["renewalState"] == "ACTIVE"
        engine.outputs["state"] = "SUSPENDING"
        with pytest.raises(Aborted, match="set `allowReplaceActive` to true"):
            engine.preview(serving(renewBeforeS=HOUR_S, acceleratorType="v6e-8"))

    def test_an_announced_change_of_settings_reaches_both(self, due: FakeEngine, cloud: FakeTpu):
        due.up(renewing(tags=["other"]))
        assert [node["tags"] for node in cloud.nodes.values()] == [["other"]]


class TestNoCapacity:
    def test_a_refused_quota_is_a_warning_and_the_old_one_goes_on_serving(self, due: FakeEngine, cloud: FakeTpu):
        quota = GoogleError(429, "RESOURCE_EXHAUSTED", "Quota limit 'TPUV6E' has been exceeded. Limit: 4 in zone x.")
        cloud.refusals = {A: quota, B: quota}
        assert due.up(renewing()) == "update"
        assert (name(due), other(due)) == (first(cloud), None)
        (warning,) = due.warnings
        assert "keeps serving until 2026-11-20T12:00:00Z" in warning
        assert "quota: Google returned 429" in warning
        assert due.preview(renewing()) == "update", "the next one tries again"

    def test_if_the_old_one_ended_meanwhile_the_update_fails(self, due: FakeEngine, cloud: FakeTpu):
        cloud.refusals = dict.fromkeys((A, B), GoogleError(403, "PERMISSION_DENIED", "no"))

        def end(call: str) -> None:
            if call.startswith("POST") and B in call:
                cloud.clock = cloud.clock.replace(hour=13)

        cloud.on_call = end
        with pytest.raises(Aborted, match="No zone granted"):
            due.up(renewing())
        cloud.on_call = None
        cloud.refusals.clear()
        due.refresh()
        assert due.up(renewing()) == "replace"
        assert list(cloud.queued) == [first(cloud)]

    def test_the_same_without_a_refresh(self, due: FakeEngine, cloud: FakeTpu):
        cloud.scripts[A] = ("WAITING_FOR_RESOURCES",)
        with pytest.raises(Aborted):
            due.up(renewing(), timeout_s=0.2)
        cloud.pass_time(2)
        cloud.queued[second(cloud)].steps.append("ACTIVE")
        due.up(renewing())
        assert list(cloud.queued) == [second(cloud)]
        assert (name(due), other(due)) == (second(cloud), None)


MOMENTS: list[tuple[str, Callable[[FakeTpu], str]]] = [
    ("at the request", lambda cloud: "POST"),
    ("in the wait", second),
    ("at the deletion of the old one", lambda cloud: "DELETE"),
]


class TestEnds:
    @pytest.mark.parametrize(("moment", "text"), MOMENTS, ids=[moment for moment, _ in MOMENTS])
    def test_after_ctrl_c_the_state_has_both_and_the_next_up_finishes(
        self, due: FakeEngine, cloud: FakeTpu, moment: str, text: Callable[[FakeTpu], str]
    ):
        interrupt(due, cloud, text(cloud))
        known = {name(due), *([other(due)] if other(due) else [])}
        assert set(cloud.queued) <= known
        due.up(renewing())
        assert list(cloud.queued) == [second(cloud)]
        assert (name(due), other(due)) == (second(cloud), None)

    @pytest.mark.parametrize("how", ["destroy", "refresh and destroy"])
    @pytest.mark.parametrize(("moment", "text"), MOMENTS, ids=[moment for moment, _ in MOMENTS])
    def test_after_ctrl_c_a_destroy_deletes_both(
        self, due: FakeEngine, cloud: FakeTpu, moment: str, text: Callable[[FakeTpu], str], how: str
    ):
        interrupt(due, cloud, text(cloud))
        if "refresh" in how:
            due.refresh()
        due.destroy()
        assert cloud.queued == {}

    def test_what_a_lost_state_left_behind_is_found_under_either_id(self, due: FakeEngine, cloud: FakeTpu):
        due.up(renewing())
        due.state = None
        due.up(renewing())
        assert name(due) == second(cloud)
        assert len(cloud.made("POST")) == 2, "nothing was requested again"

    def test_a_creation_that_finds_both_and_is_interrupted_keeps_both(self, engine: FakeEngine, cloud: FakeTpu):
        def refuse(call: str) -> None:
            if call.startswith("DELETE"):
                raise GoogleError(503, "UNAVAILABLE", "try later")

        engine.up(renewing())
        for _ in range(2):
            cloud.pass_time(3)
            cloud.on_call = refuse
            with pytest.raises(Aborted):
                engine.up(renewing())
            engine.state = None
            interrupt(engine, cloud, "DELETE")
            assert {name(engine), other(engine)} == {first(cloud), second(cloud)}
            engine.up(renewing())
        engine.destroy()
        assert cloud.queued == {}

    def test_when_the_one_that_serves_is_gone_a_refresh_still_knows_the_other(self, due: FakeEngine, cloud: FakeTpu):
        interrupt(due, cloud, "DELETE")
        cloud.drop(cloud.queued[second(cloud)])
        cloud.queued[first(cloud)].state = "SUSPENDED"
        cloud.queued[first(cloud)].steps.clear()
        due.refresh()
        assert (name(due), other(due)) == (first(cloud), None)
        due.destroy()
        assert cloud.queued == {}

    def test_a_second_one_that_is_gone_too_takes_over_nothing(self, due: FakeEngine, cloud: FakeTpu):
        interrupt(due, cloud, "POST")
        for found in (cloud.queued[first(cloud)], cloud.queued[second(cloud)]):
            found.state = "SUSPENDED"
            found.steps.clear()
        with pytest.raises(Aborted, match=r"Nothing serves: .*/serve was ACTIVE and is SUSPENDED"):
            due.up(renewing())
        assert len(cloud.made("POST")) == 2, "nothing was requested again"

    def test_when_the_one_that_serves_is_gone_a_refresh_waits_for_a_request_without_an_answer(
        self, due: FakeEngine, cloud: FakeTpu
    ):
        cloud.hidden_s = 1000
        cloud.faults.append(("POST", "lost"))
        with pytest.raises(Aborted):
            due.up(renewing())
        cloud.drop(cloud.queued[first(cloud)])
        looks = 0

        def appear(call: str) -> None:
            nonlocal looks
            looks += call.endswith(second(cloud))
            if looks == 2:
                cloud.queued[second(cloud)].visible_at_s = 0

        cloud.on_call = appear
        due.refresh()
        assert (name(due), other(due)) == (second(cloud), None)

    def test_turned_off_in_the_middle_the_second_is_given_back(self, due: FakeEngine, cloud: FakeTpu):
        cloud.scripts[A] = ("WAITING_FOR_RESOURCES",)
        with pytest.raises(Aborted):
            due.up(renewing(), timeout_s=0.2)
        due.up(wanted())
        assert (list(cloud.queued), other(due)) == ([first(cloud)], None)

    def test_a_second_of_someone_else_is_left_alone_and_named(self, due: FakeEngine, cloud: FakeTpu):
        body = {"tpu": {"nodeSpec": [{"parent": "p", "nodeId": "n", "node": {"labels": {}}}]}}
        cloud.create(f"projects/my-project/locations/{A}", A, {"queuedResourceId": "serve-b"}, body)
        due.up(renewing())
        assert any("its labels do not name this Pulumi resource" in warning for warning in due.warnings)
        due.destroy()
        assert list(cloud.queued) == [second(cloud)]

    def test_an_older_one_that_is_left_is_deleted_and_never_taken_for_the_successor(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        given = wanted(renewBeforeS=3 * HOUR_S)
        engine.up(given)
        cloud.pass_time(1)
        interrupt(engine, cloud, "DELETE", given)
        assert (name(engine), other(engine)) == (second(cloud), first(cloud))
        cloud.pass_time(1)
        engine.up(given)
        assert engine.outputs["deadline"] == "2026-11-20T14:00:00Z"
        assert list(cloud.queued) == [first(cloud)]
        assert len(cloud.made("POST")) == 3
