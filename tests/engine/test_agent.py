"""The SDK's own client drives `scripts.agent` over standard input and output, with the real engine on the local cloud."""

import json
import re
import sys

import anyio
import pytest
from mcp import types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from gemma_serving.cloud.guard import GUARD
from gemma_serving.scripts.agent.codes import CodeShelf
from gemma_serving.scripts.agent.presenting import NOTE
from gemma_serving.scripts.stack.limit_record import limit_name
from tests.engine.conftest import CAPACITY, LIMIT_S, PROJECT
from tests.engine.terminal import take_down
from tests.polling import until

SHIPPED, TPU, OTHER, RUN, GONE = "tpu-v6e4", "tpu-v6e1", "tpu-v6e1-e4b", "l4-12b-qat", "l4-qat"
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
    """Progress of a call. Once the program is copied, files are edited, as a careless editor would while the call runs."""

    def __init__(self, *edited):
        super().__init__()
        self.edited, self.before = edited, {}

    async def __call__(self, done, total, message):
        if not self.before and "previewing stack" in message:
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
    path = workspace.memory.path("audit.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


async def finished(client, tool, arguments, told=None):
    """Call a tool, and wait for its answer if it was left."""
    found = with_text(await client.call_tool(tool, arguments, progress_callback=told))
    while (found.structured_content or {}).get("running"):
        run = found.structured_content["run"]
        found = with_text(await client.call_tool("wait", {"run": run, "seconds": 600}, progress_callback=told))
    return found


def with_text(found):
    """Return an answer whose text is its structure: clients that read only text get all of it."""
    text = "".join(item.text for item in found.content)
    assert text if found.is_error else json.loads(text) == found.structured_content, found
    return found


@pytest.fixture(scope="module")
def ready(workspace):
    for stack in (TPU, OTHER):
        workspace.wait_for_capacity(stack)
    return workspace


def existing(workspace):
    """What exists, but for the network of a deleted service, which Google holds for two hours."""
    found = workspace.admin("resources")["resources"]
    return {(item["kind"], item["name"]) for item in found if item["kind"] not in {"networks", "subnetworks"}}


def without_salt(text):
    return [line for line in text.splitlines() if not line.startswith("encryptionsalt:")]


def test_a_shipped_stack_is_deployed_on_its_unchanged_file_and_nothing_is_left(workspace):
    """A person types the code of the deletion."""
    file, asked = workspace.settings(SHIPPED), []
    text, before, shelf = file.read_text(), existing(workspace), CodeShelf(memory=workspace.memory)

    async def work(client):
        found = {"from the hub": await finished(client, "stage_weights", {"stack": SHIPPED})}
        found["preview"] = await finished(client, "preview", {"stack": SHIPPED})
        known = workspace.state_file(SHIPPED).exists(), file.read_text() == text
        plan = found["preview"].structured_content["plan"]
        for name, tool, arguments in (
            ("up", "up", {"stack": SHIPPED, "plan": plan}),
            ("ask", "ask", {"stack": SHIPPED, "prompt": "hello", "max_tokens": 16}),
            ("again", "preview", {"stack": SHIPPED}),
        ):
            found[name] = await finished(client, tool, arguments)
        await anyio.to_thread.run_sync(lambda: workspace.advance(5 * 3600))
        found["after its run"] = await finished(client, "preview", {"stack": SHIPPED})
        found["gone"] = await finished(client, "teardown", {"stack": SHIPPED})
        return found, known

    asks = person([(SHIPPED, True)], asked, shelf)
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
    assert content["ask"]["document"]["output_tokens"] > 0
    assert content["again"]["allowed"]
    assert content["again"]["budget"].startswith("This plan starts no new run.")
    assert content["after its run"]["allowed"] is False
    assert "This is a second run: the first one is over. " in content["after its run"]["budget"]
    assert content["after its run"]["document"]["headline"] == f"{SHIPPED}: requests TPU capacity"
    assert content["gone"]["document"]["clean"]
    assert existing(workspace) == before


SERVICE = f"v2/projects/{PROJECT}/locations/us-east4/services/gemma-{RUN}"
STAGED = {"model": "google/gemma-4-12B-it-qat-w4a16-ct", "revision": "1d2c2d7f2466070e69d6fb3fd5ce9a7d75f2f6ee"}
OF_DOCUMENT_002 = {
    "list_weights": ("list_weights", {}),
    "ask": ("ask", {"prompt": "hello", "system": "Be brief.", "max_tokens": 16}),
    "metrics": ("status", {"wake": True, "metrics": True}),
    "summary": ("logs", {"summarize": True}),
    "smoke": ("smoke", {}),
    "command": ("plan", {"gcloud": True}),
    "objects": ("plan", {"gke": True}),
    "finding": ("plan", {"finding": "FIT01"}),
    "comparison": ("plan", {"compare": [], "model": STAGED["model"]}),
    "solution": ("plan", {"solve": True, "model": "12B", "workload": "in=700,out=300,users=4"}),
    "capacity": ("capacity", {}),
    "doctor": ("doctor", {}),
    "alerts": ("alerts", {}),
}
"""Functions of the tools of document 002, with the tools that have them here."""
WITHOUT_STACK = {"finding", "comparison", "solution"}


async def scaled(client, workspace, file):
    """Scale without limits, with the limits that the verdict names, too far, and back. Return the answers and how the service scaled."""
    found, served = {}, []

    async def preview(name, low, high):
        scaling = [f"cloudRun.minInstances={low}", f"cloudRun.maxInstances={high}"]
        found[name] = await finished(client, "preview", {"stack": RUN, "set": scaling})
        return {"stack": RUN, "set": scaling, "plan": found[name].structured_content["plan"]}

    async def up(name, low, high):
        plan = await preview(name, low, high)
        found[f"up of {name}"] = await finished(client, "up", plan)
        served.append(workspace.get("run", SERVICE)["template"]["scaling"])

    await preview("more", 0, 2)
    account = workspace.post(f"iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": GUARD})["name"]
    age = "  gemma-serving:maxAge: 7d\n"
    file.write_text(file.read_text().replace(age, f"{age}  gemma-serving:maxUsd: 50\n"))
    await up("more in limits", 0, 2)
    await preview("too many", 1, 50)
    await up("one", 0, 1)
    workspace.call("DELETE", f"iam/v1/{account}")
    return found, served


