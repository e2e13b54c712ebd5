"""The straight path, changes, refresh, import and deletion, through the servicer."""

import hashlib
import re
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NoReturn

import pytest

from gcp_tpu_provider.desired_state import urn_hash
from gcp_tpu_provider.errors import GoogleError
from gcp_tpu_provider.machine_warnings import deadline_warning
from gcp_tpu_provider.refusals import UNKNOWN_WORDS, Refusal
from gcp_tpu_provider.tests.cloud import FakeTpu
from gcp_tpu_provider.tests.harness import FAST, URN, Aborted, FakeEngine, wanted
from gcp_tpu_provider.wire import SECRET, SIGNATURE, UNKNOWN

DOCUMENT = '{"schema": 1}'
GUEST = {"guestAttributeNamespace": "gemma-serving", "documentMetadataKey": "document", "timeoutS": 5}


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def serving(document: str = DOCUMENT, **changes: Any) -> dict[str, Any]:
    metadata = {"enable-guest-attributes": "TRUE", "document": document}
    return wanted(metadata=metadata, ready=GUEST, **changes)


def boots(metadata: dict[str, Any]) -> list[dict[str, str]]:
    text_hash = sha(metadata.get("document", ""))
    phases = ["starting", "pulling image", "loading", "compiling", "ready"]
    return [{}, *({"phase": phase, "document-hash": text_hash, "detail": ""} for phase in phases)]


def boots_after_the_first_zone(cloud: FakeTpu, metadata: dict[str, Any]) -> list[dict[str, str]]:
    is_first = cloud.requests[-1]["zone"] == "us-east5-a"
    return [{"phase": "loading", "document-hash": sha(DOCUMENT)}] if is_first else boots(metadata)


@pytest.fixture
def cloud() -> FakeTpu:
    return FakeTpu()


@pytest.fixture
def engine(cloud: FakeTpu) -> FakeEngine:
    return FakeEngine(cloud)


class TestCreate:
    def test_the_request_says_what_was_wished(self, engine: FakeEngine, cloud: FakeTpu):
        engine.up(
            wanted(
                network="net",
                subnetwork="sub",
                serviceAccount={"email": "vm@my-project.iam.gserviceaccount.com"},
                description="serves",
                validUntilDurationS=7200,
                bootDiskSizeGb=200,
            )
        )
        body = cloud.queued[cloud.name("us-east5-a")].body
        assert body == {
            "provisioningModel": "FLEX_START",
            "runDuration": {"maxRunDuration": "14400s"},
            "queueingPolicy": {"validUntilDuration": "7200s"},
            "tpu": {
                "nodeSpec": [
                    {
                        "parent": "projects/my-project/locations/us-east5-a",
                        "nodeId": "serve-node",
                        "node": {
                            "acceleratorType": "v6e-4",
                            "runtimeVersion": "v2-alpha-tpuv6e",
                            "description": "serves",
                            "networkConfig": {"network": "net", "subnetwork": "sub", "enableExternalIps": False},
                            "serviceAccount": {
                                "email": "vm@my-project.iam.gserviceaccount.com",
                                "scope": ["https://www.googleapis.com/auth/cloud-platform"],
                            },
                            "labels": {
                                "managed-by": "gemma-serving",
                                "gemma-serving-stack": "dev",
                                "gemma-serving-urn": urn_hash(URN),
                            },
                            "tags": ["serve"],
                            "metadata": {"startup-script": "#!/bin/sh\n"},
                            "bootDiskConfig": {"diskSizeGb": "200"},
                        },
                    }
                ]
            },
        }

    def test_the_state_tells_where_it_is_and_how_it_came_there(self, engine: FakeEngine, cloud: FakeTpu):
        engine.up(wanted())
        assert engine.state
        outputs = engine.outputs
        assert engine.state.id == "projects/my-project/queuedResources/serve"
        assert outputs["zone"] == "us-east5-a"
        assert outputs["name"] == cloud.name("us-east5-a")
        assert outputs["nodeName"] == cloud.node_name("us-east5-a")
        assert outputs["state"] == "ACTIVE"
        assert outputs["nodeIps"] == ["10.0.0.2"]
        assert outputs["deadline"] == "2026-11-20T12:00:00Z"
        assert [item["state"] for item in outputs["stateHistory"]] == [
            "CREATING",
            "WAITING_FOR_RESOURCES",
            "PROVISIONING",
            "ACTIVE",
        ]
        assert any(line.endswith("/2h us-east5-a WAITING (zone 1 of 2)") for line in engine.lines)

    def test_a_preview_calls_nothing(self, engine: FakeEngine, cloud: FakeTpu):
        assert engine.preview(wanted()) == "create"
        assert cloud.calls == []

    def test_another_manager_gives_the_owner_label_another_name(self, engine: FakeEngine, cloud: FakeTpu):
        engine.up(wanted(labels={"team": "ml"}))
        assert cloud.nodes[cloud.node_name("us-east5-a")]["labels"] == {"team": "ml", "pulumi-urn": urn_hash(URN)}


