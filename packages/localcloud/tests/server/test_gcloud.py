"""gcloud works against the local cloud: the list of commands with a real gcloud if one is installed, and its recorded requests."""

import json
from pathlib import Path

import pytest

from localcloud.tests.conftest import Client
from localcloud.tests.idle_cloud import Started
from localcloud.tests.server.gcloud_commands import (
    REQUESTS,
    Gcloud,
    commands,
    installed,
    prepared,
    replay,
    run,
)

RECORDED = json.loads(REQUESTS.read_text())
ZONE = "projects/local-project/locations/us-east5-a"


def test_the_recorded_requests_of_gcloud_are_answered_as_recorded(own_cloud: Started):
    assert len(RECORDED["requests"]) > 80
    assert replay(own_cloud.base_url, own_cloud.token, RECORDED["requests"]) == []


@pytest.fixture
def gcloud() -> Gcloud:
    found = installed()
    if found is None:
        pytest.skip("gcloud with its alpha track is not installed")
    return found


@pytest.mark.long
def test_gcloud_does_what_the_list_says(gcloud: Gcloud, own_cloud: Started, tmp_path: Path):
    outcomes = run(gcloud, own_cloud.base_url, tmp_path, prepared(tmp_path), token=own_cloud.token)
    pairs = zip(commands(), outcomes, strict=True)
    assert [(command.argv, outcome) for command, outcome in pairs if not command.describes(outcome)] == []
    assert (tmp_path / "large.back").read_bytes() == (tmp_path / "large.bin").read_bytes()


@pytest.fixture
def queued(own_client: Client) -> Client:
    node = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"}
    body = {
        "tpu": {"nodeSpec": [{"parent": ZONE, "nodeId": "n", "node": node}]},
        "provisioningModel": "FLEX_START",
        "runDuration": {"maxRunDuration": "3600s"},
    }
    own_client.ok("POST", f"/tpu/v2alpha1/{ZONE}/queuedResources", body, queuedResourceId="q")
    return own_client


def test_version_2_of_cloud_tpu_shows_the_fields_that_it_has(queued: Client):
    alpha = queued.ok("GET", f"/tpu/v2alpha1/{ZONE}/queuedResources/q")
    stable = queued.ok("GET", f"/tpu/v2/{ZONE}/queuedResources/q")
    assert {"provisioningModel", "runDuration"} <= set(alpha) - set(stable)
    assert stable["state"]["state"] == "ACTIVE"
    assert [node["name"] for node in queued.ok("GET", f"/tpu/v2/{ZONE}/nodes")["nodes"]] == [f"{ZONE}/nodes/n"]
    assert queued.ok("GET", f"/tpu/v1/{ZONE}/acceleratorTypes/v6e-1")["type"] == "v6e-1"


def test_version_2_of_cloud_tpu_answers_operations_of_its_own(queued: Client):
    operation = queued.ok("PATCH", f"/tpu/v2/{ZONE}/nodes/n", {"labels": {"a": "b"}}, updateMask="labels")
    done = queued.ok("GET", f"/tpu/v2/{operation['name']}")
    assert done["metadata"]["apiVersion"] == "v2"
    assert done["response"]["@type"] == "type.googleapis.com/google.cloud.tpu.v2.Node"
    assert done["response"]["labels"] == {"a": "b"}


def test_version_2_of_cloud_tpu_refuses_what_it_does_not_have(queued: Client):
    body = {"tpu": {"nodeSpec": []}, "provisioningModel": "FLEX_START"}
    status, message = queued.error("POST", f"/tpu/v2/{ZONE}/queuedResources", body, queuedResourceId="q2")
    assert status == 400
    assert 'Unknown name "provisioningModel"' in message
