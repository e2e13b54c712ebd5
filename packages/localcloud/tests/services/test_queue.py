"""Queued resources: the order of states, flex-start's rules, capacity and quota, and laws that hold under any schedule."""

import asyncio
import functools
import inspect
import itertools
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localcloud import services
from localcloud.rest.call import Call, Caller
from localcloud.rest.discovery import load
from localcloud.rest.errors import CloudError
from localcloud.services import tpu
from localcloud.services.projects import ensure_project
from localcloud.tests import idle_cloud
from localcloud.world.cloud import Cloud
from localcloud.world.scenario import Scenario, Stock, Tpu, TpuZone
from localcloud.world.timeline import Clock

ZONE = "projects/local-project/locations/us-east5-a"
QUEUE = f"/tpu/v2alpha1/{ZONE}/queuedResources"
NODES = f"/tpu/v2alpha1/{ZONE}/nodes"
DAY_S = 86_400
DEFAULT = {"network": "default"}


def body_of(node="n", **more):
    node_spec = {
        "parent": ZONE,
        "nodeId": node,
        "node": {
            "acceleratorType": "v6e-4",
            "runtimeVersion": "v2-alpha-tpuv6e",
            "labels": {"a": "b"},
            "metadata": {"k": "v"},
        },
    }
    return {
        "tpu": {"nodeSpec": [node_spec]},
        "provisioningModel": "FLEX_START",
        "runDuration": {"maxRunDuration": "14400s"},
        **more,
    }