def test_a_shipped_service_is_staged_deployed_asked_and_scaled_and_nothing_is_left(workspace):
    """Documents 002 and 003: no bucket, no line of a file, no maxUsd and no guard exists before. A person types the code of the deletion."""
    file, asked = workspace.settings(RUN), []
    text, before, shelf = file.read_text(), existing(workspace), CodeShelf(memory=workspace.memory)
    limit = workspace.memory.path(limit_name(RUN))

    async def work(client):
        found = {"stage": await finished(client, "stage_weights", {"stack": RUN})}
        found["preview"] = await finished(client, "preview", {"stack": RUN})
        plan = found["preview"].structured_content["plan"]
        found["up"] = await finished(client, "up", {"stack": RUN, "plan": plan})
        known = limit.exists()
        for name, (tool, arguments) in OF_DOCUMENT_002.items():
            stack = {} if name in WITHOUT_STACK else {"stack": RUN}
            found[name] = await finished(client, tool, {**stack, **arguments})
        by_scale, served = await scaled(client, workspace, file)
        found |= by_scale
        found["gone"] = await finished(client, "teardown", {"stack": RUN})
        return found, known, served

    asks = person([(RUN, True)], asked, shelf)
    allow = "up,ask,smoke,stage,scale,teardown"
    options = ("--allow", allow, "--max-hours", "2", "--answer-within", "1")
    found, known, served = driven(workspace, work, *options, elicitation_callback=asks)
    failed = {name: result.content[0].text for name, result in found.items() if result.is_error}
    assert set(failed) == set(), failed
    content = {name: result.structured_content for name, result in found.items() if name not in failed}
    assert content["stage"]["document"]["setting"]["modelRevision"] == STAGED["revision"]
    added = set(file.read_text().splitlines()) - set(text.splitlines())
    keys = {line.split(":")[0].strip().removesuffix(".jinja") for line in added}
    assert keys == {"encryptionsalt", "gemma-serving", "manifest", "templates", "chat_template"}, added
    assert content["preview"]["allowed"], content["preview"]
    assert content["preview"]["budget"].startswith("This service costs at most $2.09 for 2 h of one instance, ")
    assert content["up"]["ok"], content["up"]
    assert known
    document = {name: one.get("document") for name, one in content.items()}
    assert document["list_weights"]["folders"][0]["served_by"]
    assert document["ask"]["output_tokens"] > 0
    (status,) = document["metrics"]["stacks"]
    assert status["address"]["served_model"] == STAGED["model"]
    assert status["server"]["metrics"]["vllm:generation_tokens_total"] > 0
    assert document["summary"]["summary"]["output_tokens"] > 0
    assert content["summary"]["note"] == NOTE
    assert content["smoke"]["ok"], content["smoke"]
    assert document["command"]["command"].startswith(f"gcloud run deploy gemma-{RUN} --project=local-project")
    assert document["finding"]["why"]
    assert [content[name]["allowed"] for name in ("more", "more in limits", "too many", "one")] == [
        False,
        True,
        False,
        True,
    ]
    assert "the limit is $10.00 per hour" in content["too many"]["budget"]
    assert [scaling.get("maxInstanceCount") for scaling in served] == [2, 1]
    assert "maxInstances: 1" in file.read_text()
    assert content["gone"]["document"]["clean"]
    assert not limit.exists()
    assert existing(workspace) == before


