"""Instances with TPUs of Compute Engine, through Google's own client: states, waits, quotas, refusals, changes with fingerprints."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import requests
from google.oauth2.credentials import Credentials
from googleapiclient import discovery
from googleapiclient.errors import HttpError

from localcloud.services import tpu_stock
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import IMAGES
from localcloud.world.cloud import Runtimes
from localcloud.world.scenario import ComputeTpu, Scenario, Stock, Tpu, TpuZone

PROJECT, ZONE = "local-project", "us-east5-a"
IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
WAIT_S = 30.0
"""Real seconds for events that take a fraction of one."""


def body_of(name="serve", *, wait_s=7200, zone=ZONE, **more) -> dict[str, Any]:
    return {
        "name": name,
        "machineType": f"projects/{PROJECT}/zones/{zone}/machineTypes/ct6e-standard-4t",
        "labels": {"a": "b"},
        "metadata": {"items": [{"key": "enable-guest-attributes", "value": "TRUE"}, {"key": "k", "value": "v"}]},
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE, "diskSizeGb": "100"}}],
        "networkInterfaces": [{"network": f"projects/{PROJECT}/global/networks/default"}],
        "serviceAccounts": [
            {"email": more.pop("account", ""), "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
        ],
        "scheduling": {
            "provisioningModel": "FLEX_START",
            "maxRunDuration": {"seconds": "14400"},
            "instanceTerminationAction": "DELETE",
            "onHostMaintenance": "TERMINATE",
            "automaticRestart": False,
        },
        **({"params": {"requestValidForDuration": {"seconds": str(wait_s)}}} if wait_s else {}),
        **more,
    }


class Google:
    """Google's client for one zone."""

    def __init__(self, cloud: idle_cloud.Started) -> None:
        self.cloud = cloud
        self.api: Any = discovery.build(
            "compute",
            "v1",
            credentials=Credentials(token=cloud.token),
            client_options={"api_endpoint": f"{cloud.base_url}/compute/compute/v1/"},
            static_discovery=True,
        )
        self.account = self.api.projects().get(project=PROJECT).execute()["defaultServiceAccount"]

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def call(name: str = "", *, zone: str = ZONE, **more: Any) -> Any:
            named = {"instance": name} if name else {}
            return getattr(self.api.instances(), verb)(project=PROJECT, zone=zone, **named, **more).execute()

        return call

    def make(self, name: str = "serve", *, zone: str = ZONE, **more: Any) -> Any:
        return self.insert(zone=zone, body=body_of(name, zone=zone, account=self.account, **more))

    def status(self, name: str = "serve") -> str:
        try:
            return str(self.get(name)["status"])
        except HttpError as error:
            assert error.status_code == 404
            return "gone"

    def until(self, wanted: str, name: str = "serve") -> None:
        end = time.monotonic() + WAIT_S
        while (now := self.status(name)) != wanted:
            assert time.monotonic() < end, now
            time.sleep(0.01)  # a client polls the status as Google offers it

    def done(self, operation: Any) -> Any:
        zone = operation["zone"].rpartition("/")[2]
        end = time.monotonic() + WAIT_S
        while operation["status"] != "DONE":
            assert time.monotonic() < end
            operation = (
                self.api.zoneOperations().wait(project=PROJECT, zone=zone, operation=operation["name"]).execute()
            )
        return operation

    def preempt(self, name: str) -> None:
        answer = requests.post(
            f"{self.cloud.base_url}/admin/preempt",
            json={"node": f"projects/{PROJECT}/zones/{ZONE}/instances/{name}"},
            headers={"Authorization": f"Bearer {self.cloud.token}"},
            timeout=30,
        )
        assert answer.ok, answer.text

    def refused(self, status: int, text: str, work: Callable[[], Any]) -> None:
        with pytest.raises(HttpError) as caught:
            work()
        assert caught.value.status_code == status
        assert text in caught.value.reason


