"""The admin API: scenario, faults, time, the request log, the list of resources."""

import time

import pytest
import requests

from localcloud.world.scenario import ScenarioError, Stock, load, parse

P = "/projects/local-project"
SECRETS = f"/secretmanager/v1{P}/secrets"
AUTOMATIC = {"replication": {"automatic": {}}}


ZONE = "projects/local-project/locations/us-east5-a"
QUEUE = f"/tpu/v2alpha1/{ZONE}/queuedResources"
NODE = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"}
REQUEST = {"tpu": {"nodeSpec": [{"parent": ZONE, "nodeId": "late", "node": NODE}]}, "provisioningModel": "SPOT"}
WAIT_S = 30.0
"""Real seconds for events that take a fraction of one."""


def advance(client, seconds):
    client.ok("POST", "/admin/advance", {"seconds": seconds})


def found_within(client, path, limit_s):
    end = time.monotonic() + limit_s
    while client.call("GET", path)[0] == 404:
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)  # the thread of the server does not signal its effect
    return True


def put_faults(client, *faults):
    client.ok("PUT", "/admin/scenario", {"faults": faults})


class TestFaults:
    def test_the_nth_call_fails_once_with_the_status(self, own_client):
        put_faults(own_client, {"method": "secretmanager.*.create", "nth": 2, "status": 503})
        own_client.ok("POST", SECRETS, AUTOMATIC, secretId="a")
        assert own_client.error("POST", SECRETS, AUTOMATIC, secretId="b")[0] == 503
        own_client.ok("POST", SECRETS, AUTOMATIC, secretId="b")

    def test_a_lost_answer_leaves_the_effect(self, own_client):
        put_faults(own_client, {"method": "secretmanager.*.create", "action": "reset", "when": "after"})
        with pytest.raises(requests.ConnectionError):
            own_client.call("POST", SECRETS, AUTOMATIC, secretId="lost")
        own_client.ok("GET", f"{SECRETS}/lost")

    def test_a_late_call_takes_effect_after_its_answer_was_lost_and_a_repetition_of_it_changes_nothing(
        self, own_client
    ):
        late = {"method": "tpu.*.queuedResources.create", "count": 2, "when": "late", "late_s": 1e6}
        put_faults(own_client, late)
        sent = {"queuedResourceId": "late", "requestId": "11111111-1111-4111-8111-111111111111"}
        for _ in range(2):
            assert own_client.error("POST", QUEUE, REQUEST, **sent)[0] == 503
        assert own_client.call("GET", f"{QUEUE}/late")[0] == 404
        advance(own_client, 1e6)
        assert found_within(own_client, f"{QUEUE}/late", WAIT_S)
        own_client.ok("DELETE", f"{QUEUE}/late", force="true")
        advance(own_client, 1e6)
        assert own_client.call("GET", f"{QUEUE}/late")[0] == 404

    def test_a_hanging_call_is_cut_in_the_end(self, own_client):
        put_faults(own_client, {"method": "*.secrets.list", "action": "hang", "hang_s": 0.1, "count": 2})
        with pytest.raises(requests.ConnectionError):
            own_client.call("GET", SECRETS)
        assert own_client.call("GET", f"{SECRETS}/none")[0] == 404


class TestScenario:
    def test_an_unknown_key_is_one_sentence(self, own_client):
        status, message = own_client.error("PUT", "/admin/scenario", {"tpu": {"speling": 1}})
        assert status == 400
        assert "tpu.speling: Extra inputs are not permitted (given: 1)" in message

    def test_a_file_is_read_or_refused_in_one_sentence(self, tmp_path):
        path = tmp_path / "scenario.yaml"
        path.write_text("tpu:\n  zones:\n    us-east5-a: {accelerator_types: [v6e-4], capacity: {v6e-4: 0}}\n")
        assert load(path).tpu.zones["us-east5-a"].capacity == {"v6e-4": 0}
        path.write_text("tpu: [")
        with pytest.raises(ScenarioError, match="is not YAML"):
            load(path)
        with pytest.raises(ScenarioError, match=r"^Cannot read "):
            load(tmp_path / "none.yaml")
        path.write_text(
            "tpu: {zones: {us-east5-a: {accelerator_types: [v6e-4], stock: {SPOT: {chips: 8, dry: fails}}}}}\n"
        )
        assert load(path).tpu.zones["us-east5-a"].stock == {"SPOT": Stock(chips=8, dry="fails")}
        with pytest.raises(ScenarioError, match=r"faults\.0\.status"):
            parse({"faults": [{"method": "x", "status": 200}]}, "x")


class TestLooking:
    def test_resources_are_listed_with_labels_and_descriptions(self, own_client):
        own_client.ok("POST", SECRETS, {**AUTOMATIC, "labels": {"managed-by": "x"}}, secretId="seen")
        own_client.ok(
            "POST",
            f"/compute/compute/beta{P}/global/networks",
            {"name": "net", "autoCreateSubnetworks": False, "description": "managed-by=x"},
        )
        found = own_client.ok("GET", "/admin/resources")["resources"]
        shown = {each["name"]: (each["api"], each["kind"], each["labels"], each["description"]) for each in found}
        assert shown["projects/local-project/secrets/seen"] == ("secretmanager", "secrets", {"managed-by": "x"}, "")
        network = shown["projects/local-project/global/networks/net"]
        assert network == ("compute", "networks", {}, "managed-by=x")

    def test_the_request_log_holds_no_payload(self, own_client):
        own_client.ok("POST", SECRETS, AUTOMATIC, secretId="logged")
        own_client.ok("POST", f"{SECRETS}/logged:addVersion", {"payload": {"data": "Y2FuYXJ5"}})
        log = own_client.ok("GET", "/admin/requests", id="addVersion")
        assert log["requests"][0]["id"] == "secretmanager.projects.secrets.addVersion"
        assert log["requests"][0]["body"] == {"payload": {"data": "[redacted]"}}
        assert "Y2FuYXJ5" not in str(own_client.ok("GET", "/admin/requests"))

    def test_a_channel_in_use_is_deleted_with_force_only(self, own_client):
        channel = own_client.ok(
            "POST",
            f"/monitoring/v3{P}/notificationChannels",
            {"type": "email", "labels": {"email_address": "a@example.com"}},
        )["name"]
        condition = {"displayName": "c", "conditionPrometheusQueryLanguage": {"query": "vector(1)", "duration": "60s"}}
        policy = own_client.ok(
            "POST",
            f"/monitoring/v3{P}/alertPolicies",
            {"displayName": "p", "combiner": "OR", "conditions": [condition], "notificationChannels": [channel]},
        )
        assert own_client.error("DELETE", f"/monitoring/v3/{channel}")[0] == 400
        own_client.ok("DELETE", f"/monitoring/v3/{channel}", force="true")
        assert own_client.ok("GET", f"/monitoring/v3/{policy['name']}")["notificationChannels"] == []