class TestZones:
    @pytest.mark.parametrize("in_operation", [False, True])
    def test_a_spent_wait_gives_the_zone_up_first_without_force_then_with_it(
        self, engine: FakeEngine, cloud: FakeTpu, in_operation: bool
    ):
        cloud.refuses_in_operation = in_operation
        cloud.scripts["us-east5-a"] = ("CREATING", "WAITING_FOR_RESOURCES")
        engine.up({**wanted(), "waitPerZoneS": 1})
        assert list(cloud.queued) == [cloud.name("us-east5-b")]
        assert [call.endswith("?force") for call in cloud.made("DELETE")] == [False, True]

    def test_when_all_zones_are_spent_a_table_says_what_each_answered_and_nothing_is_left(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        cloud.refusals["us-east5-a"] = GoogleError(403, "PERMISSION_DENIED", "flex-start is not allowed here.")
        cloud.scripts["us-east5-b"] = ("FAILED:there is no more capacity",)
        with pytest.raises(Aborted) as ended:
            engine.up(wanted())
        assert ended.value.message.splitlines() == [
            "No zone granted v6e-4 (flex-start). All capacity requests were deleted.",
            "  us-east5-a  unknown words: Google returned 403 PERMISSION_DENIED: flex-start is not allowed here.",
            "  us-east5-b  stock: FAILED: there is no more capacity.",
            "stock: try again later or add zones.",
            f"unknown words: {Refusal(meaning=UNKNOWN_WORDS).advice()}.",
        ]
        assert ended.value.partial is None
        assert engine.state is None
        assert cloud.queued == {}

    def test_the_programs_advice_ends_the_error_and_a_change_of_it_is_no_change(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        for zone in ("us-east5-a", "us-east5-b"):
            cloud.refusals[zone] = GoogleError(429, "CODE", "There is no more capacity in the zone")
        advice = ["Zones not tried: add europe-west4-a.", "Another pool: spot."]
        with pytest.raises(Aborted) as ended:
            engine.up(wanted(nextSteps=advice))
        assert ended.value.message.splitlines()[-2:] == advice
        cloud.refusals.clear()
        engine.up(wanted(nextSteps=advice))
        assert engine.preview(wanted(nextSteps=["Other words."])) == "same"
        assert engine.preview(wanted()) == "same"

    def test_wrong_credentials_are_not_tried_in_every_zone(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.refusals["us-east5-a"] = GoogleError(401, "UNAUTHENTICATED", "Request had invalid credentials.")
        with pytest.raises(Aborted, match="401 UNAUTHENTICATED"):
            engine.up(wanted())
        assert cloud.made("us-east5-b/queuedResources?") == []
        assert len(cloud.made("POST")) == 1

    def test_capacity_that_came_while_the_zone_was_given_up_is_kept(self, engine: FakeEngine, cloud: FakeTpu):
        looks = 0

        def arrives(call: str) -> None:
            nonlocal looks
            found = cloud.queued.get(cloud.name("us-east5-a"))
            if call.startswith("DELETE") and found and found.state == "WAITING_FOR_RESOURCES":
                found.state, looks = "PROVISIONING", looks + 1
                found.steps.extend(["PROVISIONING", "ACTIVE"])

        cloud.on_call = arrives
        cloud.scripts["us-east5-a"] = ("WAITING_FOR_RESOURCES",)
        engine.up({**wanted(), "waitPerZoneS": 1})
        assert looks == 1
        assert engine.outputs["zone"] == "us-east5-a"


class TestReady:
    def test_a_machine_that_waits_for_the_hub_is_named_in_the_progress_and_goes_on_after_the_end_of_up(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        waiting = {"phase": "waiting for the hub", "document-hash": sha(DOCUMENT), "detail": "log\nHTTPError: 503"}
        cloud.boots = lambda _: [waiting]
        with pytest.raises(Aborted, match="not ready after") as ended:
            engine.up({**serving(), "ready": {**GUEST, "timeoutS": 1}})
        assert "The TPU VM keeps trying until its run expires, and is billed." in ended.value.message
        assert any("waiting for the hub: HTTPError: 503" in line for line in engine.lines)
        assert engine.outputs["phase"] == "waiting for the hub"
        cloud.guests[cloud.node_name("us-east5-a")] = boots({"document": DOCUMENT})
        assert engine.up(serving()) == "update"

    def test_the_failure_of_the_document_before_is_not_taken_for_this_one(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.boots = boots
        engine.up(serving())
        stale = {"phase": "failed", "document-hash": sha(DOCUMENT), "detail": "old"}
        cloud.boots = lambda metadata: [stale, stale, *boots(metadata)[1:]]
        engine.up(serving("second"))
        assert engine.outputs["documentHash"] == sha("second")

    @pytest.mark.parametrize("former", ["", sha("former")], ids=["nothing serves", "the former one never stopped"])
    def test_a_document_that_failed_without_a_pause_is_sent_again_by_each_up(
        self, engine: FakeEngine, cloud: FakeTpu, former: str
    ):
        failed = {"phase": "failed", "document-hash": sha(DOCUMENT), "serving-hash": former}
        cloud.boots = lambda _: [{**failed, "detail": f"no image, try {len(asked)}"}]
        asked = list[str]()
        for _ in range(3):
            with pytest.raises(Aborted, match=r"(?s)no image.*, then run `pulumi up`"):
                engine.up(serving())
            (node,) = cloud.nodes.values()
            asked.append(node["metadata"].get("gemma-serving-restart", ""))
            cloud.clock += timedelta(seconds=1)
        assert asked[0] == "", "the creation sends nothing"
        assert asked[0] < asked[1] < asked[2]
        cloud.boots = boots
        assert engine.up(serving()) == "update"
        assert engine.up(serving()) == "same"

    def test_a_server_that_lost_its_health_is_drift_that_the_next_up_waits_out(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        cloud.boots = boots
        engine.up(serving())
        cloud.guests[cloud.node_name("us-east5-a")] = [
            {"phase": "loading", "document-hash": sha(DOCUMENT)},
            {"phase": "ready", "document-hash": sha(DOCUMENT)},
        ]
        engine.refresh()
        assert engine.up(serving()) == "update"
        assert engine.detailed == {"phase": "UPDATE"}
        assert engine.up(serving()) == "same"

    @pytest.mark.parametrize("age_s", [None, 0, 600, 601, 2400])
    def test_a_report_is_ready_for_ten_minutes_only(self, engine: FakeEngine, cloud: FakeTpu, age_s: int | None):
        def old(metadata: dict[str, Any]) -> list[dict[str, str]]:
            stamp = "yesterday" if age_s is None else (cloud.clock - timedelta(seconds=age_s)).isoformat()
            return [{"phase": "ready", "document-hash": sha(metadata["document"]), "updated-at": stamp}]

        cloud.boots = boots
        engine.up(serving())
        cloud.boots = old
        if age_s is None or age_s <= 600:
            assert engine.up(serving("second")) == "update"
            return
        with pytest.raises(
            Aborted, match=r"The TPU VM last reported \S+ ago, so it does not read its document"
        ) as ended:
            engine.up({**serving("second"), "ready": {**GUEST, "timeoutS": 1}})
        assert ended.value.partial
        assert any("/1s The TPU VM last reported" in line for line in engine.lines)
        cloud.guests[cloud.node_name("us-east5-a")] = boots({"document": "second"})
        assert engine.up(serving("second")) == "update"

    def test_a_silent_machine_is_given_up_after_its_time(self, engine: FakeEngine):
        with pytest.raises(Aborted, match="published no guest attributes in gemma-serving/") as ended:
            engine.up({**serving(), "ready": {**GUEST, "timeoutS": 1}})
        assert ended.value.partial

    @pytest.mark.parametrize("status", [400, 412])
    def test_a_policy_that_hides_the_report_is_said_at_once(
        self, engine: FakeEngine, cloud: FakeTpu, monkeypatch: pytest.MonkeyPatch, status: int
    ):
        """400 also means that nothing is published yet: the wait would be silent for an hour."""
        words = "Constraint constraints/compute.disableGuestAttributesAccess violated for project 1."

        def refuse(*_: str) -> NoReturn:
            raise GoogleError(status, "FAILED_PRECONDITION", words)

        monkeypatch.setattr(cloud, "guest", refuse)
        with pytest.raises(Aborted) as ended:
            engine.up(serving())
        assert "disable-enforce compute.disableGuestAttributesAccess --project=my-project" in ended.value.message
        assert ended.value.partial, "the capacity stays in the state"
        engine.refresh()
        engine.destroy()
        assert cloud.queued == {}

    @pytest.mark.parametrize("was_accepted", [False, True])
    def test_capacity_that_is_taken_away_during_the_wait_is_requested_in_the_next_zone(
        self, engine: FakeEngine, cloud: FakeTpu, *, was_accepted: bool
    ):
        """As after a refusal; also by the update that finishes an interrupted creation."""
        cloud.scripts["us-east5-a"] = ("ACCEPTED", *["ACTIVE"] * (6 if was_accepted else 1), "SUSPENDED")
        cloud.boots = lambda metadata: boots_after_the_first_zone(cloud, metadata)
        if was_accepted:
            engine.up(serving(waitFor="accepted"))
        engine.up(serving())
        assert (engine.outputs["zone"], engine.outputs["phase"]) == ("us-east5-b", "ready")
        assert [request["zone"] for request in cloud.requests] == ["us-east5-a", "us-east5-b"]
        assert len(cloud.queued) == 1
        engine.destroy()
        assert cloud.queued == {}

    @pytest.mark.parametrize(
        ("last", "waits", "said"),
        [
            (
                "ACTIVE,SUSPENDED",
                {},
                "reclaimed: granted, then lost: projects/my-project/.* is SUSPENDED and its node is",
            ),
            ("", {"waitTotalS": 1}, "not tried: the total wait of 1s expired before this zone was requested"),
        ],
    )
    def test_capacity_that_is_lost_in_each_zone_leaves_a_table_and_nothing_that_is_billed(
        self, engine: FakeEngine, cloud: FakeTpu, last: str, waits: dict[str, int], said: str
    ):
        cloud.scripts = {
            "us-east5-a": ("ACTIVE", "SUSPENDED"),
            **({"us-east5-b": tuple(last.split(","))} if last else {}),
        }
        cloud.boots = lambda _: [{"phase": "loading", "document-hash": sha(DOCUMENT)}]
        if waits:
            cloud.on_call = lambda call: self.pass_some_time(engine, call)
        with pytest.raises(Aborted) as ended:
            engine.up(serving(**waits))
        headline, first, second, *advice = ended.value.message.splitlines()
        assert headline.endswith("All capacity requests were deleted.")
        assert first.startswith("  us-east5-a  reclaimed: granted, then lost: ")
        assert re.match(f"  us-east5-b  {said}", second)
        assert any(line.startswith("reclaimed: Google took the capacity back") for line in advice)
        assert cloud.queued == {}

    @pytest.mark.parametrize("initiator", ["SERVICE", "USER"])
    def test_what_a_user_ends_is_not_requested_in_the_next_zone(
        self, engine: FakeEngine, cloud: FakeTpu, initiator: str
    ):
        """A teardown by the guard, or by another machine, deletes beside the `up` that waits."""
        cloud.scripts["us-east5-a"] = ("ACTIVE", "SUSPENDED")
        cloud.boots = lambda metadata: boots_after_the_first_zone(cloud, metadata)
        cloud.initiator = initiator
        if initiator == "USER":
            with pytest.raises(Aborted, match=r"is SUSPENDED and its node is \w+\. Run `pulumi up --refresh`"):
                engine.up(serving())
        else:
            engine.up(serving())
        assert len(cloud.requests) == (1 if initiator == "USER" else 2)

    def test_what_is_deleted_during_the_wait_is_not_requested_in_the_next_zone(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        def delete(call: str) -> None:
            if "uestAttributes" in call:
                cloud.queued.clear()
                cloud.nodes.clear()

        cloud.boots = lambda _: [{"phase": "loading", "document-hash": sha(DOCUMENT)}]
        cloud.on_call = delete
        with pytest.raises(Aborted, match=r"is gone\..* Run `pulumi up --refresh` to replace it\."):
            engine.up(serving())
        assert len(cloud.requests) == 1

    @staticmethod
    def pass_some_time(engine: FakeEngine, call: str) -> None:
        if "uestAttributes" in call and engine.clock is not None:
            engine.clock.now_s += 0.4

    def test_a_run_that_ends_during_the_wait_was_not_reclaimed_and_its_end_stays_in_the_state(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        def end(call: str) -> None:
            if "uestAttributes" in call and cloud.nodes:
                (node,) = cloud.nodes.values()
                cloud.clock = datetime.fromisoformat(node["schedulingConfig"]["terminationTimestamp"])

        cloud.scripts["us-east5-a"] = ("ACTIVE", "SUSPENDED")
        cloud.boots = lambda _: [{"phase": "loading", "document-hash": sha(DOCUMENT)}]
        cloud.on_call = end
        with pytest.raises(Aborted, match=r"Its run has ended\. Run"):
            engine.up(serving())
        assert engine.outputs["deadline"]


class TestRollBack:
    """The machine rolls back to its last known good document and reports it."""

    PAUSE: ClassVar = {
        "serving-hash": sha(DOCUMENT),
        "pause-began-at": "2026-11-20T18:00:00.000Z",
        "pause-ended-at": "2026-11-20T18:01:30.000Z",
    }

    def boots(self, metadata: dict[str, Any]) -> list[dict[str, str]]:
        """The first document and `fixed` start; any other fails and is rolled back."""
        asked = sha(metadata["document"])
        if metadata["document"] in {DOCUMENT, "fixed"}:
            return [
                {"phase": "loading"},
                {"phase": "ready", "document-hash": asked, **self.PAUSE, "serving-hash": asked},
            ]
        reason = {"document-hash": asked, "detail": "vllm: error: unrecognized arguments: --no-such"}
        return [
            {"phase": "pulling image", "document-hash": asked, "serving-hash": sha(DOCUMENT)},
            {**reason, "phase": "restoring", "serving-hash": ""},
            {**reason, **self.PAUSE, "phase": "failed"},
        ]

    @pytest.fixture
    def rolled_back(self, engine: FakeEngine, cloud: FakeTpu) -> FakeEngine:
        cloud.boots = self.boots
        engine.up(serving())
        with pytest.raises(Aborted) as ended:
            engine.up(serving("bad"))
        assert ended.value.partial
        self.message = ended.value.message
        return engine

    def test_up_fails_with_the_servers_words_and_says_what_serves_and_what_to_do(self, rolled_back: FakeEngine):
        assert "unrecognized arguments: --no-such" in self.message
        assert (
            f"The previous configuration is serving: document {sha(DOCUMENT)[:12]}, not {sha('bad')[:12]}"
            in self.message
        )
        assert "requests failed for 1m30s" in self.message
        assert "Fix or revert the change, then run `pulumi up`." in self.message
        assert "Stack outputs that are listed with a minus are kept" in self.message
        assert any("pulling image, previous server still serving" in line for line in rolled_back.lines)

    def test_the_same_document_again_fails_again_at_once_and_changes_nothing(
        self, rolled_back: FakeEngine, cloud: FakeTpu
    ):
        patched = len(cloud.made("PATCH"))
        with pytest.raises(Aborted, match="does not retry the same document"):
            rolled_back.up(serving("bad"))
        assert len(cloud.made("PATCH")) == patched

    def test_a_failure_from_before_a_change_of_its_limits_is_not_taken_for_the_new_attempt(
        self, rolled_back: FakeEngine, cloud: FakeTpu
    ):
        failed = self.boots({"document": "bad"})[-1]
        ready = {"phase": "ready", "document-hash": sha("bad")}
        cloud.boots = lambda _metadata: [failed, failed, ready]
        given = serving("bad")
        rolled_back.up({**given, "metadata": {**given["metadata"], "limits": "longer"}})
        assert rolled_back.state
        assert rolled_back.state.outputs["phase"] == "ready"

    def test_a_good_change_says_for_how_long_requests_failed(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.boots = self.boots
        engine.up(serving())
        engine.up(serving("fixed"))
        assert engine.lines[-1].endswith(", requests failed for 1m30s")


class TestTheEndOfTheRun:
    def test_the_machine_is_told_when_google_has_said_it_and_that_is_no_drift(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.boots = boots
        given = {**serving(), "ready": {**GUEST, "deadlineMetadataKey": "ends-at"}}
        engine.up(given)
        (node,) = cloud.nodes.values()
        assert node["metadata"]["ends-at"] == engine.outputs["deadline"]
        engine.refresh()
        assert engine.up(given) == "same"

    @pytest.mark.parametrize(
        ("left", "run_s", "words"),
        [
            (timedelta(minutes=10), None, "Google will delete the TPU VM of Q at 2026-11-20 18:10 UTC, in 10m."),
            (timedelta(minutes=29), 3600 * 4, "in 29m"),
            (timedelta(minutes=31), 3600 * 4, ""),
            (timedelta(hours=16), 7 * 86400, "in 16h"),
            (timedelta(hours=17), 7 * 86400, ""),
            (timedelta(seconds=-1), 3600, "expired at 2026-11-20 17:59 UTC. Run `pulumi up --refresh`"),
        ],
    )
    def test_is_warned_of_before_it_comes(self, left: timedelta, run_s: int | None, words: str):
        now = datetime(2026, 11, 20, 18, tzinfo=UTC)
        deadline = (now + left).isoformat().replace("+00:00", "Z")
        run = {} if run_s is None else {"maxRunDurationS": run_s}
        warning = deadline_warning({"name": "Q", "deadline": deadline, "state": "ACTIVE", **run}, now)
        assert words in warning
        assert bool(words) == bool(warning)
        assert warning.endswith("run `pulumi up --refresh` to request capacity again.") == (
            left > timedelta() and bool(words)
        )
        for unknown in ({}, {"deadline": "soon"}, {"deadline": deadline, "state": "FAILED"}):
            assert deadline_warning(unknown, now) == ""


class TestChangesInPlace:
    def test_keys_that_others_added_stay_and_keys_that_were_ours_go(self, engine: FakeEngine, cloud: FakeTpu):
        engine.up(wanted(metadata={"a": "1", "b": "2"}))
        cloud.nodes[cloud.node_name("us-east5-a")]["metadata"]["ssh-keys"] = "me:ssh-rsa AAAA"
        engine.refresh()
        assert engine.up(wanted(metadata={"a": "1", "b": "2"})) == "same"
        engine.up(wanted(metadata={"a": "3"}))
        assert cloud.nodes[cloud.node_name("us-east5-a")]["metadata"] == {"a": "3", "ssh-keys": "me:ssh-rsa AAAA"}

    @pytest.mark.parametrize(
        "change",
        [{"waitPerZoneS": 60}, {"allowReplaceActive": True}, {"zones": ["us-east5-b", "us-east5-a", "us-east1-d"]}],
    )
    def test_policy_changes_touch_nothing_in_the_cloud(
        self, engine: FakeEngine, cloud: FakeTpu, change: dict[str, Any]
    ):
        engine.up(wanted())
        assert engine.up(wanted(**change)) == "update"
        assert cloud.made("PATCH") + cloud.made("DELETE") == []
        assert engine.up(wanted(**change)) == "same"


class TestReplacement:
    def test_giving_up_active_capacity_is_refused_in_the_preview(self, engine: FakeEngine, cloud: FakeTpu):
        engine.up(wanted())
        with pytest.raises(Aborted) as refused:
            engine.preview(wanted(acceleratorType="v6e-8"))
        assert refused.value.message == (
            "`acceleratorType` changes from v6e-4 to v6e-8, which replaces projects/my-project/locations/us-east5-a/queuedResources/serve "
            "while it is ACTIVE. Its capacity will be deleted, and new capacity may take hours. "
            "Revert the change until this capacity has ended, or set `allowReplaceActive` to true."
        )
        with pytest.raises(Aborted, match="`maxRunDurationS` changes from 4h to 8h, which replaces"):
            engine.preview(wanted(maxRunDurationS=28800))
        with pytest.raises(Aborted, match=r"If the stack was renamed, rename it back with `pulumi stack rename`\.$"):
            engine.preview(wanted(queuedResourceId="other"))

    def test_the_refusal_does_not_repeat_a_secret(self, engine: FakeEngine):
        engine.up(wanted(network={SIGNATURE: SECRET, "value": "canary-net"}))
        with pytest.raises(Aborted, match="`network` changes from a secret to other, which replaces"):
            engine.preview(wanted(network="other"))

    def test_a_value_that_is_not_known_yet_does_not_condemn_running_capacity(self, engine: FakeEngine):
        engine.up(wanted(network="net"))
        assert engine.preview(wanted(network=UNKNOWN)) == "update"
        assert engine.detailed == {"network": "UPDATE"}
        assert engine.preview(wanted(network=UNKNOWN, allowReplaceActive=True)) == "replace"

    def test_running_capacity_that_is_replaced_without_a_change_is_kept_unless_that_is_allowed(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        engine.up(wanted())
        with pytest.raises(
            Aborted, match=r"is ACTIVE, and no change .* `pulumi up` without `--replace` .* `allowReplaceActive`"
        ):
            engine.replace_anyway(wanted(), deletes_first=True)
        engine.replace_anyway(wanted(), deletes_first=False)
        engine.replace_anyway(wanted(allowReplaceActive=True), deletes_first=False)
        assert cloud.made("DELETE") == []
        engine.replace_anyway(wanted(allowReplaceActive=True), deletes_first=True)
        assert len(cloud.made("DELETE")) == 1
        engine.destroy()
        assert cloud.queued == {}

    def test_a_waiting_one_is_replaced_without_asking(self, engine: FakeEngine, cloud: FakeTpu):
        cloud.scripts["us-east5-a"] = ("ACCEPTED",)
        engine.up(wanted(waitFor="accepted"))
        assert engine.preview(wanted(waitFor="accepted", acceleratorType="v6e-8")) == "replace"
        engine.replace_anyway(wanted(waitFor="accepted"), deletes_first=True)
        assert len(cloud.made("DELETE")) == 1


class TestRefresh:
    @pytest.mark.parametrize("operation", ["refresh", "destroy"])
    def test_what_may_not_be_read_stays_in_the_state(self, engine: FakeEngine, cloud: FakeTpu, operation: str):
        """A resource that leaves the state is billed where no command shows it."""

        def deny(call: str) -> None:
            if call.startswith("GET"):
                raise GoogleError(403, "PERMISSION_DENIED", "Permission 'tpu.queuedResources.get' denied")

        engine.up(wanted())
        assert engine.state
        before = engine.state
        cloud.on_call = deny
        with pytest.raises(Aborted, match="403 PERMISSION_DENIED"):
            getattr(engine, operation)()
        assert engine.state is before
        assert list(cloud.queued) == [cloud.name("us-east5-a")]

    @pytest.mark.parametrize(
        ("changed", "detailed"),
        [
            ({"labels": {"gemma-serving-stack": "other"}}, 'labels["gemma-serving-stack"]'),
            ({"labels": {"gemma-serving-urn": None}}, "ownerLabels"),
            ({"metadata": {"startup-script": "changed"}}, 'metadata["startup-script"]'),
            ({"tags": []}, "tags"),
        ],
        ids=["a label", "the owner label", "metadata", "tags"],
    )
    def test_what_another_client_changed_is_drift_and_is_put_right(
        self, engine: FakeEngine, cloud: FakeTpu, changed: dict[str, Any], detailed: str
    ):
        engine.up(wanted())
        node = cloud.nodes[cloud.node_name("us-east5-a")]
        before = deepcopy(node)
        for name, value in changed.items():
            merged = {**node[name], **value} if isinstance(value, dict) else value
            node[name] = {key: text for key, text in merged.items() if text} if isinstance(merged, dict) else merged
        assert node != before
        engine.refresh()
        assert engine.up(wanted()) == "update"
        assert set(engine.detailed) == {detailed}
        assert node == before


class TestImport:
    SAME: ClassVar = wanted(
        network="net",
        serviceAccount={"email": "a@b.c"},
    )

    def foreign(self, cloud: FakeTpu) -> str:
        FakeEngine(cloud, urn=URN.replace("dev", "elsewhere")).up(
            wanted(network="net", serviceAccount={"email": "a@b.c"}, description="x")
        )
        name = cloud.name("us-east5-a")
        cloud.queued[name].body["tpu"]["nodeSpec"][0]["node"]["labels"].pop("gemma-serving-urn")
        cloud.nodes[cloud.node_name("us-east5-a")]["labels"].pop("gemma-serving-urn")
        return name

    @pytest.mark.parametrize(("reported", "imported"), [("200", 200), ("100", None)])
    def test_an_import_takes_the_boot_disk_unless_it_is_googles_default(
        self, engine: FakeEngine, cloud: FakeTpu, reported: str, imported: int | None
    ):
        name = self.foreign(cloud)
        cloud.queued[name].body["tpu"]["nodeSpec"][0]["node"]["bootDiskConfig"] = {"diskSizeGb": reported}
        state = engine.import_(name)
        assert state
        assert state.inputs.get("bootDiskSizeGb") == imported

    def test_the_program_that_made_it_matches_the_import(self, engine: FakeEngine, cloud: FakeTpu):
        engine.import_(self.foreign(cloud))
        assert engine.preview({**self.SAME, "description": "x"}) == "same", engine.detailed

    def test_an_imported_resource_is_not_deleted_until_it_carries_the_label(self, engine: FakeEngine, cloud: FakeTpu):
        engine.import_(self.foreign(cloud))
        with pytest.raises(Aborted, match=r"does not have the owner label .* --update-labels=gemma-serving-urn="):
            engine.destroy()
        assert engine.up({**self.SAME, "description": "claimed"}) == "update"
        engine.destroy()
        assert cloud.queued == {}

    def test_another_stacks_resource_is_neither_changed_nor_deleted_after_an_import(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        FakeEngine(cloud, urn=URN.replace("dev", "elsewhere")).up(wanted())
        engine.import_(cloud.name("us-east5-a"))
        with pytest.raises(Aborted, match=r"was not (modified|deleted)"):
            engine.up(wanted(tags=["stolen"]))
        with pytest.raises(Aborted, match=r"was not (modified|deleted)"):
            engine.destroy()
        assert cloud.made("PATCH") + cloud.made("DELETE") == []

    def test_an_import_takes_the_id_that_the_state_shows_if_one_zone_has_it(self, engine: FakeEngine, cloud: FakeTpu):
        name, shown = self.foreign(cloud), "projects/my-project/queuedResources/serve"
        by_name = engine.import_(name)
        assert by_name
        assert by_name.id == shown
        assert engine.import_(shown) == by_name
        cloud.add_stranger("us-east5-b", "serve", {})
        with pytest.raises(
            Aborted, match=rf"is the id of {name} and {cloud.name('us-east5-b')}\. Import it by its full"
        ):
            engine.import_(shown)
        with pytest.raises(Aborted, match=r"is the id of no queued resource and no instance\. "):
            engine.import_(f"{shown}2")

    def test_an_import_needs_the_full_name_of_something_that_is_there(self, engine: FakeEngine, cloud: FakeTpu):
        with pytest.raises(Aborted, match="Import it by its full name, projects/P/locations/ZONE/queuedResources/ID"):
            engine.import_("serve")
        assert engine.import_(cloud.name("us-east5-a")) is None


class TestDelete:
    def test_a_deletion_that_never_ends_is_given_up_and_the_state_keeps_the_resource(self, cloud: FakeTpu):
        engine = FakeEngine(cloud, pacing=replace(FAST, delete_s=0.5))
        engine.up(wanted())
        cloud.delete_looks = 10**6
        with pytest.raises(Aborted, match="is still DELETING"):
            engine.destroy()
        assert engine.state
        assert 0.5 <= engine.waited_s < 1

    def test_a_deletion_that_google_fails_is_reported_and_not_requested_again(self, engine: FakeEngine, cloud: FakeTpu):
        engine.up(wanted())
        cloud.delete_looks, cloud.deletion_error = 10**6, "internal error"
        with pytest.raises(Aborted, match=r"The deletion of .*/serve failed: internal error"):
            engine.destroy()
        assert engine.state
        assert len(cloud.made("DELETE")) == 1

    def test_what_is_not_ours_is_not_deleted(self, engine: FakeEngine, cloud: FakeTpu):
        engine.up(wanted())
        cloud.queued[cloud.name("us-east5-a")].body["tpu"]["nodeSpec"][0]["node"]["labels"] = {}
        cloud.nodes[cloud.node_name("us-east5-a")]["labels"] = {}
        with pytest.raises(Aborted, match="does not have the owner label"):
            engine.destroy()
        assert cloud.made("DELETE") == []

    def test_one_that_was_made_again_under_the_same_name_is_not_deleted(self, engine: FakeEngine, cloud: FakeTpu):
        """Without labels and a node, only the creation time in the state shows that it is another's."""
        engine.up(wanted())
        name, parent = cloud.name("us-east5-a"), "projects/my-project/locations/us-east5-a"
        body = cloud.queued[name].body
        body["tpu"]["nodeSpec"][0]["node"]["labels"] = {}
        cloud.drop(cloud.queued[name])
        cloud.scripts["us-east5-a"] = ("WAITING_FOR_RESOURCES",)
        cloud.create(parent, "us-east5-a", {"queuedResourceId": "serve"}, body)
        with pytest.raises(Aborted, match="does not have the owner label"):
            engine.destroy()
        assert list(cloud.queued) == [name]
        assert engine.state

    def test_a_suspended_one_whose_label_was_only_on_its_node_is_known_by_its_creation_time(
        self, engine: FakeEngine, cloud: FakeTpu
    ):
        engine.up(wanted())
        cloud.queued[cloud.name("us-east5-a")].body["tpu"]["nodeSpec"][0]["node"]["labels"] = {}
        cloud.queued[cloud.name("us-east5-a")].state = "SUSPENDED"
        cloud.nodes.clear()
        engine.destroy()
        assert cloud.queued == {}

    def test_a_renamed_resource_is_still_ours(self, engine: FakeEngine, cloud: FakeTpu):
        engine.up(wanted())
        renamed = FakeEngine(cloud, urn=URN.replace("serve", "renamed"), state=engine.state)
        assert renamed.preview(wanted()) == "update"
        assert renamed.detailed == {"ownerLabels": "UPDATE"}
        renamed.up(wanted())
        assert cloud.nodes[cloud.node_name("us-east5-a")]["labels"]["gemma-serving-urn"] == urn_hash(renamed.urn)
        renamed.destroy()
        assert cloud.queued == {}


class TestAStateOfAFormerVersion:
    """Former versions requested a second queued resource to renew a run: `serve-b`, which `renewalName` named until one of the two was deleted."""

    FIRST, SECOND = (
        f"projects/my-project/locations/us-east5-a/queuedResources/{name}" for name in ("serve", "serve-b")
    )

    @pytest.fixture
    def renewing(self, engine: FakeEngine, cloud: FakeTpu) -> FakeEngine:
        engine.up(wanted())
        body = deepcopy(cloud.queued[self.FIRST].body)
        body["tpu"]["nodeSpec"][0]["nodeId"] = "serve-node-b"
        cloud.create("projects/my-project/locations/us-east5-a", "us-east5-a", {"queuedResourceId": "serve-b"}, body)
        engine.outputs.update(renewalName=self.SECOND, renewalState="WAITING_FOR_RESOURCES")
        return engine

    @pytest.mark.parametrize("gone", ["nothing", "serve", "serve-b"])
    @pytest.mark.parametrize("refreshes", [False, True])
    def test_a_destroy_deletes_what_exists_of_both(
        self, renewing: FakeEngine, cloud: FakeTpu, gone: str, refreshes: bool
    ):
        for name in (self.FIRST, self.SECOND):
            if name.endswith(f"/{gone}"):
                cloud.drop(cloud.queued[name])
        if refreshes:
            renewing.refresh()
        renewing.destroy()
        assert cloud.queued == {}

    def test_an_update_is_refused_with_both_names_and_changes_nothing(self, renewing: FakeEngine, cloud: FakeTpu):
        before, calls = deepcopy(renewing.state), len(cloud.calls)
        sentence = (
            f"A former version requested {self.SECOND} beside {self.FIRST}, to renew its run. "
            "Run `pulumi destroy`, which deletes both."
        )
        with pytest.raises(Aborted, match=re.escape(sentence)):
            renewing.up(wanted(tags=["other"]))
        assert (renewing.state, len(cloud.calls)) == (before, calls)
