"""The SDK's own client drives `scripts.agent` over standard input and output, with the real engine on the local cloud."""

import json
import re
import sys

import anyio
import pytest
from mcp import types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from gemma_serving.scripts.agent.codes import FOLDER, CodeShelf
from tests.engine.conftest import CAPACITY, LIMIT_S

SHIPPED, TPU, OTHER, RUN = "tpu-v6e4", "tpu-v6e1", "tpu-v6e1-e4b", "l4-12b-qat"
ZONE = "us-east5-a"

pytestmark = [pytest.mark.engine, pytest.mark.long]


def started(workspace, *options):
    """Start the server. Its stderr goes to the runner's own: the default is the one of the time at which the client was imported."""
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "scripts.agent", *options],
        env={**workspace.environment, "GOOGLE_CLOUD_PROJECT": "local-project"},
        cwd=str(workspace.folder / "project"),
    )
    return stdio_client(parameters, errlog=sys.__stderr__)


def person(answers, asked, shelf):
    """A client's way to ask its person, who gives these answers, one after the other; None declines, and a name alone has no code."""

    async def ask(_context, question):
        asked.append(question.message)
        answer = answers[len(asked) - 1]
        if answer is None:
            return types.ElicitResult(action="decline")
        name, has_code = answer
        code = shelf.new(name)[1] if has_code else ""
        return types.ElicitResult(action="accept", content={"stack_name": name, "code": code})

    return ask


class Told(list):
    """Progress of a call. With its first message files are edited, as a careless editor would while the call runs."""

    def __init__(self, *edited):
        super().__init__()
        self.edited, self.before = edited, {}

    async def __call__(self, done, total, message):
        if not self:
            self.before = {path: path.read_text() for path in self.edited}
            for path, text in self.before.items():
                path.write_text(text + ("x = =\n" if path.suffix == ".py" else "# edited\n"))
        self.append((done, total, message))

    def restore(self):
        for path, text in self.before.items():
            path.write_text(text)


def driven(workspace, work, *options, **client):
    """Run work with a client of a new server."""

    async def run():
        async with Client(started(workspace, *options), read_timeout_seconds=LIMIT_S, **client) as one:
            return await work(one)

    return anyio.run(run)


def records(workspace):
    path = workspace.folder / "project" / ".work" / "agent-audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


async def finished(client, tool, arguments, told=None):
    """Call a tool, and wait for its answer if it was left."""
    found = await client.call_tool(tool, arguments, progress_callback=told)
    while (found.structured_content or {}).get("running"):
        run = found.structured_content["run"]
        found = await client.call_tool("wait", {"run": run, "seconds": 600}, progress_callback=told)
    return found


@pytest.fixture(scope="module")
def ready(workspace):
    for stack in (TPU, OTHER):
        workspace.wait_for_capacity(stack)
    return workspace


async def staged(client, workspace):
    """Stage as an agent does: a person makes the bucket before, and writes the line after the copy."""
    file = workspace.settings(RUN)
    refused = await finished(client, "stage_weights", {"stack": RUN})
    assert f"run `gemma stage_model {RUN}`" in refused.content[0].text
    assert "buckets" not in {item["kind"] for item in workspace.admin("resources")["resources"]}
    await anyio.to_thread.run_sync(lambda: workspace.script("stage_model", "--stack", RUN, "--no-bind"))
    before = file.read_text()
    done = await finished(client, "stage_weights", {"stack": RUN})
    first, commit = done.structured_content["setting"].splitlines()
    assert commit == "gemma-serving:modelRevision: 1d2c2d7f2466070e69d6fb3fd5ce9a7d75f2f6ee"
    key, _, value = first.partition(": ")
    assert (done.structured_content["staged"], file.read_text()) == (True, before)
    file.write_text(before.replace("config:\n", f"config:\n  {key.replace('.', ': {')}: {value}}}\n", 1))
    return done


def existing(workspace):
    return {(item["kind"], item["name"]) for item in workspace.admin("resources")["resources"]}


def without_salt(text):
    return [line for line in text.splitlines() if not line.startswith("encryptionsalt:")]


