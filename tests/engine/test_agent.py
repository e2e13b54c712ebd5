"""The SDK's own client drives `scripts.agent` over standard input and output and over HTTP, with the real engine on the local cloud."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from scripts.agent.codes import FOLDER, CodeShelf
from tests.engine.conftest import LIMIT_S

TPU, RUN = "tpu-v6e1", "l4-12b-qat"
TOKEN = "a-token-of-the-tests-0123456789"

pytestmark = pytest.mark.engine


def parameters(workspace, *options):
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "scripts.agent", *options],
        env={**workspace.environment, "GOOGLE_CLOUD_PROJECT": "local-project"},
        cwd=str(workspace.folder / "project"),
    )


def person(answer, asked=None, code=None):
    """A client's way to ask its person, who gives this answer."""

    async def ask(_context, question):
        if asked is not None:
            asked.append(question.message)
        if answer is None:
            return types.ElicitResult(action="decline")
        return types.ElicitResult(action="accept", content={"stack_name": answer, "code": code or ""})

    return ask


class Told(list):
    """Progress of a call."""

    async def __call__(self, done, total, message):
        self.append((done, total, message))


def driven(workspace, work, *options, **client):
    """Run work with a client of a new server."""

    async def run():
        async with Client(stdio_client(parameters(workspace, *options)), read_timeout_seconds=LIMIT_S, **client) as one:
            return await work(one)

    return anyio.run(run)


def records(workspace):
    path = workspace.folder / "project" / ".work" / "agent-audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def state_of(workspace, stack):
    resources = json.loads(workspace.state(stack))["checkpoint"]["latest"].get("resources", [])
    return {resource["type"] for resource in resources}


@pytest.fixture(scope="module")
def ready(workspace):
    for stack in (TPU, RUN):
        workspace.pulumi("stack", "init", stack)
    workspace.stage(RUN)
    return workspace


def test_a_stack_is_planned_deployed_checked_measured_and_kept_until_a_person_types_its_name(ready):
    told, asked = Told(), []

    async def work(client):
        found = {}
        for name, arguments in (
            ("plan", {"stack": RUN, "costs": True}),
            ("compare_machines", {"model": "google/gemma-4-12B-it"}),
            ("solve", {"model": "12B", "workload": "in=700,out=300,users=4"}),
            ("explain_finding", {"identifier": "CST01"}),
            ("doctor", {"stack": RUN}),
            ("capacity", {"stack": RUN}),
            ("list_weights", {"stack": RUN}),
            ("preview", {"stack": RUN}),
        ):
            found[name] = await client.call_tool(name, arguments)
        plan_id = found["preview"].structured_content["plan_id"]
        found["up"] = await client.call_tool("up", {"plan_id": plan_id}, progress_callback=told)
        for name, arguments in (
            ("status", {"stack": RUN, "refresh": True}),
            ("endpoint", {"stack": RUN}),
            ("metrics", {"stack": RUN}),
            ("ask", {"stack": RUN, "prompt": "hello", "max_tokens": 16}),
            ("smoke", {"stack": RUN}),
            ("logs", {"stack": RUN}),
            (
                "benchmark",
                {
                    "stack": RUN,
                    "name": "first",
                    "concurrency": [1],
                    "input_tokens": 64,
                    "output_tokens": 8,
                    "requests": 4,
                },
            ),
            ("compare_benchmarks", {"before": "first", "after": "first"}),
            ("recognise_failure", {"stack": RUN, "text": "Memory limit of 16384 MiB exceeded with 16900 MiB used."}),
            ("recover", {"stack": RUN}),
            ("preview", {"stack": RUN, "refresh": True}),
        ):
            found[f"{name} after"] = await client.call_tool(name, arguments)
        found["rollout"] = await client.call_tool("rollout", {"stack": RUN, "to": "gemma-l4-12b-qat-00001-abc"})
        found["stage"] = await client.call_tool(
            "stage_weights", {"stack": RUN, "source": "gs://no-such-bucket-of-ours/x"}
        )
        found["report"] = await client.read_resource("gemma://reports/first")
        found["kept"] = await client.call_tool("teardown", {"stack": RUN})
        return found

    allowed = "up,smoke,bench,stage,rollout,recover,teardown"
    found = driven(ready, work, "--allow", allowed, elicitation_callback=person(None, asked))
    failed = {name: result.content[0].text for name, result in found.items() if getattr(result, "is_error", False)}
    assert set(failed) == {"kept", "rollout", "stage"}, failed
    assert "cloudRun.rollout" in failed["rollout"]
    assert "no-such-bucket-of-ours" in failed["stage"]
    assert "the person did not agree" in failed["kept"]
    content = {name: result.structured_content for name, result in found.items() if name not in {*failed, "report"}}
    assert content["list_weights"]["complete"]
    assert content["preview"]["usd_per_hour"] > 0
    assert not content["preview"]["takes_the_server_away"]
    assert content["up"]["ok"], content["up"]
    assert content["endpoint after"]["auth"] == "id-token"
    assert content["metrics after"]["figures"]["requests_running"] == 0
    assert content["ask after"]["simulated"]
    assert content["ask after"]["output_tokens"] > 0
    assert content["smoke after"]["ok"], content["smoke after"]
    assert content["logs after"]["lines"]["text"]
    assert content["recognise_failure after"]["finding"] == "FIT03"
    assert content["preview after"]["changes"] == []
    assert found["report"].contents[0].text.startswith("#")
    assert any("service" in (message or "") or "vllm" in (message or "") for *_, message in told), told
    assert told[-1][0] > 1
    assert f"DELETE stack '{RUN}'" in asked[0]
    assert "gcp:cloudrunv2/service:Service" in state_of(ready, RUN)

    async def delete(client):
        return await client.call_tool("teardown", {"stack": RUN, "keep_bucket": False})

    by_itself = driven(ready, delete, "--allow", "teardown", elicitation_callback=person(RUN))
    assert "there is no code for it now" in by_itself.content[0].text
    assert "gcp:cloudrunv2/service:Service" in state_of(ready, RUN)
    code = CodeShelf(folder=ready.folder / "project" / FOLDER).new(RUN).deletes_bucket
    gone = driven(ready, delete, "--allow", "teardown", elicitation_callback=person(RUN, code=code))
    assert gone.structured_content["document"]["clean"], gone
    assert "gcp:cloudrunv2/service:Service" not in state_of(ready, RUN)
    outcomes = {(line["tool"], line["outcome"]) for line in records(ready)}
    assert {("up", "begun"), ("up", "done"), ("teardown", "refused"), ("teardown", "done")} <= outcomes


