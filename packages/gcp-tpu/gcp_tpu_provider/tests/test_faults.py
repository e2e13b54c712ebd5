"""Partial creations, lost answers, strangers, interruptions: whatever happens, the id is in the state or nothing of ours exists."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from pulumi.runtime.proto import provider_pb2

from gcp_tpu_provider import wire
from gcp_tpu_provider.desired_state import DesiredState, urn_hash
from gcp_tpu_provider.errors import GoogleError
from gcp_tpu_provider.tests.cloud import FakeTpu
from gcp_tpu_provider.tests.harness import Aborted, Context, FakeEngine, wanted

WAITING = ("CREATING", "WAITING_FOR_RESOURCES")


@pytest.fixture
def cloud() -> FakeTpu:
    return FakeTpu()


@pytest.fixture
def engine(cloud: FakeTpu) -> FakeEngine:
    return FakeEngine(cloud)


def up_and_cancel(
    engine: FakeEngine, cloud: FakeTpu, given_inputs: dict[str, Any], at: str, *, times: int = 3
) -> Aborted:
    """Run up and press Ctrl-C when the cloud sees a call for the n-th time."""
    seen = 0

    def press(call: str) -> None:
        nonlocal seen
        seen += at in call
        if seen == times:
            engine.provider.cancel_all()

    cloud.on_call = press
    with pytest.raises(Aborted) as ended:
        engine.up(given_inputs)
    cloud.on_call = None
    return ended.value


class TestInterruption:
    def test_ctrl_c_in_the_wait_keeps_the_request_and_up_goes_on_with_it(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.scripts["us-east5-a"] = WAITING
        ended = up_and_cancel(engine, cloud, wanted(), "GET v2alpha1/" + cloud.name("us-east5-a"), times=6)
        assert "kept in the state. Run `pulumi up` to continue" in ended.message
        assert engine.state
        assert engine.state.init_errors == [ended.message]
        assert engine.outputs["state"] == "WAITING_FOR_RESOURCES"
        assert list(cloud.queued) == [cloud.name("us-east5-a")]
        cloud.queued[cloud.name("us-east5-a")].steps.extend(["PROVISIONING", "ACTIVE"])
        assert engine.up(wanted()) == "update"
        assert engine.outputs["state"] == "ACTIVE"
        assert engine.state.init_errors == []
        assert len(cloud.made("POST")) == 1

    def test_a_refresh_after_the_interruption_does_not_make_it_look_finished(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.scripts["us-east5-a"] = WAITING
        up_and_cancel(engine, cloud, wanted(), "GET", times=12)
        engine.refresh()
        cloud.queued[cloud.name("us-east5-a")].steps.extend(["PROVISIONING", "ACTIVE"])
        assert engine.up(wanted()) == "update"
        assert engine.detailed == {"state": "UPDATE"}
        assert engine.outputs["state"] == "ACTIVE"

    def test_when_the_other_zones_fail_too_the_next_up_starts_over(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.scripts["us-east5-a"] = WAITING
        cloud.scripts["us-east5-b"] = ("FAILED:nothing here",)
        up_and_cancel(engine, cloud, wanted(), "GET", times=12)
        cloud.queued[cloud.name("us-east5-a")].steps.append("FAILED:gone after all")
        with pytest.raises(Aborted, match="No zone granted v6e-4") as ended:
            engine.up(wanted())
        assert "us-east5-a  unknown words: FAILED: gone after all." in ended.value.message
        assert cloud.queued == {}
        cloud.scripts.clear()
        assert engine.up(wanted()) in {"update", "replace"}
        assert engine.outputs["state"] == "ACTIVE"

    def test_an_engine_that_drops_the_call_leaves_the_request_for_the_next_creation_to_take_over(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        cloud.scripts["us-east5-b"] = WAITING
        cloud.refusals["us-east5-a"] = GoogleError(429, "RESOURCE_EXHAUSTED", "not now")

        request = _create_request(engine)

        async def drop() -> None:
            task = asyncio.create_task(engine.provider.Create(request, Context()))
            asked = asyncio.Event()
            cloud.on_call = lambda call: asked.set() if call.startswith("GET") and cloud.queued else None
            await asked.wait()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            await asyncio.sleep(0.01)

        engine.run(drop())
        assert list(cloud.queued) == [cloud.name("us-east5-b")]
        calls = len(cloud.calls)
        cloud.refusals.clear()
        cloud.queued[cloud.name("us-east5-b")].steps.append("ACTIVE")
        assert engine.up(wanted()) == "create"
        assert engine.outputs["zone"] == "us-east5-b", "what was there is taken first, though it is not the first zone"
        assert [call for call in cloud.calls[calls:] if call.startswith("POST")] == []


def _create_request(engine: FakeEngine) -> provider_pb2.CreateRequest:
    return provider_pb2.CreateRequest(urn=engine.urn, properties=wire.write(engine.inputs(wanted())))


ONLY_A = ["projects/my-project/locations/us-east5-a/queuedResources/serve"]


class TestLostAnswers:
    @pytest.mark.parametrize(
        ("faults", "hidden_s"),
        [
            pytest.param(["lost"], 0, id="at once"),
            pytest.param(["lost"], 0.01, id="visible soon"),
            pytest.param(["lost"], 0.08, id="visible in the next operation"),
            pytest.param(["limited"], 0, id="and the second attempt is refused"),
            pytest.param(["lost", "dropped"], 0, id="and the search fails"),
        ],
    )
    def test_a_request_whose_answer_was_lost_is_found_by_its_id(
        self, engine: FakeEngine, cloud: FakeTpu, hidden_s: float, faults: list[str]
    ):
        cloud.faults.extend(zip(("POST", "GET"), faults, strict=False))
        cloud.hidden_s = hidden_s
        with suppress(Aborted):
            engine.up(wanted())
        engine.up(wanted())
        assert engine.outputs["state"] == "ACTIVE"
        assert list(cloud.queued) == ONLY_A
        assert len(cloud.made("POST")) <= (2 if hidden_s else 1)

    @pytest.mark.parametrize("refreshes", [True, False])
    @pytest.mark.parametrize("hidden_s", [0.01, 0.12])
    def test_a_lost_answer_that_shows_late_is_deleted_by_destroy_and_kept_by_a_refresh(
        self, engine: FakeEngine, cloud: FakeTpu, hidden_s: float, *, refreshes: bool
    ):
        cloud.faults.append(("POST", "lost"))
        cloud.hidden_s = hidden_s
        with suppress(Aborted):
            engine.up(wanted())
        if refreshes:
            engine.refresh()
        assert engine.state
        engine.destroy()
        assert cloud.queued == {}

    def test_no_connection_at_all_leaves_no_state(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.faults.append(("POST", "unsent"))
        with pytest.raises(Aborted, match="got no response from Google") as ended:
            engine.up(wanted())
        assert ended.value.partial is None
        assert cloud.queued == {}


ANOTHER = {"gemma-serving-urn": urn_hash("another")}


class TestStrangers:
    @pytest.mark.parametrize("moment", ["before", "between look and request"])
    def test_a_foreign_queued_resource_with_our_id_is_left_alone(self, engine: FakeEngine, cloud: FakeTpu, moment: str):
        def appear(call: str) -> None:
            if (moment == "before" or call.startswith("POST")) and not cloud.queued:
                cloud.add_stranger("us-east5-a", "serve", ANOTHER)

        cloud.on_call = appear
        with pytest.raises(
            Aborted, match=r"labels do not name this Pulumi resource, and it was not modified."
        ) as ended:
            engine.up(wanted())
        assert ended.value.partial is None
        assert engine.state is None
        assert cloud.made("DELETE") + cloud.made("PATCH") == []
        assert list(cloud.queued) == ONLY_A

    def test_a_conflict_about_the_node_is_the_zones_answer(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.refusals["us-east5-a"] = GoogleError(409, "ALREADY_EXISTS", "node serve-node exists")
        engine.up(wanted())
        assert list(cloud.queued) == [cloud.name("us-east5-b")]

    def test_somebody_elses_under_the_old_name_counts_as_gone_on_refresh(self, engine: FakeEngine, cloud: FakeTpu):
        engine.up(wanted())
        cloud.queued.clear()
        cloud.add_stranger("us-east5-a", "serve", ANOTHER)
        engine.refresh()
        assert engine.state is None


def leave(cloud: FakeTpu, zone: str, *script: str) -> None:
    """Make what a killed run would have made, without a state."""
    engine = FakeEngine(cloud)
    desired = DesiredState.of(engine.urn, engine.inputs(wanted()))
    cloud.scripts[zone] = script
    body = desired.body(zone, desired.forms[0])
    cloud.create(f"projects/my-project/locations/{zone}", zone, {"queuedResourceId": "serve"}, body)


class TestLeftovers:
    """Requests of killed runs, also in zones that the settings no longer name."""

    def test_running_capacity_in_a_dropped_zone_is_not_given_up_without_permission(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        cloud.zones = ("europe-west4-a", "us-east5-a")
        leave(cloud, "europe-west4-a", "ACTIVE")
        says = (
            "An interrupted Pulumi run created it, but `zones` no longer lists its zone. "
            "Add europe-west4-a to `zones`, or set `allowReplaceActive` to true"
        )
        with pytest.raises(Aborted) as refused:
            engine.up(wanted())
        assert says in refused.value.message
        assert cloud.made("DELETE") == []

    def test_an_api_that_lists_no_zones_is_no_obstacle(self, engine: FakeEngine, cloud: FakeTpu):
        denied = GoogleError(403, "PERMISSION_DENIED", "Permission 'tpu.locations.list' denied on 'projects/p'")

        def refuse(call: str) -> None:
            if call.endswith("/locations"):
                raise denied

        cloud.on_call = refuse
        leave(cloud, "us-east5-b", *WAITING, "ACTIVE")
        engine.up(wanted())
        assert list(cloud.queued) == [cloud.name("us-east5-b")]
        assert any("searching only known zones" in line for line in engine.lines)

    @pytest.mark.parametrize("then", ["destroy", "update", "refresh"])
    def test_what_appeared_in_a_zone_that_was_tried_before_is_found(
        self, engine: FakeEngine, cloud: FakeTpu, then: str
    ):
        cloud.scripts["us-east5-a"] = ("CREATING", "FAILED:no capacity")
        engine.up(wanted())
        assert engine.outputs["triedZones"] == ["us-east5-a", "us-east5-b"]
        leave(cloud, "us-east5-a", *WAITING)  # an answer that came too late
        if then == "update":
            engine.up(wanted(tags=["other"]))
            assert list(cloud.queued) == [cloud.name("us-east5-b")]
        elif then == "refresh":
            cloud.drop(cloud.queued[cloud.name("us-east5-b")])
            engine.refresh()
            assert engine.outputs["zone"] == "us-east5-a"
        engine.destroy()
        assert cloud.queued == {}

    def test_capacity_that_is_there_is_kept_when_the_total_wait_is_over(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.scripts["us-east5-a"] = WAITING
        with pytest.raises(Aborted):
            engine.up(wanted(), timeout_s=0.05)
        leave(cloud, "us-east5-b", "ACTIVE")
        assert engine.up(wanted(waitTotalS=1)) == "update"
        assert list(cloud.queued) == [cloud.name("us-east5-b")]

    def test_an_active_leftover_with_other_properties_is_not_given_up_without_permission(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        FakeEngine(cloud).up(wanted(acceleratorType="v6e-8"))
        with pytest.raises(Aborted, match="set `allowReplaceActive` to true"):
            engine.up(wanted())
        assert cloud.made("DELETE") == []
        engine.up(wanted(allowReplaceActive=True))
        (only,) = cloud.queued.values()
        assert only.body["tpu"]["nodeSpec"][0]["node"]["acceleratorType"] == "v6e-4"

    def test_a_leftover_with_older_metadata_is_patched(self, engine: FakeEngine, cloud: FakeTpu):
        FakeEngine(cloud).up(wanted(metadata={"startup-script": "old", "gone": "1"}))
        engine.up(wanted())
        assert cloud.nodes[cloud.node_name("us-east5-a")]["metadata"] == {"startup-script": "#!/bin/sh\n"}
