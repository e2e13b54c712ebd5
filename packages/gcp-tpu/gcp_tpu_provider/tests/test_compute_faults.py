"""Compute Engine at its worst: names that another takes, operations that fail late, changes that do not settle, deletions that have to wait."""

from copy import deepcopy
from typing import Any

import pytest

from gcp_tpu_provider.compute_request import REQUEST_KEY
from gcp_tpu_provider.desired_state import urn_hash
from gcp_tpu_provider.tests.compute_cloud import FakeCompute
from gcp_tpu_provider.tests.harness import Aborted, FakeEngine, wanted
from gcp_tpu_provider.transport import Pacing

A, B = "us-east5-a", "us-east5-b"
IMAGE = "projects/p-images/global/images/family/f"
ANOTHER = {"gemma-serving-urn": urn_hash("another")}


@pytest.fixture
def cloud() -> FakeCompute:
    return FakeCompute()


@pytest.fixture
def engine(cloud: FakeCompute) -> FakeEngine:
    return FakeEngine(cloud)


def on_compute(**changes: Any) -> dict[str, Any]:
    return wanted(api="compute-engine", runtimeVersion=IMAGE, **changes)


class TestNames:
    def test_an_instance_whose_label_names_another_resource_now_is_not_changed_and_the_way_out_is_named(
        self, engine: FakeEngine, cloud: FakeCompute
    ):
        engine.up(on_compute())
        cloud.queued[cloud.name(A)].body["labels"] = dict(ANOTHER)
        for _ in range(2):
            with pytest.raises(Aborted, match="pulumi state delete"):
                engine.up(on_compute(tags=["other"]))
            engine.refresh()
        assert cloud.queued[cloud.name(A)].body["labels"] == ANOTHER

    def test_the_key_of_the_provider_is_not_the_programs(self, engine: FakeEngine):
        mistakes = engine.mistakes(on_compute(metadata={"gcp-tpu-request": "mine"}))
        assert "Metadata key `gcp-tpu-request` is reserved for the provider" in mistakes[""]

    def test_an_instance_that_another_made_at_the_same_moment_is_not_touched(
        self, engine: FakeEngine, cloud: FakeCompute
    ):
        cloud.rivals[A] = ANOTHER
        engine.up(on_compute())
        theirs = cloud.queued[cloud.name(A)]
        assert engine.state
        assert engine.state.outputs["name"] == cloud.name(B)
        assert theirs.body["labels"] == ANOTHER
        engine.destroy()
        assert list(cloud.queued) == [cloud.name(A)]

    def test_another_that_takes_the_name_after_ours_is_gone_is_not_deleted(self, cloud: FakeCompute):
        engine = FakeEngine(cloud)
        cloud.scripts = {A: ("PENDING",)}
        with pytest.raises(Aborted):
            engine.up(on_compute(zones=[A]), timeout_s=0.2)

        cloud.delete_looks = 3
        looks = 0

        def later(call: str) -> None:
            nonlocal looks
            looks += cloud.queued[cloud.name(A)].state == "DELETING"
            if looks == 2:
                cloud.on_call = None
                cloud.queued.pop(cloud.name(A))
                cloud.add_stranger(A, "serve", ANOTHER)

        cloud.on_call = later
        engine.destroy()
        assert cloud.queued[cloud.name(A)].body["labels"] == ANOTHER
        assert cloud.queued[cloud.name(A)].state == "RUNNING"

    def test_a_name_that_is_taken_but_not_visible_stays_in_the_state(self, engine: FakeEngine, cloud: FakeCompute):
        cloud.add(cloud.name(A), {"name": "serve", "labels": {}}, ("RUNNING",))
        cloud.queued[cloud.name(A)].body["labels"] = {"gemma-serving-urn": urn_hash(engine.urn)}
        cloud.queued[cloud.name(A)].visible_at_s = 1000
        with pytest.raises(Aborted, match="may still take effect") as caught:
            engine.up(on_compute(zones=[A]))
        assert caught.value.partial

    def test_a_refresh_does_not_take_anothers_instance_for_a_request_without_an_answer(
        self, engine: FakeEngine, cloud: FakeCompute
    ):
        cloud.faults.append((f"POST compute/v1/projects/my-project/zones/{A}", "dropped"))
        with pytest.raises(Aborted):
            engine.up(on_compute(zones=[A]))
        cloud.add_stranger(A, "serve", {})
        engine.refresh()
        assert engine.state is None