@pytest.mark.long
def test_a_cancelled_up_leaves_what_ctrl_c_leaves_and_two_agents_are_kept_apart(ready):
    """The request waits for capacity: the second agent is told who holds the lock, and the next plan goes on with the same request."""
    zone = {"accelerator_types": ["v6e-1"], "flex_start": True}
    ready.wait_for_capacity(TPU)
    ready.change_scenario({"tpu": {"zones": {"us-east5-a": {**zone, "capacity": {"v6e-1": 0}}}}})

    async def cancelled():
        server, other = (stdio_client(parameters(ready, "--allow", "up")) for _ in range(2))
        async with (
            Client(server, read_timeout_seconds=LIMIT_S) as one,
            Client(other, read_timeout_seconds=LIMIT_S) as two,
        ):
            first = (await one.call_tool("preview", {"stack": TPU})).structured_content["plan_id"]
            second = (await two.call_tool("preview", {"stack": TPU})).structured_content["plan_id"]
            waits = anyio.Event()

            async def hear(_done, _total, message):
                if "WAITING" in (message or ""):
                    waits.set()

            async def deploy():
                await one.call_tool("up", {"plan_id": first}, progress_callback=hear)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(deploy)
                with anyio.fail_after(LIMIT_S):
                    await waits.wait()
                locked = await two.call_tool("up", {"plan_id": second})
                tasks.cancel_scope.cancel()
            with anyio.fail_after(LIMIT_S):
                while not any(line["outcome"] == "cancelled" for line in records(ready)):  # noqa: ASYNC110 - a file
                    await anyio.sleep(0.1)
            return locked

    locked = anyio.run(cancelled)
    assert locked.is_error
    assert re.search(rf"Stack {TPU} is locked by \S+@\S+ \(process \d+", locked.content[0].text), locked
    assert "gcp-tpu:index:QueuedResource" in state_of(ready, TPU)
    requests_made = ready.admin("requests?id=tpu.projects.locations.queuedResources.create")["requests"]
    ready.change_scenario({"tpu": {"zones": {"us-east5-a": {**zone, "capacity": {"v6e-1": 1}}}}})

    async def goes_on(client):
        plan_id = (await client.call_tool("preview", {"stack": TPU})).structured_content["plan_id"]
        return await client.call_tool("up", {"plan_id": plan_id})

    done = driven(ready, goes_on, "--allow", "up")
    assert done.structured_content["ok"], json.dumps(done.structured_content, indent=1)
    assert ready.admin("requests?id=tpu.projects.locations.queuedResources.create")["requests"] == requests_made


@pytest.mark.long
def test_over_http_only_the_token_opens_the_same_server(ready):
    environment = {**ready.environment, "GEMMA_SERVING_AGENT_TOKEN": TOKEN, "GOOGLE_CLOUD_PROJECT": "local-project"}
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts.agent", "--http", "0"],
        cwd=ready.folder / "project",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = ""
        for line in process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:\d+/mcp", line):
                url = found[0]
                break
        assert url, process.wait(60)
        tools, status, refused = anyio.run(over_http, url)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert "status" in tools
    assert "up" not in tools
    assert not status.is_error
    assert refused == 401
    assert process.returncode in {0, 130}


async def over_http(url):
    async with httpx2.AsyncClient() as stranger:
        refused = (await stranger.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})).status_code
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=LIMIT_S) as mine:
        way = streamable_http_client(url, http_client=mine)
        async with Client(way, read_timeout_seconds=LIMIT_S) as client:  # the HTTP client has to be open before
            tools = {tool.name for tool in (await client.list_tools()).tools}
            return tools, await client.call_tool("status", {}), refused


@pytest.mark.long
def test_a_server_whose_client_goes_away_ends_with_what_it_had_begun(ready):
    async def work(client):
        return (await client.call_tool("status", {})).is_error

    assert driven(ready, work) is False
    with contextlib.suppress(ProcessLookupError):
        pids = subprocess.run(
            ["pgrep", "-f", "scripts.agent"], capture_output=True, text=True, check=False
        ).stdout.split()
        ours = [
            pid for pid in pids if os.path.realpath(f"/proc/{pid}/cwd") == str((ready.folder / "project").resolve())
        ]
        end = time.monotonic() + LIMIT_S
        while any(Path(f"/proc/{pid}").exists() for pid in ours):
            assert time.monotonic() < end
            time.sleep(0.1)