@contextmanager
def opened(
    speed: float = 600,
    *,
    zone: TpuZone | None = None,
    machines: idle_cloud.IdleMachines | None = None,
    **compute: Any,
) -> Iterator[Google]:
    facts = zone or TpuZone(accelerator_types=("v6e-1", "v6e-4", "v6e-8"), flex_start=True)
    other = TpuZone(accelerator_types=("v6e-4",))
    tpu = Tpu(zones={ZONE: facts, "us-central1-b": other}, compute=ComputeTpu(**compute))
    runtimes = Runtimes(
        revisions=idle_cloud.IdleRevisions(),
        fronts=idle_cloud.IdleFronts(),
        machines=machines or idle_cloud.IdleMachines(),
    )
    with idle_cloud.start(
        scenario=Scenario(images=IMAGES, tpu=tpu), speed=speed, runtimes=lambda _cloud: runtimes
    ) as cloud:
        yield Google(cloud)


@pytest.fixture(scope="module")
def google() -> Iterator[Google]:
    with opened() as found:
        yield found


class TestLife:
    def test_a_request_waits_then_runs_with_an_end_and_its_operation_ends_with_it(self, google):
        operation = google.make("life")
        assert operation["operationType"] == "insert"
        assert google.status("life") in {"PENDING", "PROVISIONING", "STAGING", "RUNNING"}
        ended = google.done(operation)
        assert "error" not in ended
        found = google.get("life")
        assert found["status"] == "RUNNING"
        assert found["resourceStatus"]["scheduling"]["terminationTimestamp"] > found["creationTimestamp"]
        assert "params" not in found
        assert "sourceImage" not in str(found["disks"])
        assert found["machineType"].endswith("/machineTypes/ct6e-standard-4t")
        assert google.done(google.delete("life"))["status"] == "DONE"
        assert google.status("life") == "gone"

    def test_the_same_request_id_makes_one_instance(self, google):
        token = "0d8a2f8c-0000-4000-8000-000000000001"
        body = body_of("twice", account=google.account)
        first = google.insert(body=body, requestId=token)
        assert google.insert(body=body, requestId=token)["name"] == first["name"]
        google.refused(409, "already exists", lambda: google.insert(body=body))
        google.done(google.delete("twice"))

    def test_a_stop_ends_when_the_instance_is_deleted_meanwhile(self):
        with opened() as google:
            google.done(google.make())
            scenario = google.cloud.cloud.scenario
            slow = scenario.tpu.durations_s.model_copy(update={"deleting": 1e9})
            tpu = scenario.tpu.model_copy(update={"durations_s": slow})
            google.cloud.cloud.scenario = scenario.model_copy(update={"tpu": tpu})
            stop = google.stop("serve")
            deletion = google.delete("serve")
            google.cloud.cloud.scenario = scenario
            assert google.done(deletion)["status"] == "DONE"
            assert google.done(stop)["status"] == "DONE"

    def test_a_boot_that_fails_after_the_deletion_does_not_bring_the_instance_back(self):
        machines = idle_cloud.FailingMachines()
        with opened(machines=machines) as google:
            google.make()
            google.until("RUNNING")
            google.done(google.delete("serve"))
            google.cloud.loop.call_soon_threadsafe(machines.fail.set)
            assert machines.stopped.wait(WAIT_S)
            assert google.status() == "gone"

    def test_the_end_of_the_run_deletes_or_stops_it(self):
        with opened() as google:
            google.cloud.cloud.scenario = google.cloud.cloud.scenario.model_copy(
                update={"tpu": google.cloud.cloud.scenario.tpu.model_copy(update={"accelerate_run_duration": True})}
            )
            short = {**body_of()["scheduling"], "maxRunDuration": {"seconds": "600"}}
            google.done(google.make("deleted", scheduling=short))
            google.done(google.make("kept", scheduling={**short, "instanceTerminationAction": "STOP"}))
            google.until("gone", "deleted")
            google.until("TERMINATED", "kept")

    def test_a_preempted_spot_instance_is_deleted(self, google):
        spot = {**body_of()["scheduling"], "provisioningModel": "SPOT"}
        spot.pop("maxRunDuration")
        google.done(google.make("spot", wait_s=0, scheduling=spot))
        google.preempt("spot")
        google.until("gone", "spot")


