"""The Compute Engine backend against the local cloud in virtual time: the guarantees of queued resources, and what only instances have.

`test_capacity_schedules.py` judges the order of zones, kills and late grants of both backends.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gcp_tpu_provider.compute_request import REQUEST_KEY
from gcp_tpu_provider.desired_state import urn_hash
from gcp_tpu_provider.errors import GoogleError
from gcp_tpu_provider.tests.harness import URN, Aborted, FakeEngine, wanted
from localcloud.services.compute_operations import ComputeOperations
from localcloud.services.tpu_stock import INSTANCES
from localcloud.tests import idle_cloud
from localcloud.world.cloud import Cloud, Runtimes
from localcloud.world.runtime import MachineSpec
from localcloud.world.scenario import ComputeTpu, Scenario, Stock, Tpu, TpuZone
from tests.agreement.capacity_schedules import IMAGE
from tests.agreement.capacity_world import PACING, PROJECT, CapacityWorld, Lost, Sent

FIRST, SECOND = "us-east5-a", "europe-west4-a"
GUEST = {"guestAttributeNamespace": "gemma-serving", "documentMetadataKey": "document", "timeoutS": 60}
ANOTHER = {"gemma-serving-urn": urn_hash("another")}
LABELLED = {"managed-by": "gemma-serving", "new": "x"}
NOT_READY = GoogleError(400, "Bad Request", "The resource 'serve' is not ready", "resourceNotReady")


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
class Place:
    """A local cloud and the provider on it. `engine.up` and the others run without the laws of `CapacityWorld.watch`."""

    world: CapacityWorld

    def __post_init__(self) -> None:
        self.engine, self.transport, self.store = self.world.engine, self.world.transport, self.world.cloud.store
        self.calls: list[str] = []
        self.requested: list[Mapping[str, Any]] = []
        """Bodies of the requests for an instance."""
        self.on_call: Callable[[str], None] = lambda call: None
        self.transport.on_call = self._called

    def _called(self, call: Sent) -> None:
        self.calls.append(str(call))
        self.requested += [call.body] if call.creates else []
        self.on_call(str(call))

    def have(self, **facts: Any) -> None:
        """Change facts of Cloud TPU or, as `compute`, of Compute Engine."""
        tpu = self.world.cloud.scenario.tpu
        compute = tpu.compute.model_copy(update=facts.pop("compute", {}))
        self.world.cloud.scenario = Scenario(tpu=tpu.model_copy(update={**facts, "compute": compute}))

    def ask(self, verb: str, path: str, body: Any = None) -> None:
        """Make a call of another client about the first zone's instance."""

        async def ask() -> None:
            self.transport.keep_up()
            self.transport.ask(verb, f"compute/v1/{name()}{path}", body)

        self.engine.run(ask())

    def enforce(self, constraint: str, *, enforced: bool) -> None:
        policy = {"constraint": f"constraints/{constraint}", "booleanPolicy": {"enforced": enforced}}
        self.store.put("orgpolicies", f"{PROJECT}/constraints/{constraint}", policy)

    def instance(self, zone: str = FIRST) -> dict[str, Any]:
        return self.store.get(INSTANCES, name(zone)) or {}

    def put(self, **changes: Any) -> None:
        """Change the first zone's instance behind the provider's back."""
        self.store.put(INSTANCES, name(), {**self.instance(), **changes})

    def give_to_another(self) -> None:
        """Let another's instance have the name of the first zone's."""
        endless = {**self.instance()["_request"], "run_s": None}
        stamp = "2026-11-20T08:00:00.000-00:00"
        self.put(id="42", labels=ANOTHER, creationTimestamp=stamp, status="RUNNING", _deletion=None, _request=endless)

    def fail_changes(self, verb: str, *codes: str) -> None:
        """Let Google accept the next changes with this verb, and let their operations fail: nothing changes."""
        before, left = deepcopy(self.instance()), list(codes)

        def fail(call: str) -> None:
            operation = self.store.get("compute.operations", call.removeprefix("GET compute/v1/"))
            if left and operation and operation["operationType"] == verb and "error" not in operation:
                errors = {"errors": [{"code": left.pop(0), "message": "It failed"}]}
                self.store.put(
                    "compute.operations", call.removeprefix("GET compute/v1/"), operation | {"error": errors}
                )
                self.put(**before)

        self.on_call = fail

    def refuse(self, text: str, times: int) -> None:
        """Let Google answer the next calls with this text that another operation is in progress."""
        left = [NOT_READY] * times

        def refuse(call: str) -> None:
            if text in call and left:
                raise left.pop()

        self.on_call = refuse

    def at(self, text: str, times: int, do: Callable[[], object]) -> None:
        """Do something at the n-th call with this text, if the first zone has its instance."""
        seen = 0

        def look(call: str) -> None:
            nonlocal seen
            seen += text in call and bool(self.instance())
            if seen == times:
                self.on_call = lambda call: None
                do()

        self.on_call = look

    def made(self, text: str) -> list[str]:
        return [call for call in self.calls if text in call]

    def left(self) -> list[str]:
        """Return the zones with an instance that is visible."""
        return [item.split("/")[3] for item, body in self.store.under(INSTANCES) if "_hidden_until_s" not in body]