def test_a_shipped_stack_is_deployed_on_its_unchanged_file_and_nothing_is_left(workspace):
    """Weights are staged for a service, which then needs more than a TPU run. A person types the codes of both deletions."""
    file, asked = workspace.settings(SHIPPED), []
    text, before, shelf = file.read_text(), existing(workspace), CodeShelf(folder=workspace.folder / "project" / FOLDER)

    async def work(client):
        found = {"from the hub": await finished(client, "stage_weights", {"stack": SHIPPED})}
        found["preview"] = await finished(client, "preview", {"stack": SHIPPED})
        known = workspace.state_file(SHIPPED).exists(), file.read_text() == text
        plan_id = found["preview"].structured_content["plan_id"]
        for name, tool, arguments in (
            ("up", "up", {"plan_id": plan_id}),
            ("ask", "ask", {"stack": SHIPPED, "prompt": "hello", "max_tokens": 16}),
            ("again", "preview", {"stack": SHIPPED}),
        ):
            found[name] = await finished(client, tool, arguments)
        await anyio.to_thread.run_sync(lambda: workspace.advance(5 * 3600))
        found["after its run"] = await finished(client, "preview", {"stack": SHIPPED})
        found["staged"] = await staged(client, workspace)
        found["service"] = await finished(client, "preview", {"stack": RUN})
        for stack in (SHIPPED, RUN):
            found[f"{stack} gone"] = await finished(client, "teardown", {"stack": stack, "keep_bucket": False})
        return found, known

    asks = person([(SHIPPED, True), (RUN, True)], asked, shelf)
    found, known = driven(workspace, work, "--allow", "up,ask,stage,teardown", elicitation_callback=asks)
    failed = {name: result.content[0].text for name, result in found.items() if result.is_error}
    assert set(failed) == {"from the hub"}, failed
    assert "does not use staged weights (weights: hub)" in failed["from the hub"]
    content = {name: result.structured_content for name, result in found.items() if name not in failed}
    assert known == (False, True)
    assert content["preview"]["allowed"], content["preview"]
    assert content["preview"]["budget"].startswith("This run costs at most $21.60 for one run of 4 h; ")
    assert content["up"]["ok"], content["up"]
    assert without_salt(file.read_text()) == text.splitlines()
    assert content["ask"]["output_tokens"] > 0
    assert content["again"]["allowed"]
    assert content["again"]["budget"].startswith("This plan starts no new run.")
    assert content["after its run"]["allowed"] is False
    assert "This is a second run: the first one is over. " in content["after its run"]["budget"]
    assert content["after its run"]["headline"] == f"{SHIPPED}: requests TPU capacity"
    assert content["service"]["allowed"] is False
    assert f"Stack {RUN} has no maxUsd; no guard is known" in content["service"]["budget"]
    assert [content[f"{stack} gone"]["document"]["clean"] for stack in (SHIPPED, RUN)] == [True, True]
    assert existing(workspace) == before


async def waits_for_capacity(client, plan_id, told=None):
    """Begin an `up` that finds no capacity, and return its handle when the engine says that it waits."""
    found = await client.call_tool("up", {"plan_id": plan_id}, progress_callback=told)
    with anyio.fail_after(LIMIT_S):
        while "WAITING" not in ((found.structured_content.get("says") or {}).get("text") or ""):
            arguments = {"run": found.structured_content["run"], "seconds": 1}
            found = await client.call_tool("wait", arguments, progress_callback=told)
    return found.structured_content


def assert_steps_and_waits(told):
    texts = [text for *_, text in told]
    assert any(re.match(r"\d+ of \d+: created ", text) for text in texts), texts
    assert any("WAITING" in text for text in texts), texts
    assert [text for text in texts if "rpc" in text or "Callback" in text] == []
    assert all(done < total for done, total, _ in told if total is not None), told