class TestCapacityAndQuota:
    def test_without_quota_it_is_pending_too_and_says_so_at_the_end_only(self):
        with opened(speed=1, preemptible_quota_overrides={"us-east5": 0}) as google:
            operation = google.make(wait_s=3600)
            google.cloud.cloud.timeline.advance(3000)
            assert google.status() == "PENDING"
            google.cloud.cloud.timeline.advance(600)
            (error,) = google.done(operation)["error"]["errors"]
            assert (error["code"], "Limit: 0.0 in region us-east5" in error["message"]) == ("QUOTA_EXCEEDED", True)

    def test_the_quota_of_all_regions_counts_each_of_its_chips(self):
        with opened(all_regions_quota_chips=4) as google:
            google.done(google.make("first"))
            google.refused(
                403, "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 4.0 globally.", lambda: google.make("second", wait_s=0)
            )
            quotas = google.api.projects().get(project=PROJECT).execute()["quotas"]
            assert [one for one in quotas if one["metric"] == "GPUS_ALL_REGIONS"] == [
                {"metric": "GPUS_ALL_REGIONS", "limit": 4, "usage": 4}
            ]

    def test_flex_start_finds_no_stock_where_the_other_api_refuses_it(self):
        with opened(speed=1) as google:
            google.make(zone="us-central1-b")
            google.cloud.cloud.timeline.advance(3600)
            assert google.get("serve", zone="us-central1-b")["status"] == "PENDING"

    def test_the_family_quota_helps_where_the_preemptible_one_is_used_up(self):
        with opened(preemptible_quota_overrides={"us-east5": 0}, family_quota_chips=4) as google:
            google.done(google.make())
            assert google.status() == "RUNNING"

    def test_without_a_wait_quota_and_stock_are_answered_at_once(self):
        none = TpuZone(accelerator_types=("v6e-4",), flex_start=True, capacity={"v6e-4": 0})
        with opened(zone=none) as google:
            (error,) = google.done(google.make(wait_s=30))["error"]["errors"]
            assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
            google.until("gone")
            standard = {"onHostMaintenance": "TERMINATE"}
            google.refused(403, "TPUS_PER_TPU_FAMILY", lambda: google.make(wait_s=0, scheduling=standard))


def scheduling_of(model: str, **more: Any) -> dict[str, Any]:
    """The schedule of a model without a wait."""
    if model == "STANDARD":
        return {"onHostMaintenance": "TERMINATE"}
    base = {key: item for key, item in body_of()["scheduling"].items() if key != "maxRunDuration"}
    return {**base, "provisioningModel": "SPOT", **more}


def zone_with(**stock: Stock) -> TpuZone:
    return TpuZone(accelerator_types=("v6e-4",), flex_start=True, stock=stock)


