"""The Compute Engine backend, over HTTP against the local cloud: the same guarantees as with queued resources."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
import requests

from gcp_tpu_provider.compute_request import REQUEST_KEY
from gcp_tpu_provider.errors import NoAnswerError
from gcp_tpu_provider.http_transport import HttpTpuTransport
from gcp_tpu_provider.tests.harness import FAST, Aborted, FakeEngine, wanted
from gcp_tpu_provider.transport import COMPUTE_OVERRIDE, USAGE_OVERRIDE
from localcloud.tests import idle_cloud
from localcloud.world.cloud import Cloud, Runtimes
from localcloud.world.runtime import MachineSpec
from localcloud.world.scenario import ComputeTpu, OperationDurations, Scenario, Tpu, TpuZone

PROJECT, FIRST, SECOND = "local-project", "us-east5-a", "europe-west4-a"
IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
PACING = replace(FAST, poll_first_s=0.01, poll_most_s=0.05, retry_first_s=0.01, retry_most_s=0.05)
"""Each poll is an HTTP request, and the waits for capacity are of a second: polls of a millisecond would keep a core busy."""
GUEST = {"guestAttributeNamespace": "gemma-serving", "documentMetadataKey": "document", "timeoutS": 60}
V6E = ("v6e-1", "v6e-4", "v6e-8")


class Machines(idle_cloud.IdleMachines):
    """Machines that report `ready` for the document in their metadata at once."""

    def _publish(self, name: str, metadata: Mapping[str, str]) -> None:
        digest = hashlib.sha256(metadata.get("document", "").encode()).hexdigest()
        self.attributes[name] = {"gemma-serving": {"phase": "ready", "document-hash": digest, "detail": ""}}

    async def boot(self, machine: MachineSpec) -> None:
        await super().boot(machine)
        self._publish(machine.name, machine.metadata)

    def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        super().set_metadata(name, metadata)
        self._publish(name, metadata)


def runtimes(_cloud: Cloud) -> Runtimes:
    return Runtimes(revisions=idle_cloud.IdleRevisions(), fronts=idle_cloud.IdleFronts(), machines=Machines())


@dataclass
class EachLoop:
    """A transport that opens a session for each call: the harness runs each operation in an event loop of its own."""

    calls: list[str] = field(default_factory=list[str])
    faults: dict[str, str] = field(default_factory=dict[str, str])
    """Text of a call -> `lost`: it happens, and its answer is lost."""

    async def call(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        what = f"{method} {path}"
        self.calls.append(what)
        transport = HttpTpuTransport(FAST)
        try:
            answer = await transport.call(method, path, **more)
        finally:
            await transport.close()
        for text in [text for text in self.faults if text in what]:
            if self.faults.pop(text) == "lost":
                raise NoAnswerError(what, "connection reset", sent=True)
        return answer

    def now(self) -> datetime:
        """Return this machine's time: the local cloud has no other."""
        return datetime.now(UTC)

    async def close(self) -> None:
        return None

    def made(self, text: str) -> list[str]:
        return [call for call in self.calls if text in call]


@dataclass
class Place:
    """A local cloud and the provider on it."""

    cloud: idle_cloud.Started
    transport: EachLoop = field(default_factory=EachLoop)

    def __post_init__(self) -> None:
        self.engine = FakeEngine(self.transport, PACING, clock=None)  # type: ignore[arg-type] - a transport too

    def have(self, **quotas: Any) -> None:
        """Give the project other quotas of Compute Engine."""
        world = self.cloud.cloud.scenario
        compute = world.tpu.compute.model_copy(update=quotas)
        self.cloud.cloud.scenario = world.model_copy(update={"tpu": world.tpu.model_copy(update={"compute": compute})})

    def instance(self, zone: str = FIRST, name: str = "serve") -> dict[str, Any] | None:
        answer = self.ask("GET", f"zones/{zone}/instances/{name}")
        return answer.json() if answer.ok else None

    def ask(self, method: str, path: str, body: Any = None, **query: str) -> requests.Response:
        url = f"{self.cloud.base_url}/compute/compute/v1/projects/{PROJECT}/{path}"
        headers = {"Authorization": f"Bearer {self.cloud.token}"}
        return requests.request(method, url, json=body, params=query, headers=headers, timeout=30)

    def left(self) -> list[str]:
        items = self.ask("GET", "aggregated/instances").json()["items"]
        return [item["name"] for scope in items.values() for item in scope["instances"]]