def name(zone: str = FIRST) -> str:
    return f"projects/{PROJECT}/zones/{zone}/instances/serve"


def zones(**stock: Stock) -> dict[str, TpuZone]:
    """Return both zones; a stock for flex-start and spot in those that are named, with _ for -."""
    given = {zone.replace("_", "-"): {"FLEX_START": one, "SPOT": one} for zone, one in stock.items()}
    types = ("v6e-1", "v6e-4", "v6e-8")
    return {
        zone: TpuZone(accelerator_types=types, flex_start=True, stock=given.get(zone, {})) for zone in (FIRST, SECOND)
    }


DRY = Stock(chips=0)
NOWHERE = zones(us_east5_a=DRY, europe_west4_a=DRY)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    scenario = Scenario(tpu=Tpu(zones=zones(), compute=ComputeTpu()))
    world = CapacityWorld(tmp_path, scenario, {}, runtimes=runtimes)
    yield Place(world)
    world.close()


def on_compute(**changes: Any) -> dict[str, Any]:
    given = {
        "project": PROJECT,
        "api": "compute-engine",
        "zones": [FIRST, SECOND],
        "runtimeVersion": IMAGE,
        "serviceAccount": {"email": "1-compute@developer.gserviceaccount.com"},
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
        outputs = engine.outputs
        assert engine.state.id == f"projects/{PROJECT}/queuedResources/serve"
        assert outputs["name"] == outputs["nodeName"] == name()
        assert (outputs["state"], outputs["nodeState"], outputs["phase"]) == ("ACTIVE", "READY", "ready")
        assert outputs["deadline"]
        assert engine.preview(serving()) == "same"
        made = place.instance()
        assert made["labels"]["gemma-serving-stack"] == "dev"
        other = serving("two", tags=["serve", "more"], labels=LABELLED)
        assert engine.up(other) == "update"
        changed = place.instance()
        assert changed["id"] == made["id"]
        assert changed["tags"]["items"] == ["serve", "more"]
        assert set(changed["labels"]) == {"managed-by", "new", "gemma-serving-urn"}
        metadata = {item["key"]: item["value"] for item in changed["metadata"]["items"]}
        assert metadata["document"] == "two"
        assert json.loads(metadata[REQUEST_KEY])["image"] == IMAGE
        engine.refresh()
        assert engine.preview(other) == "same"
        engine.destroy()
        assert place.left() == []

    def test_a_policy_that_hides_the_report_is_said_and_a_policy_against_metadata_keys_refuses(self, place: Place):
        place.enforce("compute.disableGuestAttributesAccess", enforced=True)
        with pytest.raises(Aborted, match=r"disable-enforce compute\.disableGuestAttributesAccess"):
            place.engine.up(serving())
        place.enforce("compute.disableGuestAttributesAccess", enforced=False)
        assert place.engine.up(serving()) == "update"
        place.enforce("compute.requireOsLogin", enforced=True)
        metadata = {"enable-guest-attributes": "TRUE", "document": "one", "enable-oslogin": "FALSE"}
        with pytest.raises(Aborted, match=r"requireOsLogin of project local-project forbids SSH keys in metadata"):
            place.engine.up(serving(metadata=metadata))
        assert place.engine.up(serving(metadata={**metadata, "enable-oslogin": "TRUE"})) == "update"

    @pytest.mark.parametrize(
        ("verb", "path", "then"), [("DELETE", "", "create"), ("POST", "/stop", "replace")], ids=["deleted", "stopped"]
    )
    def test_an_instance_that_another_user_ended_is_made_again_after_a_refresh(
        self, place: Place, verb: str, path: str, then: str
    ):
        place.engine.up(serving())
        place.ask(verb, path)
        with pytest.raises(Aborted, match=r"was ACTIVE and is (gone|SUSPEND(ING|ED)). Run `pulumi up --refresh`"):
            place.engine.up(serving())
        place.world.pass_time(600)
        place.engine.refresh()
        assert place.engine.up(serving()) == then
        assert place.engine.state
        assert place.engine.outputs["state"] == "ACTIVE"
        assert place.left() == [FIRST]

    @pytest.mark.parametrize("given", [name(), f"projects/{PROJECT}/queuedResources/serve"])
    def test_an_import_by_full_name_or_id(self, place: Place, given: str):
        where = {"network": f"projects/{PROJECT}/global/networks/default", "subnetwork": "default"}
        place.engine.up(serving(**where))
        place.engine.state = None
        found = place.engine.import_(given)
        assert found
        assert found.inputs["api"] == "compute-engine"
        assert (found.inputs["acceleratorType"], found.inputs["runtimeVersion"]) == ("v6e-4", IMAGE)
        assert place.engine.preview(serving(**where)) in {"same", "update"}

    def test_an_address_comes_and_goes_in_place_and_the_other_backend_is_a_replacement(self, place: Place):
        place.engine.up(serving())
        place.engine.up(serving(enableExternalIps=True))
        assert place.engine.state
        assert place.engine.outputs["externalIps"]
        place.engine.up(serving(allowReplaceActive=True))
        assert not place.engine.outputs.get("externalIps")
        assert place.engine.ops == ["create", "update", "update"]
        other = serving(allowReplaceActive=True, api="cloud-tpu", runtimeVersion="v2-alpha-tpuv6e")
        assert place.engine.preview(other) == "replace"


class TestCapacity:
    @pytest.mark.parametrize(
        "given", [{"validUntilDurationS": 600}, {"provisioningModel": "spot"}], ids=["flex", "spot"]
    )
    def test_a_request_that_google_ends_is_refused_in_googles_words(self, place: Place, given: dict[str, Any]):
        place.have(zones=NOWHERE)
        with pytest.raises(Aborted) as caught:
            place.engine.up(serving(**given))
        assert caught.value.message.count("(ZONE_RESOURCE_POOL_EXHAUSTED)") == 2
        assert "All capacity requests were deleted" in caught.value.message
        assert place.left() == []

    def test_a_request_without_quota_waits_as_one_without_stock_and_the_next_zone_gets_its_turn(self, place: Place):
        """Google answers such a request when it expires, and the provider reads no quota."""
        place.have(compute={"preemptible_quota_overrides": {"us-east5": 0}})
        place.engine.up(serving(waitPerZoneS=100))
        assert place.left() == [SECOND]
        place.engine.destroy()
        place.have(compute={"preemptible_quota_chips": 0})
        for valid_s, said in ((100, "quota: Quota 'PREEMPTIBLE_"), (1800, "unknown: WAITING_FOR_RESOURCES for 1m")):
            with pytest.raises(Aborted) as caught:
                place.engine.up(serving(waitPerZoneS=100, validUntilDurationS=valid_s))
            assert caught.value.message.count(said) == 2
        with pytest.raises(Aborted, match=r"quota: .*TPUS_PER_TPU_FAMILY"):
            place.engine.up(serving(provisioningModel="standard", maxRunDurationS=None))

    def test_a_lost_answer_is_found_again(self, place: Place):
        place.transport.lost = [Lost(verb="POST", after_s=0)]
        place.engine.up(serving())
        assert len(place.made(f"POST compute/v1/projects/{PROJECT}/zones/{FIRST}/instances")) == 1
        assert place.left() == [FIRST]


class TestNames:
    def test_a_foreign_instance_is_not_touched(self, place: Place):
        place.engine.up(serving())
        place.put(labels={"whose": "other"})
        with pytest.raises(Aborted, match="gcloud compute instances add-labels serve"):
            place.engine.destroy()
        place.engine.state = None
        with pytest.raises(Aborted, match="already exists, its labels do not name"):
            place.engine.up(serving())
        assert place.left() == [FIRST]

    def test_an_instance_whose_label_names_another_resource_now_is_not_changed_and_the_way_out_is_named(
        self, place: Place
    ):
        place.engine.up(on_compute())
        place.put(labels=ANOTHER)
        for _ in range(2):
            with pytest.raises(Aborted, match="pulumi state delete"):
                place.engine.up(on_compute(tags=["other"]))
            place.engine.refresh()
        assert place.instance()["labels"] == ANOTHER

    def test_an_instance_that_another_made_at_the_same_moment_is_not_touched(self, place: Place):
        def take() -> None:
            insertion = place.instance()["_insertion"]
            ComputeOperations(place.world.cloud).finish(insertion, code="RESOURCE_ALREADY_EXISTS")
            place.give_to_another()

        place.at("GET", 1, take)
        place.engine.up(on_compute())
        assert place.engine.state
        assert place.engine.outputs["name"] == name(SECOND)
        assert place.instance()["labels"] == ANOTHER
        place.engine.destroy()
        assert place.left() == [FIRST]

    def test_another_that_takes_the_name_after_ours_is_gone_is_not_deleted(self, place: Place):
        place.have(zones=NOWHERE)
        with pytest.raises(Aborted):
            place.engine.up(on_compute(zones=[FIRST]), timeout_s=100)
        place.at("GET", 5, place.give_to_another)
        place.engine.destroy()
        assert len(place.made("DELETE")) == 1
        assert (place.instance()["labels"], place.instance()["status"]) == (ANOTHER, "RUNNING")

    def test_a_name_that_is_taken_but_not_visible_stays_in_the_state(self, place: Place):
        place.engine.up(on_compute(zones=[FIRST]))
        place.put(_hidden_until_s=10**9)
        place.engine.state = None
        with pytest.raises(Aborted, match="may still take effect") as caught:
            place.engine.up(on_compute(zones=[FIRST]))
        assert caught.value.partial

    def test_a_refresh_does_not_take_anothers_instance_for_a_request_without_an_answer(self, place: Place):
        place.transport.lost = [Lost(verb="POST", after_s=None)]
        with pytest.raises(Aborted):
            place.engine.up(on_compute(zones=[FIRST]))
        FakeEngine(place.engine.cloud, PACING, URN.replace("dev", "other")).up(on_compute(zones=[FIRST]))
        place.engine.refresh()
        assert place.engine.state is None
        assert place.left() == [FIRST]


class TestOperations:
    def test_a_deletion_that_comes_too_early_is_asked_again(self, place: Place):
        place.have(zones=NOWHERE)
        with pytest.raises(Aborted):
            place.engine.up(on_compute(zones=[FIRST]), timeout_s=100)
        place.refuse("DELETE", 3)
        place.engine.destroy()
        assert place.left() == []
        assert len(place.made("DELETE")) == 4

    def test_an_instance_that_is_protected_is_named_with_the_command_that_ends_that(self, place: Place):
        place.engine.up(on_compute())
        place.put(deletionProtection=True)
        with pytest.raises(Aborted, match="gcloud compute instances update serve --no-deletion-protection"):
            place.engine.destroy()
        assert len(place.made("DELETE")) == 1
        place.put(deletionProtection=False)
        place.engine.destroy()
        assert place.left() == []

    def test_an_instance_that_google_takes_in_the_wait_for_ready_was_not_necessarily_deleted_by_someone(
        self, place: Place
    ):
        place.at("getGuestAttributes", 3, lambda: place.store.delete(INSTANCES, name()))
        with pytest.raises(Aborted, match="Google preempted it, its run duration expired, or another user deleted it"):
            place.engine.up(serving(ready={**GUEST, "guestAttributeNamespace": "silent"}))

    def test_a_change_whose_operation_finds_other_labels_is_made_again(self, place: Place):
        place.engine.up(on_compute())
        place.fail_changes("setLabels", "CONDITION_NOT_MET")
        place.engine.up(on_compute(labels=LABELLED))
        assert place.instance()["labels"]["new"] == "x"
        assert len(place.made("/setLabels")) == 2

    def test_keys_that_others_write_between_read_and_change_stay(self, place: Place):
        place.engine.up(on_compute())
        theirs = {"key": "theirs", "value": "1"}

        def write(call: str) -> None:
            items = place.instance()["metadata"]["items"]
            if "setMetadata" in call and theirs not in items:
                place.put(metadata={"items": [*items, theirs]})

        place.on_call = write
        place.engine.up(on_compute(metadata={"document": "two"}))
        found = {item["key"]: item["value"] for item in place.instance()["metadata"]["items"]}
        assert (found["theirs"], found["document"]) == ("1", "two")
        assert REQUEST_KEY in found

    @pytest.mark.parametrize(
        ("codes", "words"),
        [
            (["CONDITION_NOT_MET"] * 3, "because another client keeps changing it"),
            (["RESOURCE_NOT_READY"], "RESOURCE_NOT_READY"),
        ],
    )
    def test_a_change_that_fails_is_told_and_the_next_up_makes_it(self, place: Place, codes: list[str], words: str):
        place.engine.up(on_compute())
        place.fail_changes("setTags", *codes)
        with pytest.raises(Aborted, match=words):
            place.engine.up(on_compute(tags=["other"]))
        assert place.instance()["tags"]["items"] == ["serve"]
        place.engine.up(on_compute(tags=["other"]))
        assert place.instance()["tags"]["items"] == ["other"]

    def test_a_change_waits_for_another_operation_on_the_instance_for_ten_minutes(self, place: Place):
        place.engine.up(on_compute())
        place.refuse("setTags", 2)
        assert place.engine.up(on_compute(tags=["other"])) == "update"
        assert place.instance()["tags"]["items"] == ["other"]
        place.refuse("setTags", 10**4)
        with pytest.raises(Aborted, match="is not ready"):
            place.engine.up(on_compute(tags=["third"]))
        assert 600 <= place.engine.waited_s < 700

    def test_a_change_that_takes_too_long_fails_and_the_next_up_makes_the_others_too(self, place: Place):
        place.engine.up(on_compute())
        quick = place.world.cloud.scenario
        slow = quick.operations.model_copy(update={"compute_s": 700.0})
        place.world.cloud.scenario = quick.model_copy(update={"operations": slow})
        changed = on_compute(labels=LABELLED, tags=["other"])
        with pytest.raises(Aborted, match=r"The change of labels at .* did not finish within 600 s"):
            place.engine.up(changed)
        place.world.cloud.scenario = quick
        assert place.engine.up(changed) == "update"
        assert place.instance()["tags"]["items"] == ["other"]


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
            ({"api": "gke"}, "api", "cloud-tpu, compute-engine"),
            ({"metadata": {REQUEST_KEY: "mine"}, "ready": None}, "", f"`{REQUEST_KEY}` is reserved for the provider"),
        ],
    )
    def test_what_compute_engine_cannot_do_is_said_before(self, place: Place, changes, name, text):
        assert text in place.engine.mistakes(serving(**changes))[name]

    @pytest.mark.parametrize(("model", "google"), [("flex-start", "FLEX_START"), ("spot", "SPOT")])
    def test_the_request_carries_what_google_documents(self, place: Place, model: str, google: str):
        place.engine.up(serving(network="default", provisioningModel=model, bootDiskSizeGb=200))
        found = place.instance()
        assert found["scheduling"]["provisioningModel"] == google
        assert found["scheduling"]["maxRunDuration"] == {"seconds": "14400"}
        assert found["scheduling"]["instanceTerminationAction"] == "DELETE"
        reserved = {"consumeReservationType": "NO_RESERVATION"} if model == "flex-start" else None
        assert found.get("reservationAffinity") == reserved
        assert found["disks"][0]["initializeParams"]["diskSizeGb"] == "200"
        assert found["serviceAccounts"][0]["scopes"] == ["https://www.googleapis.com/auth/cloud-platform"]
        network = f"projects/{PROJECT}/global/networks/default"
        assert [body["networkInterfaces"] for body in place.requested] == [[{"network": network}]]