class Direct:
    """Calls handlers without HTTP. The clock is frozen except for `advance`."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self.cloud = Cloud(state=folder, project="local-project", clock=Clock(speed=1e-9), scenario=scenario)
        self.cloud.attach(idle_cloud.idle_runtimes)
        ensure_project(self.cloud, "local-project")
        self._handlers = services.handlers(self.cloud)
        self.queue = tpu.Queue(self.cloud)

    def call(self, verb: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        document = load("tpu.v2alpha1")
        method, bound = cast("Any", document.match(verb, f"v2alpha1/{path}"))
        call = Call(
            document=document,
            method=method,
            path=bound,
            query=query,
            body=body or {},
            caller=Caller(email="x", operator=True),
            http=cast("Any", None),
        )
        return cast("Any", self._handlers[method.id](call))

    def advance(self, seconds: float) -> None:
        self.cloud.timeline.advance(seconds)
        self.queue.advance_all()

    def state(self, name="q") -> str:
        return self.call("GET", f"{ZONE}/queuedResources/{name}")["state"]["state"]

    def create(self, name="q", **options):
        return self.call("POST", f"{ZONE}/queuedResources", body_of(**options), queuedResourceId=name)

    def request(self, model, name="q", **options):
        """Request one v6e-4 of a provisioning model."""
        run = {} if model == "FLEX_START" else {"runDuration": {}}
        return self.create(name, node=f"node-{name}", provisioningModel=model, **run, **options)

    def failure(self, name="q"):
        return self.call("GET", f"{ZONE}/queuedResources/{name}")["state"]["failedData"]["error"]


def with_cloud(scenario=None):
    """Call a test with a cloud of its own inside an event loop."""

    def decorate(test):
        @functools.wraps(test)
        def run(self, *arguments, **options):
            async def main():
                with TemporaryDirectory() as folder:
                    direct = Direct(Path(folder), scenario or Scenario())
                    done = test(self, direct, *arguments, **options)
                    if inspect.isawaitable(done):
                        await done
                    for _ in range(5):
                        await asyncio.sleep(0)
                    await direct.cloud.close()

            asyncio.run(main())

        # pytest looks for a fixture for each parameter of the signature, and `cloud` is given here.
        shown = inspect.signature(test)
        run.__signature__ = shown.replace(parameters=[one for one in shown.parameters.values() if one.name != "cloud"])
        return run

    return decorate


def zone(without_quota="fails", **facts):
    flex_start = TpuZone(**{"accelerator_types": ("v6e-1", "v6e-4"), "flex_start": True, **facts})
    return Scenario(tpu=Tpu(zones={"us-east5-a": flex_start}, without_quota=without_quota))


class TestOrder:
    @with_cloud()
    def test_the_states_follow_one_another(self, cloud):
        cloud.create()
        seen = [cloud.state()]
        for seconds in (5, 20, 60, 60):
            cloud.advance(seconds - 1)
            seen.append(cloud.state())
            cloud.advance(1)
            seen.append(cloud.state())
        steps = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
        assert seen == [*(state for step in steps for state in (step, step)), "ACTIVE"]
        node = cloud.call("GET", f"{ZONE}/nodes/n")
        assert (node["state"], node["health"], node["labels"]) == ("READY", "HEALTHY", {"a": "b"})
        assert node["networkEndpoints"][0]["ipAddress"].startswith("10.")

    @pytest.mark.parametrize(
        ("version", "devices"),
        [("v2-alpha-tpuv6e", "open"), ("tpu-ubuntu2204-base", "absent"), ("v2-alpha-tpuv5-lite", "absent")],
    )
    @with_cloud()
    async def test_a_machine_with_the_runtime_version_of_other_generations_has_no_chips(self, cloud, version, devices):
        body = body_of()
        body["tpu"]["nodeSpec"][0]["node"]["runtimeVersion"] = version
        cloud.call("POST", f"{ZONE}/queuedResources", body, queuedResourceId="q")
        cloud.advance(600)
        for _ in range(10):
            await asyncio.sleep(0)
        assert cloud.state() == "ACTIVE"
        (machine,) = cloud.cloud.runtimes.machines.machines.values()
        assert machine.devices == devices

    @with_cloud()
    def test_a_run_ends_at_its_duration_and_the_id_stays_taken(self, cloud):
        cloud.create()
        cloud.advance(200)
        cloud.advance(14_398)
        assert cloud.state() == "ACTIVE"
        cloud.advance(3)
        assert cloud.state() == "SUSPENDING"
        cloud.advance(10)
        shown = cloud.call("GET", f"{ZONE}/queuedResources/q")["state"]
        assert (shown["state"], shown["stateInitiator"]) == ("SUSPENDED", "SERVICE")
        assert cloud.call("GET", f"{ZONE}/nodes") == {}
        with pytest.raises(CloudError, match="already exists"):
            cloud.create()
        cloud.call("DELETE", f"{ZONE}/queuedResources/q")
        cloud.advance(10)
        cloud.create()

    @with_cloud()
    async def test_a_boot_that_fails_after_the_deletion_does_not_bring_the_node_back(self, cloud):
        machines = idle_cloud.FailingMachines()
        runtimes = replace(cloud.cloud.runtimes, machines=machines)
        cloud.cloud.attach(lambda _: runtimes)
        cloud.create()
        cloud.advance(200)
        await machines.begun.wait()
        cloud.call("DELETE", f"{ZONE}/queuedResources/q", force=True)
        cloud.advance(10)
        assert cloud.call("GET", f"{ZONE}/nodes") == {}
        machines.fail.set()
        assert await asyncio.to_thread(machines.stopped.wait, 60)
        assert cloud.call("GET", f"{ZONE}/nodes") == {}

    @with_cloud(zone(capacity={"v6e-4": 0}))
    def test_without_capacity_it_waits_until_its_validity_ends(self, cloud):
        cloud.create(queueingPolicy={"validUntilDuration": "7200s"})
        cloud.advance(7199)
        assert cloud.state() == "WAITING_FOR_RESOURCES"
        cloud.advance(1)
        state = cloud.call("GET", f"{ZONE}/queuedResources/q")["state"]
        assert state["state"] == "FAILED"
        assert "could not be fulfilled by its valid-until time" in state["failedData"]["error"]["message"]

    @with_cloud(zone(capacity={"v6e-4": 1}))
    def test_capacity_that_comes_free_is_given(self, cloud):
        cloud.create("q")
        cloud.create("second", node="n2")
        cloud.advance(1000)
        cloud.advance(60)
        assert (cloud.state("q"), cloud.state("second")) == ("ACTIVE", "WAITING_FOR_RESOURCES")
        cloud.call("DELETE", f"{ZONE}/queuedResources/q", force=True)
        cloud.advance(10)
        assert cloud.state("second") == "PROVISIONING"
        cloud.advance(60)
        assert cloud.state("second") == "ACTIVE"

    @with_cloud(zone(preemptible_quota_chips=4))
    def test_without_quota_it_fails_and_dead_ones_keep_eating_quota(self, cloud):
        cloud.create("q")
        cloud.advance(200)
        cloud.call("DELETE", f"{ZONE}/nodes/n")
        cloud.advance(20)
        assert cloud.state("q") == "SUSPENDED"
        cloud.create("second", node="n2")
        cloud.advance(200)
        error = cloud.call("GET", f"{ZONE}/queuedResources/second")["state"]["failedData"]["error"]
        assert error["code"] == 8
        assert "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI" in error["message"]

    @with_cloud()
    def test_a_network_that_has_gone_meanwhile_fails_it(self, cloud):
        cloud.create()
        cloud.advance(30)
        cloud.cloud.store.delete("compute.networks", "projects/local-project/global/networks/default")
        cloud.advance(100)
        state = cloud.call("GET", f"{ZONE}/queuedResources/q")["state"]
        assert (state["state"], "networks/default' was not found" in state["failedData"]["error"]["message"]) == (
            "FAILED",
            True,
        )
        assert cloud.call("GET", f"{ZONE}/nodes") == {}

    @with_cloud()
    def test_a_preempted_node_suspends_its_queued_resource(self, cloud):
        cloud.create()
        cloud.advance(200)
        assert tpu.preempt(cloud.cloud, f"{ZONE}/nodes/n")
        assert cloud.call("GET", f"{ZONE}/nodes/n")["state"] == "PREEMPTED"
        cloud.advance(10)
        shown = cloud.call("GET", f"{ZONE}/queuedResources/q")["state"]
        assert (shown["state"], shown["stateInitiator"]) == ("SUSPENDED", "SERVICE")


MODELS = ("FLEX_START", "SPOT", "STANDARD")


class TestQuotaOfEachForm:
    @pytest.mark.parametrize("dead", ["FLEX_START", "SPOT"])
    @pytest.mark.parametrize("wanted", MODELS)
    @with_cloud(zone(preemptible_quota_chips=4, quota_chips=4))
    def test_flex_start_and_spot_share_a_quota_that_a_preempted_request_keeps(self, cloud, dead, wanted):
        cloud.request(dead, "dead")
        cloud.advance(200)
        assert tpu.preempt(cloud.cloud, f"{ZONE}/nodes/node-dead")
        cloud.advance(20)
        assert cloud.state("dead") == "SUSPENDED"
        cloud.request(wanted)
        cloud.advance(200)
        if wanted == "STANDARD":
            assert cloud.state() == "ACTIVE"
            return
        assert "'TPUV6EPreemptiblePerProjectPerZoneForTPUAPI' has been exceeded" in cloud.failure()["message"]
        for name in ("dead", "q"):
            cloud.call("DELETE", f"{ZONE}/queuedResources/{name}")
        cloud.advance(20)
        cloud.request(wanted)
        cloud.advance(200)
        assert cloud.state() == "ACTIVE"

    @with_cloud(zone(preemptible_quota_chips=4, quota_chips=0))
    def test_standard_does_not_draw_on_the_preemptible_quota(self, cloud):
        cloud.request("STANDARD")
        cloud.request("SPOT", "spot")
        cloud.advance(200)
        assert "'TPUV6EPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0" in cloud.failure()["message"]
        assert cloud.state("spot") == "ACTIVE"

    @with_cloud(zone(without_quota="waits", preemptible_quota_chips=4))
    def test_without_quota_it_can_wait_without_a_reason_until_there_is_quota(self, cloud):
        cloud.request("SPOT", "first")
        cloud.advance(200)
        cloud.request("SPOT")
        cloud.request("SPOT", "third")
        cloud.advance(2000)
        assert (cloud.state("first"), cloud.state(), cloud.state("third")) == (
            "ACTIVE",
            *["WAITING_FOR_RESOURCES"] * 2,
        )
        assert cloud.call("GET", f"{ZONE}/queuedResources/q")["state"].get("failedData") is None
        cloud.call("DELETE", f"{ZONE}/queuedResources/first", force="true")
        cloud.advance(200)  # deleted
        cloud.advance(200)
        assert sorted([cloud.state(), cloud.state("third")]) == ["ACTIVE", "WAITING_FOR_RESOURCES"]


class TestStock:
    @with_cloud(zone(stock={"FLEX_START": Stock(chips=0), "SPOT": Stock(chips=4)}))
    def test_each_form_has_its_own(self, cloud):
        for model in MODELS:
            cloud.request(model, model)
        cloud.advance(300)
        cloud.advance(300)
        assert [cloud.state(model) for model in MODELS] == ["WAITING_FOR_RESOURCES", "ACTIVE", "ACTIVE"]

    @with_cloud(zone(stock={"SPOT": Stock(after_s=900), "STANDARD": Stock(after_s=900)}))
    def test_it_can_come_later(self, cloud):
        cloud.request("SPOT")
        cloud.request("STANDARD", "late", queueingPolicy={"validUntilDuration": "899s"})
        cloud.advance(899)
        assert cloud.state() == "WAITING_FOR_RESOURCES"
        cloud.advance(1)
        assert (cloud.state(), cloud.state("late")) == ("PROVISIONING", "FAILED")

    @pytest.mark.parametrize("stock", [Stock(chips=0, dry="fails"), Stock(after_s=900, dry="fails")])
    @pytest.mark.parametrize("model", ["SPOT", "STANDARD"])
    @with_cloud()
    def test_a_dry_zone_can_fail_a_request_in_googles_words_instead_of_letting_it_wait(self, cloud, model, stock):
        cloud.cloud.scenario = zone(stock={model: stock})
        cloud.request(model)
        cloud.advance(84)
        assert cloud.state() == "WAITING_FOR_RESOURCES"
        cloud.advance(1)
        error = cloud.failure()
        assert error["code"] == 8
        assert error["message"].startswith('There is no more capacity in the zone "us-east5-a"; you can try in')


class TestLateGrant:
    @pytest.mark.parametrize("model", MODELS)
    @with_cloud(zone(stock=dict.fromkeys(MODELS, Stock(chips=0, lost_deletions=1))))
    def test_a_deletion_that_was_accepted_while_it_waited_can_lose_against_the_grant(self, cloud, model):
        cloud.request(model)
        cloud.advance(26)
        deletion = cloud.call("DELETE", f"{ZONE}/queuedResources/q", force=True)["name"]
        cloud.advance(299)
        assert cloud.state() == "WAITING_FOR_RESOURCES"
        assert "done" not in cloud.call("GET", deletion)
        with pytest.raises(CloudError, match="is being deleted already"):
            cloud.call("DELETE", f"{ZONE}/queuedResources/q", force=True)
        cloud.advance(1)
        assert cloud.state() == "PROVISIONING"
        refusal = "DeleteQueuedResource is not supported when state is PROVISIONING (must be one of"
        error = cloud.call("GET", deletion)["error"]
        assert (error["code"], error["message"].startswith(refusal)) == (9, True)
        cloud.advance(60)
        assert (cloud.state(), cloud.call("GET", f"{ZONE}/nodes/node-q")["state"]) == ("ACTIVE", "READY")
        cloud.call("DELETE", f"{ZONE}/queuedResources/q", force=True)
        cloud.advance(20)
        assert cloud.call("GET", f"{ZONE}/queuedResources") == cloud.call("GET", f"{ZONE}/nodes") == {}

    @with_cloud(zone(stock={"SPOT": Stock(chips=0, lost_deletions=1)}))
    def test_only_so_many_deletions_lose(self, cloud):
        for name in ("first", "second"):
            cloud.request("SPOT", name)
            cloud.advance(26)
            cloud.call("DELETE", f"{ZONE}/queuedResources/{name}", force=True)
        cloud.advance(20)
        with pytest.raises(CloudError) as caught:
            cloud.state("second")
        assert (cloud.state("first"), caught.value.code) == ("WAITING_FOR_RESOURCES", 404)


class TestDeleting:
    @pytest.mark.parametrize(
        ("after_s", "state", "taken"),
        [
            (0, "CREATING", False),
            (5, "ACCEPTED", True),
            (26, "WAITING_FOR_RESOURCES", False),
            (86, "PROVISIONING", False),
            (200, "ACTIVE", False),
        ],
    )
    @with_cloud()
    def test_only_resting_states_are_deleted_without_force(self, cloud, after_s, state, taken):
        cloud.create()
        cloud.advance(after_s)
        assert cloud.state() == state
        if not taken:
            with pytest.raises(CloudError, match=f"DeleteQueuedResource is not supported when state is {state} "):
                cloud.call("DELETE", f"{ZONE}/queuedResources/q")
        operation = cloud.call("DELETE", f"{ZONE}/queuedResources/q", force=not taken)
        assert (cloud.state(), "done" in cloud.call("GET", operation["name"])) == ("DELETING", False)
        cloud.advance(10)
        assert cloud.call("GET", operation["name"])["done"]
        with pytest.raises(CloudError) as caught:
            cloud.state()
        assert caught.value.code == 404
        assert cloud.call("GET", f"{ZONE}/nodes") == {}

    @with_cloud(Scenario(tpu=Tpu(refuses_deletion_in="operation")))
    def test_the_refusal_can_stand_in_the_operation(self, cloud):
        cloud.create()
        cloud.advance(86)
        operation = cloud.call("DELETE", f"{ZONE}/queuedResources/q")
        message = "DeleteQueuedResource is not supported when state is PROVISIONING (must be one of [ACCEPTED SUSPENDED FAILED])"
        assert cloud.call("GET", operation["name"])["error"] == {"code": 9, "message": message}
        assert cloud.state() == "PROVISIONING"


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"runDuration": {}}, "max_run_duration must be specified for the provisioning model FLEX_START"),
            ({"runDuration": {"maxRunDuration": "604801s"}}, "at most 604800s (7 days) for FLEX_START; given 604801s"),
            ({"provisioningModel": "SPOT"}, "run_duration is supported with the provisioning model FLEX_START only"),
            ({"spot": {}}, "The provisioning model FLEX_START cannot be combined with 'spot'"),
            ({"spot": {}, "guaranteed": {}}, "Only one of spot, guaranteed, bestEffort may be given"),
            ({"tpu": {"nodeSpec": []}}, "must hold at least one node"),
            ({"queueingPolicy": {"validUntilDuration": "0s"}}, "valid-until time must lie after"),
        ],
    )
    def test_a_request_that_cannot_work_is_refused(self, client, change, message):
        status, found = client.error("POST", QUEUE, body_of(**change), queuedResourceId="refused")
        assert status == 400
        assert message in found

    @pytest.mark.parametrize(
        ("node", "message"),
        [
            ({"acceleratorType": "v6e-16"}, "the accelerator v6e-16 was not found in zone us-east5-a"),
            ({"runtimeVersion": "v9"}, "Runtime version 'v9' not found in zone us-east5-a"),
            ({"networkConfig": {"network": "nonet"}}, "networks/nonet' was not found"),
            ({"serviceAccount": {"email": "ghost@local-project.iam.gserviceaccount.com"}}, "service account ghost@"),
            ({"bootDiskConfig": {"diskSizeGb": "50"}}, "cannot be smaller than the image size (100 GB); given 50 GB"),
            ({"acceleratorType": None, "acceleratorConfig": {"type": "V6E"}}, "not found in zone"),
            ({"networkConfig": DEFAULT, "networkConfigs": [DEFAULT]}, "mutually exclusive"),
            ({"networkConfig": {"subnetwork": "none"}}, "subnetworks/none' was not found"),
            ({"labels": {"Bad": "x"}}, "Invalid label key 'Bad'"),
            ({"metadata": {"startup-script": "x" * 262_145}}, "has 262145 bytes; at most 262144"),
        ],
    )
    def test_a_node_that_cannot_be_is_refused(self, client, node, message):
        body = body_of()
        body["tpu"]["nodeSpec"][0]["node"].update(node)
        assert message in client.error("POST", QUEUE, body, queuedResourceId="refused-node")[1]

    def test_flex_start_is_not_everywhere(self, client):
        parent = "projects/local-project/locations/us-central1-b"
        body = body_of()
        body["tpu"]["nodeSpec"][0]["parent"] = parent
        path = f"/tpu/v2alpha1/{parent}/queuedResources"
        operation = client.ok("POST", path, body, queuedResourceId="x")
        message = (
            'FLEX_START provisioning model is not supported for accelerator type "v6e-4" in location "us-central1-b"'
        )
        assert client.ok("GET", f"/tpu/v2alpha1/{operation['name']}")["error"] == {"code": 3, "message": message}
        assert client.call("GET", f"{path}/x")[0] == 404

    def test_flex_start_is_offered_where_it_was_seen(self, own_client):
        for zone in ("southamerica-west1-a", "europe-west4-a", "asia-northeast1-b"):
            parent = f"projects/local-project/locations/{zone}"
            body = body_of()
            body["tpu"]["nodeSpec"][0]["parent"] = parent
            path = f"/tpu/v2alpha1/{parent}/queuedResources"
            own_client.ok("POST", path, body, queuedResourceId="seen")
            assert own_client.ok("GET", f"{path}/seen")["state"]["state"] != "FAILED"

    def test_a_repeated_request_id_gives_the_same_operation(self, client):
        body = body_of("repeated")
        asked = {"queuedResourceId": "repeated", "requestId": "11111111-1111-4111-8111-111111111111"}
        first = client.ok("POST", QUEUE, body, **asked)
        assert client.ok("POST", QUEUE, body, **asked)["name"] == first["name"]
        other = {**body, "runDuration": {"maxRunDuration": "60s"}}
        assert client.error("POST", QUEUE, other, **asked)[0] == 409
        client.ok("DELETE", f"{QUEUE}/repeated", force="true")


class TestNodes:
    @pytest.fixture
    def node(self, own_client):
        own_client.ok("POST", QUEUE, body_of("nodes"), queuedResourceId="nodes")
        own_client.ok("GET", f"{QUEUE}/nodes")
        return f"{NODES}/nodes"

    def test_metadata_and_labels_change_in_place(self, own_client, own_cloud, node):
        before = own_client.ok("GET", node)
        own_client.ok("PATCH", node, {"metadata": {"gemma": "2"}, "labels": {"c": "d"}}, updateMask="metadata,labels")
        after = own_client.ok("GET", node)
        assert (after["metadata"], after["labels"], after["createTime"]) == (
            {"gemma": "2"},
            {"c": "d"},
            before["createTime"],
        )
        assert own_cloud.cloud.runtimes.machines.metadata[before["name"]] == {"gemma": "2"}

    @pytest.mark.parametrize("mask", ["acceleratorType", "networkConfig.network", "metadata,runtimeVersion"])
    def test_what_cannot_change_is_refused_by_the_mask(self, own_client, node, mask):
        assert "cannot be updated" in own_client.error("PATCH", node, {}, updateMask=mask)[1]

    def test_guest_attributes_are_read_by_path(self, own_client, own_cloud, node):
        name = own_client.ok("GET", node)["name"]
        own_cloud.cloud.runtimes.machines.attributes[name] = {"gemma-serving": {"phase": "ready"}, "other": {"x": "y"}}
        assert (
            "enable-guest-attributes=TRUE"
            in own_client.error("POST", f"{node}:getGuestAttributes", {"queryPath": "gemma-serving/"})[1]
        )
        own_client.ok("PATCH", node, {"metadata": {"enable-guest-attributes": "TRUE"}}, updateMask="metadata")
        answer = own_client.ok("POST", f"{node}:getGuestAttributes", {"queryPath": "gemma-serving/"})
        assert answer["guestAttributes"][0]["queryValue"]["items"] == [
            {"namespace": "gemma-serving", "key": "phase", "value": "ready"}
        ]

    def test_a_network_in_use_is_not_deleted(self, own_client, node):
        own_client.ok("GET", node)
        status, message = own_client.error(
            "DELETE", "/compute/compute/beta/projects/local-project/global/networks/default"
        )
        assert status == 400
        assert "already being used by" in message


NAMES = st.sampled_from(["a", "b", "c"])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES),
        st.tuples(st.just("delete"), NAMES),
        st.tuples(st.just("force"), NAMES),
        st.tuples(st.just("delete node"), NAMES),
        st.tuples(st.just("preempt"), NAMES),
        st.tuples(st.just("advance"), st.sampled_from([1, 7, 30, 65, 300, 14_500])),
    ),
    max_size=25,
)
NEXT = {
    "CREATING": {"ACCEPTED", "DELETING"},
    "ACCEPTED": {"WAITING_FOR_RESOURCES", "FAILED", "DELETING"},
    "WAITING_FOR_RESOURCES": {"PROVISIONING", "FAILED", "DELETING"},
    "PROVISIONING": {"ACTIVE", "DELETING"},
    "ACTIVE": {"SUSPENDING", "DELETING"},
    "SUSPENDING": {"SUSPENDED", "DELETING"},
    "SUSPENDED": {"DELETING"},
    "FAILED": {"DELETING"},
    "DELETING": set(),
}


class Watch:
    """Follows a schedule and records each state that is stored."""

    def __init__(self, cloud: Direct) -> None:
        self.cloud = cloud
        self.history: dict[str, list[str]] = {}
        put = cloud.cloud.store.put

        def watched(kind, name, document):
            if kind == tpu.QUEUED:
                states = self.history.setdefault(document["createTime"] + name, [])
                state = document["_machine"]["state"]
                if not states or states[-1] != state:
                    states.append(state)
            return put(kind, name, document)

        cloud.cloud.store.put = watched

    def act(self, action: str, value: Any) -> None:
        try:
            match action:
                case "create":
                    self.cloud.create(value, node=f"node-{value}")
                case "delete":
                    self.cloud.call("DELETE", f"{ZONE}/queuedResources/{value}")
                case "force":
                    self.cloud.call("DELETE", f"{ZONE}/queuedResources/{value}", force=True)
                case "delete node":
                    self.cloud.call("DELETE", f"{ZONE}/nodes/node-{value}")
                case "preempt":
                    tpu.preempt(self.cloud.cloud, f"{ZONE}/nodes/node-{value}")
                case _:
                    self.cloud.advance(value)
        except CloudError as error:
            assert error.code in {400, 404, 409}, error


class TestLaws:
    @settings(deadline=None)
    @given(ACTIONS)
    @with_cloud(zone(capacity={"v6e-4": 2}, preemptible_quota_chips=8))
    async def test_states_change_along_the_documented_edges_and_a_forced_delete_and_time_leave_nothing(
        self, cloud, actions
    ):
        """A node has its queued resource."""
        watch = Watch(cloud)
        for action, value in actions:
            watch.act(action, value)
            await asyncio.sleep(0)
            queued = dict(cloud.cloud.store.under(tpu.QUEUED))
            nodes = dict(cloud.cloud.store.under(tpu.NODES))
            for node in nodes.values():
                owner = queued[node["queuedResource"]]
                assert owner["_machine"]["state"] in {"PROVISIONING", "ACTIVE", "SUSPENDING", "DELETING"}
            for name, document in queued.items():
                if document["_machine"]["state"] == "ACTIVE":
                    node = nodes[f"{ZONE}/nodes/node-{name.rpartition('/')[2]}"]
                    assert node["state"] == "READY"
            assert len(nodes) <= 2
        for name in ("a", "b", "c"):
            watch.act("force", name)
        cloud.advance(DAY_S)
        for _ in range(10):
            await asyncio.sleep(0)
        for states in watch.history.values():
            assert states[0] == "CREATING"
            for before, after in itertools.pairwise(states):
                assert after in NEXT[before], states
        assert cloud.cloud.store.under(tpu.QUEUED) == cloud.cloud.store.under(tpu.NODES) == []
        assert cloud.cloud.runtimes.machines.machines == {}