def test_a_service_is_deleted_when_its_server_ends_or_at_its_limit(workspace):
    """The client disconnects after the first deployment, and stays for the second one, which imports the bucket that the first one left."""
    before, limit = existing(workspace), workspace.memory.path(limit_name(GONE))

    def services():
        return {item for item in existing(workspace) if item[0] == "services"}

    async def deployed(client):
        plan = (await finished(client, "preview", {"stack": GONE})).structured_content
        assert plan["allowed"], plan
        done = await finished(client, "up", {"stack": GONE, "plan": plan["plan"]})
        assert done.structured_content["ok"], done
        assert services()

    async def staged(client):
        found = await finished(client, "stage_weights", {"stack": GONE})
        assert not found.is_error, found
        await deployed(client)

    driven(workspace, staged, "--allow", "up,stage")
    until(lambda: not limit.exists())
    assert {kind for kind, _ in existing(workspace) - before} == {"buckets", "objects"}

    async def over(client):
        await deployed(client)
        await anyio.to_thread.run_sync(lambda: until(lambda: not limit.exists()))
        assert services() == set()
        return await finished(client, "preview", {"stack": GONE})

    again = driven(workspace, over, "--allow", "up", "--max-hours", "0.015").structured_content
    assert again["allowed"], again
    take_down(workspace, GONE)  # the state of a stack that was deleted has no bucket
    assert existing(workspace) == before


async def waits_for_capacity(client, stack, plan, told=None):
    """Begin an `up` that finds no capacity, and return its handle when the engine says that it waits."""
    found = await client.call_tool("up", {"stack": stack, "plan": plan}, progress_callback=told)
    with anyio.fail_after(LIMIT_S):
        while "WAITING" not in ((found.structured_content.get("says") or {}).get("text") or ""):
            arguments = {"run": found.structured_content["run"], "seconds": 1}
            found = await client.call_tool("wait", arguments, progress_callback=told)
    return found.structured_content


def assert_waits(told):
    texts = [text for *_, text in told]
    assert any("WAITING" in text for text in texts), texts
    assert [text for text in texts if "rpc" in text or "Callback" in text] == []
    assert all(total is None for _, total, _ in told), told