def zones(**capacity: int) -> dict[str, TpuZone]:
    """Return both zones; a limit of machines for those that are named, with _ for -."""
    limits = {zone.replace("_", "-"): count for zone, count in capacity.items()}
    return {
        zone: TpuZone(
            accelerator_types=V6E,
            flex_start=True,
            capacity={"v6e-4": limits[zone]} if zone in limits else {},
        )
        for zone in (FIRST, SECOND)
    }


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A cloud whose operations take no time, and whose clock is not accelerated. The parameter changes its zones, or its zones and speed."""
    given = getattr(request, "param", None) or zones()
    found, speed = given if isinstance(given, tuple) else (given, 1.0)
    tpu = Tpu(zones=found, compute=ComputeTpu())
    scenario = Scenario(operations=OperationDurations(instant=True), tpu=tpu)
    with idle_cloud.start(scenario=scenario, runtimes=runtimes, speed=speed) as cloud:
        monkeypatch.setenv(COMPUTE_OVERRIDE, f"{cloud.base_url}/compute/compute/v1/")
        monkeypatch.setenv(USAGE_OVERRIDE, f"{cloud.base_url}/serviceusage/")
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", cloud.token)
        yield Place(cloud)


def on_compute(**changes: Any) -> dict[str, Any]:
    given = {
        "project": PROJECT,
        "api": "compute-engine",
        "zones": [FIRST, SECOND],
        "runtimeVersion": IMAGE,
        "serviceAccount": {"email": f"{changes.pop('number', '1')}-compute@developer.gserviceaccount.com"},
    }
    return wanted(**{**given, **changes})


def serving(document: str = "one", **changes: Any) -> dict[str, Any]:
    metadata = {"enable-guest-attributes": "TRUE", "document": document}
    return on_compute(**{"metadata": metadata, "ready": GUEST, **changes})


class TestLife:
    def test_up_again_changes_in_place_refresh_and_destroy(self, place: Place):
        engine = place.engine
        assert engine.up(serving()) == "create"
        assert engine.state
        outputs = engine.state.outputs
        assert engine.state.id == f"projects/{PROJECT}/queuedResources/serve"
        assert outputs["name"] == outputs["nodeName"] == f"projects/{PROJECT}/zones/{FIRST}/instances/serve"
        assert (outputs["state"], outputs["nodeState"], outputs["phase"]) == ("ACTIVE", "READY", "ready")
        assert outputs["deadline"]
        assert engine.preview(serving()) == "same"
        made = place.instance()
        assert made
        assert made["labels"]["gemma-serving-stack"] == "dev"
        assert (
            engine.up(serving("two", tags=["serve", "more"], labels={"managed-by": "gemma-serving", "new": "x"}))
            == "update"
        )
        changed = place.instance()
        assert changed
        assert changed["id"] == made["id"]
        assert changed["tags"]["items"] == ["serve", "more"]
        assert set(changed["labels"]) == {"managed-by", "new", "gemma-serving-urn"}
        metadata = {item["key"]: item["value"] for item in changed["metadata"]["items"]}
        assert metadata["document"] == "two"
        assert json.loads(metadata[REQUEST_KEY])["image"] == IMAGE
        engine.refresh()
        assert (
            engine.preview(serving("two", tags=["serve", "more"], labels={"managed-by": "gemma-serving", "new": "x"}))
            == "same"
        )
        engine.destroy()
        assert place.left() == []

    def test_a_policy_that_hides_the_report_is_said_and_a_policy_against_metadata_keys_refuses(self, place: Place):
        def enforce(constraint: str, *, enforced: bool) -> None:
            url = f"{place.cloud.base_url}/cloudresourcemanager/v1/projects/{PROJECT}:setOrgPolicy"
            policy = {"constraint": f"constraints/{constraint}", "booleanPolicy": {"enforced": enforced}}
            headers = {"Authorization": f"Bearer {place.cloud.token}"}
            assert requests.post(url, json={"policy": policy}, headers=headers, timeout=30).ok

        enforce("compute.disableGuestAttributesAccess", enforced=True)
        with pytest.raises(Aborted, match=r"disable-enforce compute\.disableGuestAttributesAccess"):
            place.engine.up(serving())
        enforce("compute.disableGuestAttributesAccess", enforced=False)
        assert place.engine.up(serving()) == "update"
        enforce("compute.requireOsLogin", enforced=True)
        metadata = {"enable-guest-attributes": "TRUE", "document": "one", "enable-oslogin": "FALSE"}
        with pytest.raises(Aborted, match=r"requireOsLogin of project local-project forbids SSH keys in metadata"):
            place.engine.up(serving(metadata=metadata))
        assert place.engine.up(serving(metadata={**metadata, "enable-oslogin": "TRUE"})) == "update"

    def test_an_instance_that_is_gone_is_made_again_after_a_refresh(self, place: Place):
        place.engine.up(serving())
        assert place.ask("DELETE", f"zones/{FIRST}/instances/serve").ok
        with pytest.raises(Aborted, match=r"was ACTIVE and is (gone|SUSPENDING). Run `pulumi up --refresh`"):
            place.engine.up(serving())
        place.engine.refresh()
        assert place.engine.state is None
        assert place.engine.up(serving()) == "create"
        assert place.left() == ["serve"]

    def test_a_stopped_instance_is_replaced(self, place: Place):
        place.engine.up(serving())
        assert place.ask("POST", f"zones/{FIRST}/instances/serve/stop").ok
        with pytest.raises(Aborted, match=r"was ACTIVE and is SUSPEND(ING|ED). Run `pulumi up --refresh`"):
            place.engine.up(serving())
        place.engine.refresh()
        assert place.engine.state
        assert place.engine.state.outputs["state"] in {"SUSPENDING", "SUSPENDED"}
        assert place.engine.up(serving()) == "replace"
        assert place.engine.state.outputs["state"] == "ACTIVE"

    def test_an_import_by_full_name(self, place: Place):
        where = {"network": f"projects/{PROJECT}/global/networks/default", "subnetwork": "default"}
        place.engine.up(serving(**where))
        place.engine.state = None
        found = place.engine.import_(f"projects/{PROJECT}/zones/{FIRST}/instances/serve")
        assert found
        assert found.inputs["api"] == "compute-engine"
        assert (found.inputs["acceleratorType"], found.inputs["runtimeVersion"]) == ("v6e-4", IMAGE)
        assert place.engine.preview(serving(**where)) in {"same", "update"}

    def test_the_other_backend_is_a_replacement(self, place: Place):
        place.engine.up(serving(allowReplaceActive=True))
        other = serving(allowReplaceActive=True, api="cloud-tpu", runtimeVersion="v2-alpha-tpuv6e")
        assert place.engine.preview(other) == "replace"

    def test_an_address_comes_and_goes_in_place(self, place: Place):
        place.engine.up(serving())
        place.engine.up(serving(enableExternalIps=True))
        assert place.engine.state
        assert place.engine.state.outputs["externalIps"]
        place.engine.up(serving())
        assert "externalIps" not in place.engine.state.outputs or not place.engine.state.outputs["externalIps"]
        assert place.engine.ops == ["create", "update", "update"]


class TestCapacity:
    @pytest.mark.parametrize("place", [zones(us_east5_a=0)], indirect=True)
    def test_the_next_zone_is_tried_and_nothing_is_left_in_the_first(self, place: Place):
        place.engine.up(serving(waitPerZoneS=1))
        assert place.engine.state
        assert place.engine.state.outputs["zone"] == SECOND
        assert place.left() == ["serve"]

    @pytest.mark.parametrize("place", [zones(us_east5_a=0, europe_west4_a=0)], indirect=True)
    def test_without_capacity_a_table_says_so_and_nothing_is_left(self, place: Place):
        with pytest.raises(Aborted) as caught:
            place.engine.up(serving(waitPerZoneS=1))
        assert "All capacity requests were deleted" in caught.value.message
        assert caught.value.message.count("the wait for this zone timed out") == 2
        assert place.left() == []

    @pytest.mark.parametrize("place", [(zones(us_east5_a=0, europe_west4_a=0), 36_000.0)], indirect=True)
    def test_a_request_that_google_ends_is_refused_in_googles_words(self, place: Place):
        with pytest.raises(Aborted) as caught:
            place.engine.up(serving())
        assert caught.value.message.count("(ZONE_RESOURCE_POOL_EXHAUSTED)") == 2
        assert place.left() == []

    @pytest.mark.parametrize(
        ("quotas", "served", "posts"),
        [
            ({"preemptible_quota_overrides": {"us-east5": 0}}, SECOND, 0),
            ({"preemptible_quota_overrides": {"us-east5": 3}}, SECOND, 0),
            ({"preemptible_quota_overrides": {"us-east5": 0}, "family_quota_chips": 4}, FIRST, 1),
            ({"preemptible_quota_overrides": {"us-east5": 4}}, FIRST, 1),
        ],
    )
    def test_a_zone_whose_quota_can_never_suffice_is_not_requested(
        self, place: Place, quotas: dict[str, Any], served: str, posts: int
    ):
        """Without quota a flex-start request stays PENDING until its end, and nothing says why."""
        place.have(**quotas)
        place.engine.up(serving(waitPerZoneS=1))
        assert place.engine.state
        assert place.engine.state.outputs["zone"] == served
        assert len(place.transport.made(f"POST compute/v1/projects/{PROJECT}/zones/{FIRST}/instances")) == posts

    def test_without_quota_in_every_zone_the_table_names_both_quotas_at_once(self, place: Place):
        place.have(preemptible_quota_chips=0)
        with pytest.raises(Aborted) as caught:
            place.engine.up(serving())
        for region in ("us-east5", "europe-west4"):
            assert (
                "quota: Compute Engine quota allows 0 of PREEMPTIBLE-TPU-V6E-per-project-region and "
                f"0 of TPUS-PER-TPU-FAMILY-per-project-region in {region}, but 4 chips are needed."
                in caught.value.message
            )
        assert place.transport.made("POST") == []

    def test_a_quota_that_is_not_known_skips_no_zone(self, place: Place, monkeypatch: pytest.MonkeyPatch):
        place.have(preemptible_quota_overrides={"us-east5": 0})
        monkeypatch.setenv(USAGE_OVERRIDE, f"{place.cloud.base_url}/nothing/")
        place.engine.up(serving(waitPerZoneS=1))
        assert len(place.transport.made(f"POST compute/v1/projects/{PROJECT}/zones/{FIRST}/instances")) == 1

    @pytest.mark.parametrize("place", [zones(us_east5_a=0, europe_west4_a=0)], indirect=True)
    def test_a_wait_that_is_broken_off_is_in_the_state_and_goes_on(self, place: Place):
        engine = place.engine

        async def show(_urn: str, message: str) -> None:
            if "WAITING" in message:
                await engine.cancel()

        engine.provider.engine_log.show = show  # type: ignore[method-assign] - the engine's own end
        with pytest.raises(Aborted) as caught:
            engine.up(serving())
        assert caught.value.partial
        assert place.left() == ["serve"]
        assert engine.state
        assert engine.state.outputs["state"] == "WAITING_FOR_RESOURCES"
        created = place.instance()
        place.cloud.cloud.scenario = place.cloud.cloud.scenario.model_copy(
            update={"tpu": place.cloud.cloud.scenario.tpu.model_copy(update={"zones": zones()})}
        )
        assert engine.up(serving()) == "update"
        after = place.instance()
        assert created
        assert after
        assert (created["id"], after["status"]) == (after["id"], "RUNNING")

    def test_a_lost_answer_is_found_again(self, place: Place):
        place.transport.faults["POST"] = "lost"
        place.engine.up(serving())
        assert len(place.transport.made(f"POST compute/v1/projects/{PROJECT}/zones/{FIRST}/instances")) == 1
        assert place.left() == ["serve"]

    def test_what_a_killed_engine_left_in_a_zone_that_is_no_longer_listed_is_deleted_first(self, place: Place):
        place.engine.up(serving(zones=[SECOND]))
        place.engine.state = None
        place.engine.up(serving(zones=[FIRST], allowReplaceActive=True))
        assert place.left() == ["serve"]
        assert place.instance(FIRST)
        assert place.instance(SECOND) is None

    def test_a_foreign_instance_is_not_touched(self, place: Place):
        place.engine.up(serving())
        found = place.instance()
        assert found
        body = {"labels": {"whose": "other"}, "labelFingerprint": found["labelFingerprint"]}
        assert place.ask("POST", f"zones/{FIRST}/instances/serve/setLabels", body).ok
        with pytest.raises(Aborted) as destroyed:
            place.engine.destroy()
        assert "gcloud compute instances add-labels serve" in destroyed.value.message
        place.engine.state = None
        with pytest.raises(Aborted) as refused:
            place.engine.up(serving())
        assert "already exists, its labels do not name" in refused.value.message
        assert place.left() == ["serve"]

    def test_without_quota_the_table_names_the_quota(self, place: Place):
        with pytest.raises(Aborted) as caught:
            place.engine.up(serving(provisioningModel="standard", maxRunDurationS=None))
        assert "TPUS_PER_TPU_FAMILY" in caught.value.message
        assert "quota: " in caught.value.message


class TestChecks:
    @pytest.mark.parametrize(
        ("changes", "name", "text"),
        [
            ({"acceleratorType": "v5litepod-4"}, "acceleratorType", "one of v6e-1, v6e-4, v6e-8"),
            ({"provisioningModel": "reservation", "reservationName": "r"}, "provisioningModel", "cloud-tpu"),
            ({"runtimeVersion": "v2-alpha-tpuv6e"}, "runtimeVersion", "boot image"),
            ({"queuedResourceId": "Serve_1"}, "queuedResourceId", "an instance name"),
            ({"nodeId": "other"}, "nodeId", "the instance is the node"),
            ({"waitPerZoneS": 7201}, "waitPerZoneS", "2 hours"),
            ({"maxRunDurationS": 599}, "maxRunDurationS", "at least 600"),
            ({"description": "d"}, "description", "cannot be set"),
            ({"renewBeforeS": 600}, "renewBeforeS", "cannot be set"),
            ({"dataDisks": [{"sourceDisk": "d"}]}, "dataDisks", "cannot be set"),
            ({"api": "gke"}, "api", "cloud-tpu, compute-engine"),
        ],
    )
    def test_what_compute_engine_cannot_do_is_said_before(self, place: Place, changes, name, text):
        assert text in place.engine.mistakes(serving(**changes))[name]

    def test_the_request_carries_what_google_documents(self, place: Place):
        place.engine.up(serving(network="default", validUntilDurationS=9000, bootDiskSizeGb=200))
        found = place.instance()
        assert found
        scheduling = found["scheduling"]
        assert scheduling["provisioningModel"] == "FLEX_START"
        assert scheduling["maxRunDuration"] == {"seconds": "14400"}
        assert scheduling["instanceTerminationAction"] == "DELETE"
        assert found["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
        assert found["disks"][0]["diskSizeGb"] == "200"
        assert found["serviceAccounts"][0]["scopes"] == ["https://www.googleapis.com/auth/cloud-platform"]
        assert "accessConfigs" not in found["networkInterfaces"][0]