def test_a_stack_is_planned_left_deployed_checked_measured_and_kept_until_a_person_types_its_name(ready):
    """The TPU's capacity comes late: the call of `up` is answered before, and the work continues."""
    project, asked = ready.folder / "project", []
    told, shelf = Told(project / f"Pulumi.{TPU}.yaml", project / "__main__.py"), CodeShelf(folder=project / FOLDER)
    ready.stock(0, ZONE)

    async def work(client):
        found = {}
        for name, arguments in (
            ("plan", {"stack": TPU}),
            ("explain_finding", {"identifier": "CST02"}),
            ("doctor", {"stack": TPU}),
            ("preview", {"stack": TPU}),
        ):
            found[name] = await finished(client, name, arguments)
        plan_id = found["preview"].structured_content["plan_id"]
        waiting = await waits_for_capacity(client, plan_id, told)
        found["status while it waits"] = await client.call_tool("status", {"stack": TPU})
        await anyio.to_thread.run_sync(ready.stock, 1, ZONE)
        found["up"] = await finished(client, "wait", {"run": waiting["run"]}, told)
        told.restore()
        for name, arguments in (
            ("status", {"stack": TPU, "tunnel": True}),
            ("endpoint", {"stack": TPU}),
            ("ask", {"stack": TPU, "prompt": "hello", "max_tokens": 16}),
            ("smoke", {"stack": TPU}),
            ("logs", {"stack": TPU}),
            (
                "benchmark",
                {
                    "stack": TPU,
                    "name": "first",
                    "concurrency": [1],
                    "input_tokens": 64,
                    "output_tokens": 8,
                    "requests": 4,
                },
            ),
            ("recover", {"stack": TPU}),
        ):
            found[f"{name} after"] = await finished(client, name, arguments)
        found["kept"] = await client.call_tool("teardown", {"stack": TPU})
        found["by itself"] = await client.call_tool("teardown", {"stack": TPU, "keep_bucket": False})
        kept = ready.resources(TPU, CAPACITY)
        found["gone"] = await finished(client, "teardown", {"stack": TPU, "keep_bucket": False})
        return found, waiting, kept

    options = ("--allow", "up,ask,smoke,bench,teardown", "--answer-within", "5")
    asks = person([None, (TPU, False), (TPU, True)], asked, shelf)
    found, waiting, kept = driven(ready, work, *options, elicitation_callback=asks)
    failed = {name: result.content[0].text for name, result in found.items() if getattr(result, "is_error", False)}
    assert set(failed) == {"kept", "by itself"}, failed
    assert "the user declined" in failed["kept"]
    content = {name: result.structured_content for name, result in found.items() if name not in failed}
    assert content["preview"]["usd_per_hour"] > 0
    assert not content["preview"]["is_disruptive"]
    assert re.fullmatch(r"\d+ of \d+: creating gcp-tpu:index:QueuedResource \S+", waiting["step"]), waiting
    assert [run["run"] for run in content["status while it waits"]["runs"]] == [waiting["run"]], content
    assert content["up"]["ok"], content["up"]
    assert content["endpoint after"]["auth"] == "tunnel"
    assert content["status after"]["document"]["stacks"][0]["server"]["running_requests"] == 0
    assert content["ask after"]["simulated"]
    assert content["ask after"]["output_tokens"] > 0
    assert content["smoke after"]["ok"], content["smoke after"]
    assert content["logs after"]["lines"]["text"]
    assert_steps_and_waits(told)
    assert f"DELETE stack '{TPU}'" in asked[0]
    assert "the code does not belong to this deletion" in failed["by itself"]
    assert kept
    assert content["gone"]["document"]["clean"], content["gone"]
    assert ready.resources(TPU, CAPACITY) == []
    outcomes = {(line["tool"], line["outcome"]) for line in records(ready)}
    assert {("up", "begun"), ("up", "left"), ("up", "done"), ("teardown", "refused"), ("teardown", "done")} <= outcomes


def test_a_cancelled_up_leaves_what_ctrl_c_leaves_and_two_agents_are_kept_apart(ready):
    """The request waits for capacity: the second agent is told who holds the lock, and the next plan goes on with the same request."""
    ready.stock(0, ZONE)

    async def cancelled():
        server, other = (started(ready, "--allow", "up", "--answer-within", "5") for _ in range(2))
        async with (
            Client(server, read_timeout_seconds=LIMIT_S) as one,
            Client(other, read_timeout_seconds=LIMIT_S) as two,
        ):
            first = (await finished(one, "preview", {"stack": OTHER})).structured_content["plan_id"]
            second = (await finished(two, "preview", {"stack": OTHER})).structured_content["plan_id"]
            run = (await waits_for_capacity(one, first))["run"]
            locked = await finished(two, "up", {"plan_id": second})
            await one.call_tool("cancel", {"run": run})
            return locked, await finished(one, "wait", {"run": run})

    locked, ended = anyio.run(cancelled)
    assert locked.is_error
    assert re.search(rf"Stack {OTHER} is locked for .* by \S+@\S+ \(process \d+", locked.content[0].text), locked
    assert ended.structured_content["outcome"] == "cancelled"
    assert ready.resources(OTHER, CAPACITY)
    requests_made = ready.admin("requests?id=tpu.projects.locations.queuedResources.create")["requests"]
    ready.stock(1, ZONE)

    async def goes_on(client):
        plan_id = (await finished(client, "preview", {"stack": OTHER})).structured_content["plan_id"]
        return await finished(client, "up", {"plan_id": plan_id})

    done = driven(ready, goes_on, "--allow", "up")
    assert done.structured_content["ok"], json.dumps(done.structured_content, indent=1)
    assert ready.admin("requests?id=tpu.projects.locations.queuedResources.create")["requests"] == requests_made