class TestOperations:
    @pytest.mark.parametrize("script", [("!X_EXHAUSTED",), ("PROVISIONING", "STOPPING!X_EXHAUSTED", "STOPPING", "")])
    def test_a_zone_that_takes_its_instance_back_has_said_why(
        self, engine: FakeEngine, cloud: FakeCompute, script: tuple[str, ...]
    ):
        cloud.scripts = {A: script}
        with pytest.raises(Aborted) as caught:
            engine.up(on_compute(zones=[A]))
        assert "It failed: X_EXHAUSTED (X_EXHAUSTED)" in caught.value.message
        assert cloud.queued == {}

    def test_a_deletion_that_comes_too_early_is_asked_again(self, cloud: FakeCompute):
        engine = FakeEngine(cloud)
        cloud.scripts = {A: ("PROVISIONING",)}
        with pytest.raises(Aborted):
            engine.up(on_compute(zones=[A]), timeout_s=0.2)
        cloud.busy = 3
        engine.destroy()
        assert cloud.queued == {}
        assert len(cloud.made("DELETE")) == 4

    def test_an_instance_that_is_protected_is_named_with_the_command_that_ends_that(
        self, engine: FakeEngine, cloud: FakeCompute
    ):
        engine.up(on_compute())
        cloud.queued[cloud.name(A)].body["deletionProtection"] = True
        with pytest.raises(Aborted, match="gcloud compute instances update serve --no-deletion-protection"):
            engine.destroy()
        assert len(cloud.made("DELETE")) == 1
        del cloud.queued[cloud.name(A)].body["deletionProtection"]
        engine.destroy()
        assert cloud.queued == {}

    def test_an_instance_that_google_takes_in_the_wait_for_ready_was_not_necessarily_deleted_by_someone(
        self, engine: FakeEngine, cloud: FakeCompute
    ):
        cloud.guests[cloud.name(A)] = [{"phase": "loading"}]
        polls = 0

        def take(call: str) -> None:
            nonlocal polls
            polls += "getGuestAttributes" in call
            if polls == 3:
                cloud.queued.clear()

        cloud.on_call = take
        metadata = {"enable-guest-attributes": "TRUE"}
        with pytest.raises(Aborted, match="Google preempted it, its run duration expired, or another user deleted it"):
            engine.up(on_compute(metadata=metadata, ready={"guestAttributeNamespace": "g", "timeoutS": 60}))

    def test_a_change_whose_operation_finds_other_labels_is_made_again(self, engine: FakeEngine, cloud: FakeCompute):
        engine.up(on_compute())
        cloud.change_errors.append("CONDITION_NOT_MET")
        engine.up(on_compute(labels={"managed-by": "gemma-serving", "new": "x"}))
        assert cloud.queued[cloud.name(A)].body["labels"]["new"] == "x"

    def test_keys_that_others_write_between_read_and_change_stay(self, engine: FakeEngine, cloud: FakeCompute):
        engine.up(on_compute())
        theirs = {"key": "theirs", "value": "1"}

        def write(call: str) -> None:
            items = cloud.queued[cloud.name(A)].body["metadata"]["items"]
            if "setMetadata" in call and theirs not in items:
                items.append(theirs)

        cloud.on_call = write
        engine.up(on_compute(metadata={"document": "two"}))
        found = {item["key"]: item["value"] for item in cloud.queued[cloud.name(A)].body["metadata"]["items"]}
        assert (found["theirs"], found["document"]) == ("1", "two")
        assert REQUEST_KEY in found

    def test_a_client_that_keeps_changing_the_instance_is_named(self, engine: FakeEngine, cloud: FakeCompute):
        engine.up(on_compute())
        cloud.change_errors += ["CONDITION_NOT_MET"] * 3
        with pytest.raises(Aborted, match="because another client keeps changing it"):
            engine.up(on_compute(tags=["other"]))

    def test_a_change_waits_for_another_operation_on_the_instance(self, engine: FakeEngine, cloud: FakeCompute):
        engine.up(on_compute())
        cloud.busy_changes = 2
        assert engine.up(on_compute(tags=["other"])) == "update"
        assert cloud.queued[cloud.name(A)].body["tags"]["items"] == ["other"]

    def test_an_instance_that_is_never_ready_for_a_change_is_given_up(self, cloud: FakeCompute):
        engine = FakeEngine(cloud)
        engine.up(on_compute())
        cloud.busy_changes = 10**9
        with pytest.raises(Aborted, match="is not ready"):
            engine.up(on_compute(tags=["other"]))
        assert engine.waited_s < 700

    def test_a_change_that_takes_too_long_fails_and_the_next_up_makes_the_others_too(self, cloud: FakeCompute):
        engine = FakeEngine(cloud, Pacing())
        engine.up(on_compute())
        cloud.slow_s = 700
        changed = on_compute(labels={"managed-by": "gemma-serving", "new": "x"}, tags=["other"])
        with pytest.raises(Aborted, match=r"The change of labels at .* did not finish within 600 s"):
            engine.up(changed)
        assert engine.up(changed) == "update"
        assert cloud.queued[cloud.name(A)].body["tags"]["items"] == ["other"]

    def test_another_error_of_a_change_is_told_and_the_next_up_makes_it(self, engine: FakeEngine, cloud: FakeCompute):
        engine.up(on_compute())
        before = deepcopy(cloud.queued[cloud.name(A)].body)
        cloud.change_errors.append("RESOURCE_NOT_READY")
        with pytest.raises(Aborted, match="RESOURCE_NOT_READY"):
            engine.up(on_compute(tags=["other"]))
        assert cloud.queued[cloud.name(A)].body == before
        engine.up(on_compute(tags=["other"]))
        assert cloud.queued[cloud.name(A)].body["tags"]["items"] == ["other"]