class TestStock:
    @pytest.mark.parametrize("model", ["SPOT", "STANDARD"])
    @pytest.mark.parametrize("stock", [Stock(chips=0), Stock(after_s=60)])
    def test_an_insertion_that_does_not_wait_fails_within_seconds_and_its_instance_stops_first(self, model, stock):
        with opened(zone=zone_with(**{model: stock}), speed=1e-9, family_quota_chips=4) as google:
            timeline = google.cloud.cloud.timeline
            operation = google.make(wait_s=0, scheduling=scheduling_of(model))
            timeline.advance(4)
            assert (operation["status"], google.status()) == ("RUNNING", "PROVISIONING")
            timeline.advance(1)
            google.until("STOPPING")
            (error,) = google.done(operation)["error"]["errors"]
            assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
            assert f"zones/{ZONE}' does not have enough resources available to fulfill the request" in error["message"]
            timeline.advance(10)
            google.until("gone")

    def test_flex_start_is_pending_without_a_reason_while_another_form_has_capacity(self):
        with opened(zone=zone_with(FLEX_START=Stock(chips=0)), speed=60, family_quota_chips=4) as google:
            operation = google.make("flex")
            google.done(google.make("spot", wait_s=0, scheduling=scheduling_of("SPOT")))
            found = google.get("flex")
            assert (found["status"], found.get("statusMessage"), operation.get("error")) == ("PENDING", None, None)

    def test_both_apis_use_the_same_chips_of_a_form(self):
        with opened(zone=zone_with(SPOT=Stock(chips=4)), speed=60, family_quota_chips=4) as google:
            google.done(google.make("first", wait_s=0, scheduling=scheduling_of("SPOT")))
            cloud = google.cloud.cloud
            assert not tpu_stock.has_capacity(cloud, ZONE, "SPOT", ["v6e-1"], waits=True)
            assert tpu_stock.has_capacity(cloud, ZONE, "STANDARD", ["v6e-1"], waits=True)

    def test_stock_of_flex_start_can_come_later(self):
        with opened(zone=zone_with(FLEX_START=Stock(after_s=900)), speed=1e-9) as google:
            operation = google.make()
            google.cloud.cloud.timeline.advance(899)
            assert google.status() == "PENDING"
            google.cloud.cloud.timeline.advance(1)
            assert google.status() == "PROVISIONING"
            google.cloud.cloud.timeline.advance(60)
            assert "error" not in google.done(operation)

    def test_an_instance_that_was_given_up_can_appear_afterwards(self):
        with opened(zone=zone_with(FLEX_START=Stock(chips=0, lost_deletions=1)), speed=1e-9) as google:
            google.make()
            deletion = google.delete("serve")
            assert "error" not in google.done(deletion)
            google.cloud.cloud.timeline.advance(299)
            assert google.status() == "gone"
            assert "items" not in google.list()
            google.refused(409, "already exists", google.make)
            google.cloud.cloud.timeline.advance(1)
            assert google.status() == "PROVISIONING"
            google.cloud.cloud.timeline.advance(60)
            google.until("RUNNING")
            deletion = google.delete("serve")
            google.cloud.cloud.timeline.advance(10)
            google.done(deletion)
            assert google.status() == "gone"


class TestPreemption:
    def test_spot_without_an_action_is_stopped_and_keeps_its_quota_until_it_is_deleted(self):
        with opened(preemptible_quota_overrides={"us-east5": 4}) as google:
            kept = scheduling_of("SPOT")
            kept.pop("instanceTerminationAction")
            google.done(google.make("spot", wait_s=0, scheduling=kept))
            google.preempt("spot")
            google.until("TERMINATED", "spot")
            wanted = scheduling_of("SPOT")
            google.refused(403, "PREEMPTIBLE_TPU_V6E", lambda: google.make("next", wait_s=0, scheduling=wanted))
            google.done(google.delete("spot"))
            google.done(google.make("next", wait_s=0, scheduling=wanted))


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "status", "text"),
        [
            ({"machineType": f"projects/{PROJECT}/zones/{ZONE}/machineTypes/ct5lp-hightpu-4t"}, 400, "not allowed"),
            ({"machineType": f"projects/{PROJECT}/zones/{ZONE}/machineTypes/ct6e-standard-16t"}, 400, "does not exist"),
            ({"machineType": "projects/p/zones/us-east5-b/machineTypes/ct6e-standard-4t"}, 400, "another zone"),
            ({"name": "Serve"}, 400, "resource.name"),
            ({"disks": []}, 400, "Boot disk"),
            ({"wait_s": 7201}, 400, "at most 7200"),
            ({"networkInterfaces": []}, 400, "network interface"),
            ({"metadata": {"items": [{"key": "a b", "value": ""}]}}, 400, "metadata.items[0].key"),
            ({"labels": {"A": "b"}}, 400, "label"),
        ],
    )
    def test_a_request_that_google_refuses(self, google, change, status, text):
        google.refused(status, text, lambda: google.make(**{"name": "refused", **change}))

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"onHostMaintenance": "MIGRATE"}, "live migration"),
            ({"automaticRestart": True}, "restart"),
            ({"maxRunDuration": {"seconds": "599"}}, "from 600 to 604800"),
            ({"maxRunDuration": {"seconds": "604801"}}, "from 600 to 604800"),
            ({"instanceTerminationAction": None}, "DELETE or STOP"),
        ],
    )
    def test_a_schedule_that_flex_start_refuses(self, google, change, text):
        scheduling = {key: item for key, item in {**body_of()["scheduling"], **change}.items() if item is not None}
        google.refused(400, text, lambda: google.make("refused", scheduling=scheduling))

    def test_an_unknown_image_is_not_found(self, google):
        disks = [{"boot": True, "initializeParams": {"sourceImage": IMAGE + "-old"}}]
        google.refused(404, "was not found", lambda: google.make("refused", disks=disks))

    def test_an_unknown_zone(self, google):
        google.refused(400, "Unknown zone", lambda: google.get("x", zone="us-east5-z"))


