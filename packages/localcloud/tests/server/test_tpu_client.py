"""Google's own client for Cloud TPU works against the local cloud."""

import importlib.util
import json
import sys

from localcloud.tests.conftest import Client
from localcloud.tests.idle_cloud import Started
from localcloud.tests.server.gcloud_commands import replay
from localcloud.tests.tpu_client import EXPECTED, REQUESTS, session

RECORDED = json.loads(REQUESTS.read_text())
ZONE = "projects/local-project/locations/us-east5-a"


def installed() -> bool:
    return importlib.util.find_spec("google.cloud.tpu_v2") is not None


def test_the_session_of_the_client_is_answered_as_recorded(own_cloud: Started):
    assert {item["status"] for item in RECORDED["requests"]} == {200}
    assert len(RECORDED["requests"]) >= len(EXPECTED)
    assert replay(own_cloud.base_url, own_cloud.token, RECORDED["requests"]) == []


def test_the_client_reads_what_it_expects(own_cloud: Started):
    if not installed():
        assert replay(own_cloud.base_url, own_cloud.token, RECORDED["requests"]) == []
        return
    said = session(sys.executable, own_cloud.base_url, own_cloud.token)
    assert {key: said[key] for key in EXPECTED} == EXPECTED


def test_operations_have_metadata_of_a_type_that_the_client_knows(own_client: Client):
    """It has the published protocol buffers of Cloud TPU and no others, and fails on an unknown type of an `Any`."""
    node = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"}
    body = {"tpu": {"nodeSpec": [{"parent": ZONE, "nodeId": "n", "node": node}]}, "spot": {}}
    for version in ("v2", "v2alpha1"):
        made = own_client.ok("POST", f"/tpu/{version}/{ZONE}/queuedResources", body, queuedResourceId=version)
        assert made["metadata"]["@type"] == f"type.googleapis.com/google.cloud.tpu.{version}.OperationMetadata"
        body["tpu"]["nodeSpec"][0]["nodeId"] = "n2"