def test_a_stack_is_planned_left_deployed_checked_measured_and_kept_until_a_person_types_its_name(ready):
    """The TPU's capacity comes late: the call of `up` is answered before, and the work continues."""
    project, asked = ready.folder / "project", []
    told, shelf = Told(project / f"Pulumi.{TPU}.yaml", project / "__main__.py"), CodeShelf(memory=ready.memory)
    ready.stock(0, ZONE)

    async def work(client):
        found = {}
        for name, arguments in (
            ("plan", {"stack": TPU}),
            ("doctor", {"stack": TPU}),
            ("preview", {"stack": TPU}),
        ):
            found[name] = await finished(client, name, arguments)
        plan = found["preview"].structured_content["plan"]
        waiting = await waits_for_capacity(client, TPU, plan, told)
        found["status while it waits"] = await finished(client, "status", {"stack": TPU})
        await anyio.to_thread.run_sync(ready.stock, 1, ZONE)
        found["up"] = await finished(client, "wait", {"run": waiting["run"]}, told)
        told.restore()
        for name, arguments in (
            ("status", {"stack": TPU, "tunnel": True}),
            ("ask", {"stack": TPU, "prompt": "hello", "max_tokens": 16}),
            ("smoke", {"stack": TPU}),
            ("logs", {"stack": TPU}),
            (
                "bench",
                {"stack": TPU, "concurrency": "1", "input_tokens": "64", "output_tokens": "8", "requests": 4},
            ),
        ):
            found[f"{name} after"] = await finished(client, name, arguments)
        found["kept"] = await client.call_tool("teardown", {"stack": TPU, "keep_bucket": True})
        found["by itself"] = await client.call_tool("teardown", {"stack": TPU})
        kept = ready.resources(TPU, CAPACITY)
        found["gone"] = await finished(client, "teardown", {"stack": TPU})
        return found, waiting, kept

    options = ("--allow", "up,ask,smoke,bench,teardown", "--answer-within", "5")
    asks = person([None, (TPU, False), (TPU, True)], asked, shelf)
    found, waiting, kept = driven(ready, work, *options, elicitation_callback=asks)
    failed = {name: result.content[0].text for name, result in found.items() if getattr(result, "is_error", False)}
    assert set(failed) == {"kept", "by itself"}, failed
    assert "the user declined" in failed["kept"]
    content = {name: result.structured_content for name, result in found.items() if name not in failed}
    assert content["preview"]["document"]["usd_per_hour"] > 0
    assert not content["preview"]["document"]["is_disruptive"]
    assert re.match(r"\d+ of \d+: creat(ing|ed) ", waiting["step"]), waiting
    active = f"up of stack {TPU} runs as {waiting['run']}, call wait."
    assert content["status while it waits"]["active"].startswith(active)
    assert [run["run"] for run in content["status while it waits"]["runs"]] == [waiting["run"]], content
    assert content["up"]["ok"], content["up"]
    (status,) = content["status after"]["document"]["stacks"]
    assert (status["address"]["auth"], status["server"]["running_requests"]) == ("tunnel", 0)
    assert content["ask after"]["document"]["simulated"]
    assert content["ask after"]["document"]["output_tokens"] > 0
    assert content["smoke after"]["ok"], content["smoke after"]
    assert content["logs after"]["document"]["lines"]
    assert_waits(told)
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
            first = (await finished(one, "preview", {"stack": OTHER})).structured_content["plan"]
            second = (await finished(two, "preview", {"stack": OTHER})).structured_content["plan"]
            run = (await waits_for_capacity(one, OTHER, first))["run"]
            locked = await finished(two, "up", {"stack": OTHER, "plan": second})
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
        plan = (await finished(client, "preview", {"stack": OTHER})).structured_content["plan"]
        return await finished(client, "up", {"stack": OTHER, "plan": plan})

    done = driven(ready, goes_on, "--allow", "up")
    assert done.structured_content["ok"], json.dumps(done.structured_content, indent=1)
    assert ready.admin("requests?id=tpu.projects.locations.queuedResources.create")["requests"] == requests_made