class TestChanges:
    def test_a_change_needs_the_current_fingerprint(self, google):
        google.done(google.make("changed"))
        found = google.get("changed")
        items = [*found["metadata"]["items"], {"key": "new", "value": "1"}]
        google.refused(412, "fingerprint", lambda: google.setMetadata("changed", body={"items": items}))
        current = {"items": items, "fingerprint": found["metadata"]["fingerprint"]}
        google.done(google.setMetadata("changed", body=current))
        google.refused(412, "fingerprint", lambda: google.setMetadata("changed", body=current))
        labels = {"labels": {"c": "d"}, "labelFingerprint": found["labelFingerprint"]}
        google.done(google.setLabels("changed", body=labels))
        google.refused(412, "fingerprint", lambda: google.setLabels("changed", body=labels))
        google.done(google.setTags("changed", body={"items": ["t"], "fingerprint": found["tags"]["fingerprint"]}))
        after = google.get("changed")
        assert {item["key"] for item in after["metadata"]["items"]} == {"enable-guest-attributes", "k", "new"}
        assert (after["labels"], after["tags"]["items"]) == ({"c": "d"}, ["t"])
        google.done(google.delete("changed"))

    def test_an_external_address_comes_and_goes(self, google):
        google.done(google.make("address"))
        nic = {"networkInterface": "nic0"}
        google.done(google.addAccessConfig("address", body={"type": "ONE_TO_ONE_NAT", "name": "external-nat"}, **nic))
        (config,) = google.get("address")["networkInterfaces"][0]["accessConfigs"]
        assert config["natIP"].startswith("203.0.113.")
        google.done(google.deleteAccessConfig("address", accessConfig="external-nat", **nic))
        assert "accessConfigs" not in google.get("address")["networkInterfaces"][0]
        google.done(google.delete("address"))

    def test_guest_attributes_are_not_found_until_the_machine_publishes(self, google):
        google.done(google.make("guest"))
        google.refused(404, "Guest Attribute", lambda: google.getGuestAttributes("guest", queryPath="gemma-serving/"))
        machines: Any = google.cloud.cloud.runtimes.machines
        name = f"projects/{PROJECT}/zones/{ZONE}/instances/guest"
        machines.attributes[name] = {"gemma-serving": {"phase": "ready"}}
        found = google.getGuestAttributes("guest", queryPath="gemma-serving/")
        assert found["queryValue"]["items"] == [{"namespace": "gemma-serving", "key": "phase", "value": "ready"}]
        google.done(google.delete("guest"))


def test_a_network_in_use_is_not_deleted(google):
    google.done(google.make("user"))
    with pytest.raises(HttpError) as caught:
        google.api.networks().delete(project=PROJECT, network="default").execute()
    assert "already being used by" in caught.value.reason
    google.done(google.delete("user"))
