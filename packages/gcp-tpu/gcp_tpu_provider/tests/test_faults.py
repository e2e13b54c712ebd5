"""Partial creations, lost answers, strangers, interruptions: whatever happens, the id is in the state or nothing of ours exists."""

import asyncio
import itertools
from contextlib import suppress
from copy import deepcopy
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pulumi.runtime.proto import provider_pb2

from gcp_tpu_provider import wire
from gcp_tpu_provider.desired_state import DesiredState, urn_hash
from gcp_tpu_provider.errors import GoogleError
from gcp_tpu_provider.operation import ResourceOperation
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
        assert engine.state.outputs["state"] == "WAITING_FOR_RESOURCES"
        assert list(cloud.queued) == [cloud.name("us-east5-a")]
        cloud.queued[cloud.name("us-east5-a")].steps.extend(["PROVISIONING", "ACTIVE"])
        assert engine.up(wanted()) == "update"
        assert engine.state.outputs["state"] == "ACTIVE"
        assert engine.state.init_errors == []
        assert len(cloud.made("POST")) == 1

    def test_a_refresh_after_the_interruption_does_not_make_it_look_finished(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.scripts["us-east5-a"] = WAITING
        up_and_cancel(engine, cloud, wanted(), "GET", times=12)
        engine.refresh()
        cloud.queued[cloud.name("us-east5-a")].steps.extend(["PROVISIONING", "ACTIVE"])
        assert engine.up(wanted()) == "update"
        assert engine.detailed == {"state": "UPDATE"}
        assert engine.state
        assert engine.state.outputs["state"] == "ACTIVE"

    def test_ctrl_c_in_the_wait_and_then_destroy_leaves_nothing(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.scripts["us-east5-a"] = WAITING
        up_and_cancel(engine, cloud, wanted(), "GET", times=12)
        engine.destroy()
        assert cloud.queued == {}

    def test_ctrl_c_before_anything_was_asked_for_leaves_no_state(self, engine: FakeEngine, cloud: FakeTpu):
        ended = up_and_cancel(engine, cloud, wanted(), "GET", times=1)
        assert ended.partial is None
        assert engine.state is None
        assert cloud.queued == {}

    def test_the_post_itself_broken_off_keeps_the_id(self, engine: FakeEngine, cloud: FakeTpu):
        up_and_cancel(engine, cloud, wanted(), "POST", times=1)
        assert engine.state
        assert engine.state.id == "projects/my-project/queuedResources/serve"
        assert engine.state.outputs["name"] == cloud.name("us-east5-a")

    def test_a_zone_that_fails_after_the_interruption_is_left_for_the_next_one_under_the_same_id(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        cloud.scripts["us-east5-a"] = WAITING
        up_and_cancel(engine, cloud, wanted(), "GET", times=12)
        cloud.queued[cloud.name("us-east5-a")].steps.append("FAILED:gone after all")
        assert engine.up(wanted()) == "update"
        assert engine.state
        assert engine.state.outputs["zone"] == "us-east5-b"
        assert engine.state.id == "projects/my-project/queuedResources/serve"
        assert list(cloud.queued) == [cloud.name("us-east5-b")]
        engine.destroy()
        assert cloud.queued == {}

    def test_when_the_other_zones_fail_too_the_next_up_starts_over(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.scripts["us-east5-a"] = WAITING
        cloud.scripts["us-east5-b"] = ("FAILED:nothing here",)
        up_and_cancel(engine, cloud, wanted(), "GET", times=12)
        cloud.queued[cloud.name("us-east5-a")].steps.append("FAILED:gone after all")
        with pytest.raises(Aborted, match="No zone granted v6e-4") as ended:
            engine.up(wanted())
        assert "us-east5-a  unknown: FAILED: gone after all." in ended.value.message
        assert cloud.queued == {}
        cloud.scripts.clear()
        assert engine.up(wanted()) in {"update", "replace"}
        assert engine.state
        assert engine.state.outputs["state"] == "ACTIVE"

    def test_a_custom_timeout_is_the_end_of_the_wait_too(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.scripts["us-east5-a"] = WAITING
        with pytest.raises(Aborted, match="custom timeout") as ended:
            engine.up(wanted(), timeout_s=2.0)
        assert ended.value.partial
        assert engine.state

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
        assert engine.state
        assert engine.state.outputs["zone"] == "us-east5-b", (
            "what was there is taken first, though it is not the first zone"
        )
        assert [call for call in cloud.calls[calls:] if call.startswith("POST")] == []


def _create_request(engine: FakeEngine) -> provider_pb2.CreateRequest:
    return provider_pb2.CreateRequest(urn=engine.urn, properties=wire.write(engine.inputs(wanted())))


class TestLostAnswers:
    def test_a_lost_answer_to_the_post_is_found_by_its_id_and_not_asked_for_twice(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        cloud.faults.append(("POST", "lost"))
        engine.up(wanted())
        assert len(cloud.made("POST")) == 1
        assert list(cloud.queued) == [cloud.name("us-east5-a")]

    def test_a_request_whose_second_attempt_is_refused_is_found_by_its_id_too(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.faults.append(("POST", "limited"))
        engine.up(wanted())
        assert list(cloud.queued) == [cloud.name("us-east5-a")]

    def test_a_request_that_never_shows_is_kept_in_the_state_and_asked_for_again(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        """Nobody can tell a request that was dropped from one that takes effect after minutes, so no other zone is asked."""
        cloud.faults.append(("POST", "dropped"))
        with pytest.raises(
            Aborted, match=r"the request may still take effect\. It is kept in the state\. Run `pulumi up`"
        ) as ended:
            engine.up(wanted())
        assert ended.value.partial
        assert engine.state
        assert engine.state.outputs["triedZones"] == ["us-east5-a"]
        assert engine.up(wanted()) == "update"
        assert list(cloud.queued) == [cloud.name("us-east5-a")]
        engine.destroy()
        assert cloud.queued == {}

    @pytest.mark.parametrize("hidden_s", [0.01, 0.08])
    def test_a_lost_answer_that_shows_late_is_found_by_the_next_operation(
        self, engine: FakeEngine, cloud: FakeTpu, hidden_s: float
    ):
        cloud.faults.append(("POST", "lost"))
        cloud.hidden_s = hidden_s
        with suppress(Aborted):
            engine.up(wanted())
        assert engine.state
        engine.up(wanted())
        assert len(cloud.made("POST")) <= 2
        assert list(cloud.queued) == [cloud.name("us-east5-a")]
        assert engine.state.outputs["state"] == "ACTIVE"

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

    def test_a_503_that_lasts_leaves_the_id_in_the_state_when_nobody_can_tell(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.faults.extend([("POST", "lost"), ("GET", "dropped")])
        with pytest.raises(Aborted) as ended:
            engine.up(wanted())
        assert ended.value.partial
        assert engine.state
        assert engine.up(wanted()) == "update"
        assert engine.state.outputs["state"] == "ACTIVE"
        assert len(cloud.queued) == 1

    def test_no_connection_at_all_leaves_no_state(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.faults.append(("POST", "unsent"))
        with pytest.raises(Aborted, match="got no response from Google") as ended:
            engine.up(wanted())
        assert ended.value.partial is None
        assert cloud.queued == {}


class TestStrangers:
    def stranger(self, cloud: FakeTpu, zone: str = "us-east5-a") -> None:
        body = {
            "tpu": {
                "nodeSpec": [
                    {"parent": "p", "nodeId": "n", "node": {"labels": {"gemma-serving-urn": urn_hash("another")}}}
                ]
            }
        }
        cloud.create(f"projects/my-project/locations/{zone}", zone, {"queuedResourceId": "serve"}, body)

    def test_a_foreign_queued_resource_with_our_id_is_left_alone(self, engine: FakeEngine, cloud: FakeTpu):
        self.stranger(cloud)
        with pytest.raises(
            Aborted, match=r"labels do not name this Pulumi resource, and it was not modified."
        ) as ended:
            engine.up(wanted())
        assert ended.value.partial is None
        assert engine.state is None
        assert cloud.made("DELETE") + cloud.made("PATCH") == []
        assert list(cloud.queued) == [cloud.name("us-east5-a")]

    def test_a_foreign_one_that_appears_between_look_and_request_is_left_alone(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        def appear(call: str) -> None:
            if call.startswith("POST") and not cloud.queued:
                self.stranger(cloud)

        cloud.on_call = appear
        with pytest.raises(Aborted, match=r"was not (modified|deleted)"):
            engine.up(wanted())
        assert engine.state is None
        assert len(cloud.queued) == 1

    def test_a_conflict_about_the_node_is_the_zones_answer(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.refusals["us-east5-a"] = GoogleError(409, "ALREADY_EXISTS", "node serve-node exists")
        engine.up(wanted())
        assert list(cloud.queued) == [cloud.name("us-east5-b")]

    def test_somebody_elses_under_the_old_name_counts_as_gone_on_refresh(self, engine: FakeEngine, cloud: FakeTpu):
        engine.up(wanted())
        cloud.queued.clear()
        self.stranger(cloud)
        engine.refresh()
        assert engine.state is None


class TestMovedZones:
    """A request of a killed run waits in a zone that the settings no longer name."""

    def leave(self, cloud: FakeTpu, zone: str, *script: str) -> None:
        """Make what a killed run would have made, without a state."""
        engine = FakeEngine(cloud)
        desired = DesiredState.of(engine.urn, engine.inputs(wanted()))
        cloud.scripts[zone] = script
        cloud.create(
            f"projects/my-project/locations/{zone}",
            zone,
            {"queuedResourceId": "serve"},
            desired.body(zone, desired.forms[0]),
        )

    def test_a_creation_without_state_finds_its_own_request_in_any_zone(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.zones = ("asia-northeast1-b", "europe-west4-a", "us-east5-a", "us-east5-b")
        self.leave(cloud, "europe-west4-a", *WAITING)
        engine.up(wanted())
        assert list(cloud.queued) == [cloud.name("us-east5-a")]

    def test_running_capacity_in_a_dropped_zone_is_not_given_up_without_permission(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        cloud.zones = ("europe-west4-a", "us-east5-a")
        self.leave(cloud, "europe-west4-a", "ACTIVE")
        says = (
            "An interrupted Pulumi run created it, but `zones` no longer lists its zone. "
            "Add europe-west4-a to `zones`, or set `allowReplaceActive` to true"
        )
        with pytest.raises(Aborted) as refused:
            engine.up(wanted())
        assert says in refused.value.message
        assert cloud.made("DELETE") == []
        engine.up(wanted(allowReplaceActive=True))
        assert list(cloud.queued) == [cloud.name("us-east5-a")]

    def test_running_capacity_is_kept_and_the_waiting_one_deleted(self, engine: FakeEngine, cloud: FakeTpu):
        self.leave(cloud, "us-east5-a", *WAITING)
        self.leave(cloud, "us-east5-b", "ACTIVE")
        engine.up(wanted())
        assert list(cloud.queued) == [cloud.name("us-east5-b")]

    def test_an_api_that_lists_no_zones_is_no_obstacle(self, engine: FakeEngine, cloud: FakeTpu):
        denied = GoogleError(403, "PERMISSION_DENIED", "Permission 'tpu.locations.list' denied on 'projects/p'")

        def refuse(call: str) -> None:
            if call.endswith("/locations"):
                raise denied

        cloud.on_call = refuse
        self.leave(cloud, "us-east5-b", *WAITING, "ACTIVE")
        engine.up(wanted())
        assert list(cloud.queued) == [cloud.name("us-east5-b")]
        assert any("searching only known zones" in line for line in engine.lines)

    def test_destroy_looks_in_every_zone_that_was_ever_asked(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.scripts["us-east5-a"] = ("CREATING", "FAILED:no capacity")
        engine.up(wanted())
        assert engine.state
        assert engine.state.outputs["triedZones"] == ["us-east5-a", "us-east5-b"]
        self.leave(cloud, "us-east5-a", *WAITING)  # an answer that came too late
        engine.destroy()
        assert cloud.queued == {}

    def test_an_update_deletes_what_appeared_in_a_zone_that_was_tried_before(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.scripts["us-east5-a"] = ("CREATING", "FAILED:no capacity")
        engine.up(wanted())
        self.leave(cloud, "us-east5-a", *WAITING)
        engine.up(wanted(tags=["other"]))
        assert list(cloud.queued) == [cloud.name("us-east5-b")]

    def test_a_refresh_finds_it_in_another_zone_that_was_tried(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.scripts["us-east5-a"] = ("CREATING", "FAILED:no capacity")
        engine.up(wanted())
        cloud.drop(cloud.queued[cloud.name("us-east5-b")])
        self.leave(cloud, "us-east5-a", *WAITING)
        engine.refresh()
        assert engine.state
        assert engine.state.outputs["zone"] == "us-east5-a"
        engine.destroy()
        assert cloud.queued == {}

    def test_foreign_ones_in_other_zones_are_left_alone(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.zones = ("europe-west4-a", "us-east5-a")
        TestStrangers().stranger(cloud, "europe-west4-a")
        engine.up(wanted())
        engine.destroy()
        assert list(cloud.queued) == [cloud.name("europe-west4-a")]
        assert cloud.made("DELETE v2alpha1/" + cloud.name("europe-west4-a")) == []


class TestLeftovers:
    def test_capacity_that_is_there_is_kept_when_the_total_wait_is_over(self, cloud: FakeTpu):
        engine = FakeEngine(cloud)
        cloud.scripts["us-east5-a"] = WAITING
        with pytest.raises(Aborted):
            engine.up(wanted(), timeout_s=0.05)
        body = cloud.queued[cloud.name("us-east5-a")].body
        parent = "projects/my-project/locations/us-east5-b"
        cloud.scripts["us-east5-b"] = ("ACTIVE",)
        cloud.create(parent, "us-east5-b", {"queuedResourceId": "serve"}, deepcopy(body))
        cloud.queued[cloud.name("us-east5-b")].body["tpu"]["nodeSpec"][0]["parent"] = parent
        assert engine.up(wanted(waitTotalS=1)) == "update"
        assert list(cloud.queued) == [cloud.name("us-east5-b")]

    def leftover(self, cloud: FakeTpu, zone: str, **changes: Any) -> None:
        FakeEngine(cloud).up(wanted(zones=[zone], **changes))

    def test_a_dead_leftover_is_cleared_away_first(self, engine: FakeEngine, cloud: FakeTpu):
        self.leftover(cloud, "us-east5-a")
        cloud.queued[cloud.name("us-east5-a")].state = "SUSPENDED"
        engine.up(wanted())
        assert engine.state
        assert engine.state.outputs["createTime"].endswith("02Z")

    def test_two_leftovers_become_one(self, engine: FakeEngine, cloud: FakeTpu):
        TestMovedZones().leave(cloud, "us-east5-a", "ACTIVE")
        TestMovedZones().leave(cloud, "us-east5-b", "ACTIVE")
        engine.up(wanted())
        assert list(cloud.queued) == [cloud.name("us-east5-a")]

    def test_an_active_leftover_with_other_properties_is_not_given_up_without_permission(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        self.leftover(cloud, "us-east5-a", acceleratorType="v6e-8")
        with pytest.raises(Aborted, match="set `allowReplaceActive` to true"):
            engine.up(wanted())
        assert cloud.made("DELETE") == []
        engine.up(wanted(allowReplaceActive=True))
        (only,) = cloud.queued.values()
        assert only.body["tpu"]["nodeSpec"][0]["node"]["acceleratorType"] == "v6e-4"

    def test_a_leftover_with_older_metadata_is_patched(self, engine: FakeEngine, cloud: FakeTpu):
        self.leftover(cloud, "us-east5-a", metadata={"startup-script": "old", "gone": "1"})
        engine.up(wanted())
        assert cloud.nodes[cloud.node_name("us-east5-a")]["metadata"] == {"startup-script": "#!/bin/sh\n"}


FAULTS = st.lists(
    st.tuples(
        st.sampled_from(["POST", "GET", "DELETE", "GET v2alpha1/projects/my-project/locations/us-east5-b", ""]),
        st.sampled_from(["lost", "dropped", "unsent", "503", "cancel"]),
    ),
    max_size=6,
)
SCRIPTS = st.sampled_from(
    [
        ("ACTIVE",),
        ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"),
        ("CREATING", "FAILED:no capacity"),
        ("WAITING_FOR_RESOURCES", "SUSPENDED"),
        ("CREATING", "PROVISIONING", "FAILED:it broke", "ACTIVE"),
    ]
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    faults=FAULTS,
    first=SCRIPTS,
    second=SCRIPTS,
    refused=st.booleans(),
    delete_looks=st.integers(1, 3),
    ups=st.integers(1, 3),
)
def test_whatever_the_order_of_faults_the_id_is_in_the_state_or_nothing_exists(
    *,
    faults: list[tuple[str, str]],
    first: tuple[str, ...],
    second: tuple[str, ...],
    refused: bool,
    delete_looks: int,
    ups: int,
):
    cloud = FakeTpu(scripts={"us-east5-a": first, "us-east5-b": second}, delete_looks=delete_looks)
    if refused:
        cloud.refusals["us-east5-b"] = GoogleError(403, "PERMISSION_DENIED", "no")
    engine = FakeEngine(cloud)
    queue = list(faults)

    def strike(call: str) -> None:
        if queue and queue[0][0] in call:
            text, fault = queue.pop(0)
            if fault == "cancel":
                engine.provider.cancel_all()
            else:
                cloud.faults.append((text, fault))

    cloud.on_call = strike
    for _ in range(ups):
        with suppress(Aborted):
            engine.up(wanted())
        if cloud.queued:
            assert engine.state, f"{list(cloud.queued)} exists, but the state is empty"
            assert engine.state.id == "projects/my-project/queuedResources/serve"
            assert engine.state.outputs["name"] in cloud.queued
            assert len(cloud.queued) == 1
    cloud.on_call = None
    cloud.faults.clear()
    engine.destroy()
    assert cloud.queued == {}, "what the state names is all there is"


def test_a_resource_without_label_and_creation_time_is_nobodys() -> None:
    """Two missing creation times do not match."""
    operation, times = cast("Any", SimpleNamespace(owns=lambda _: False)), ("", "2026-11-01T00:00:00Z")
    for found, recorded in itertools.product(times, times):
        resource = cast("Any", SimpleNamespace(name="projects/p/x", create_time=found))
        record = cast("Any", SimpleNamespace(observed={"createTime": recorded}))
        own = ResourceOperation.own(operation, resource, record)
        assert (own is not None) == (found == recorded != ""), (found, recorded)
