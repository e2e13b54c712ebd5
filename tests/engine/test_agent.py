"""The SDK's own client drives `scripts.agent` over standard input and output, with the real engine on the local cloud."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import anyio
import pytest
from mcp import types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from gemma_serving.cloud.guard import GUARD
from gemma_serving.scripts.agent.codes import CodeShelf
from gemma_serving.scripts.agent.presenting import NOTE
from tests.engine.conftest import CAPACITY, LIMIT_S, PROJECT

SHIPPED, TPU, OTHER, RUN, KEEPS = "tpu-v6e4", "tpu-v6e1", "tpu-v6e1-e4b", "l4-12b-qat", "l4-qat-002"
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


def person(shelf, asked, declined=(), forgets=(), edits=None):
    """A client's way to ask its person, who says yes, and types the name of a stack to delete with its code.

    `declined`, `forgets`: numbers of the questions that they decline, and of those to which they type no code. `edits`: called before each answer.
    """

    async def ask(_context, question):
        asked.append(question.message)
        if edits is not None:
            edits(len(asked))
        if len(asked) in declined:
            return types.ElicitResult(action="decline")
        if "approve" in question.requested_schema["properties"]:
            return types.ElicitResult(action="accept", content={"approve": True})
        name = re.match(r"DELETE stack '(\S+)'\?", question.message)[1]
        code = "" if len(asked) in forgets else shelf.new(name)[1]
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
    """A person says yes to the run, and types the code of the deletion."""
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

    asks = person(shelf, asked)
    found, known = driven(workspace, work, "--allow", "up,ask,stage,teardown", elicitation_callback=asks)
    failed = {name: result.content[0].text for name, result in found.items() if result.is_error}
    assert set(failed) == {"from the hub"}, failed
    assert "does not use staged weights (weights: hub)" in failed["from the hub"]
    content = {name: result.structured_content for name, result in found.items() if name not in failed}
    assert known == (False, True)
    run = "$5.40 per hour. This run costs at most $21.60 for one run of 4 h; then Google deletes the TPU VM."
    assert (content["preview"]["allowed"], content["preview"]["budget"]) == (True, run)
    assert f"{SHIPPED}: requests TPU capacity. New capacity can take hours or never arrive." in asked[0]
    assert asked[0].endswith(f"Cost: {run} Decline to change nothing.")
    assert [question.split()[0] for question in asked] == ["DEPLOY", "DELETE"]
    assert content["up"]["ok"], content["up"]
    assert without_salt(file.read_text()) == text.splitlines()
    assert content["ask"]["document"]["output_tokens"] > 0
    assert content["again"]["allowed"]
    assert "This plan starts no new run." in content["again"]["budget"]
    assert content["after its run"]["allowed"] is False
    assert "This is a second run: the first one is over. " in content["after its run"]["budget"]
    assert content["after its run"]["document"]["headline"] == f"{SHIPPED}: requests TPU capacity"
    assert content["gone"]["document"]["clean"]
    assert existing(workspace) == before


SERVICE = f"v2/projects/{PROJECT}/locations/us-east4/services/gemma-{{}}"
STAGED = {"model": "google/gemma-4-12B-it-qat-w4a16-ct", "revision": "1d2c2d7f2466070e69d6fb3fd5ce9a7d75f2f6ee"}
OF_DOCUMENT_002 = {
    "list_weights": ("list_weights", {}),
    "ask": ("ask", {"prompt": "hello", "system": "Be brief.", "max_tokens": 16}),
    "metrics": ("status", {"wake": True, "metrics": True}),
    "summary": ("logs", {"summarize": True}),
    "smoke": ("smoke", {}),
    "bench": ("bench", {"concurrency": "1", "input_tokens": "64", "output_tokens": "8", "requests": 4}),
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


async def used_as_in_002(client, stack):
    found = {}
    for name, (tool, arguments) in OF_DOCUMENT_002.items():
        found[name] = await finished(client, tool, {**({} if name in WITHOUT_STACK else {"stack": stack}), **arguments})
    return found


def test_a_client_without_forms_has_a_whole_cycle_with_codes_of_the_terminal(workspace):
    """Documents 002 and 003: no bucket, no line of a file, no maxUsd and no guard exists before. The person types the teardown."""
    file, shelf = workspace.settings(RUN), CodeShelf(memory=workspace.memory)
    text, before = file.read_text(), existing(workspace)

    async def approved(client, tool, arguments):
        asked = await finished(client, tool, arguments)
        question, code = shelf.new(RUN)
        assert f"Your client cannot ask the user: {question}" in asked.content[0].text
        return question, await finished(client, tool, {**arguments, "code": code})

    async def work(client):
        asked, found = {}, {}
        asked["stage"], found["stage"] = await approved(client, "stage_weights", {"stack": RUN})
        found["preview"] = await finished(client, "preview", {"stack": RUN})
        plan = found["preview"].structured_content["plan"]
        assert services(workspace) == set()
        asked["up"], found["up"] = await approved(client, "up", {"stack": RUN, "plan": plan})
        found |= await used_as_in_002(client, RUN)
        return asked, found, {tool.name for tool in (await client.list_tools()).tools}

    options = ("--allow", "up,ask,smoke,bench,stage,teardown", "--answer-within", "1")
    asked, found, tools = driven(workspace, work, *options)
    failed = {name: result.content[0].text for name, result in found.items() if result.is_error}
    assert failed == {}
    assert "teardown" not in tools
    content = {name: result.structured_content for name, result in found.items()}
    assert re.search(r"COPY weights .* per hour \(\$0\.22 per month\) of storage", asked["stage"])
    assert asked["up"].endswith(
        "Cost: $1.05 per hour while requests come, no maximum. Without requests, only storage costs money. Decline to change nothing."
    )
    assert content["stage"]["document"]["setting"]["modelRevision"] == STAGED["revision"]
    added = set(file.read_text().splitlines()) - set(text.splitlines())
    keys = {line.split(":")[0].strip().removesuffix(".jinja") for line in added}
    assert keys == {"encryptionsalt", "gemma-serving", "manifest", "templates", "chat_template"}, added
    assert content["preview"]["allowed"], content["preview"]
    assert content["up"]["ok"], content["up"]
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
    assert services(workspace)  # its server is gone since its client disconnected
    workspace.teardown(RUN)
    assert existing(workspace) == before


def services(workspace):
    return {item for item in existing(workspace) if item[0] == "services"}


def test_the_stack_of_document_002_needs_a_limit_and_a_guard_and_each_of_its_questions_can_be_declined(workspace):
    """Its service always runs, so its user adds one line and sets up the guard. A file is edited while the question is open."""
    file, asked, found = workspace.settings(KEEPS), [], {}
    before, shelf, scaling = existing(workspace), CodeShelf(memory=workspace.memory), []
    account = workspace.post(f"iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": GUARD})["name"]

    async def deployed(client, name, **given):
        found[f"preview {name}"] = await finished(client, "preview", {"stack": KEEPS, **given})
        plan = found[f"preview {name}"].structured_content["plan"]
        found[name] = await finished(client, "up", {"stack": KEEPS, "plan": plan, **given})
        return plan

    async def work(client):
        found["declined copy"] = await finished(client, "stage_weights", {"stack": KEEPS})
        found["stage"] = await finished(client, "stage_weights", {"stack": KEEPS})
        found["no limit"] = await finished(client, "preview", {"stack": KEEPS})
        age = "  gemma-serving:maxAge: 7d\n"
        file.write_text(file.read_text().replace(age, f"{age}  gemma-serving:maxUsd: 50\n"))
        plan = await deployed(client, "declined")
        assert services(workspace) == set()
        found["edited"] = await finished(client, "up", {"stack": KEEPS, "plan": plan})
        assert services(workspace) == set()
        await deployed(client, "up")
        found.update(await used_as_in_002(client, KEEPS))
        for low, high in ((1, 2), (0, 1)):
            numbers = [f"cloudRun.minInstances={low}", f"cloudRun.maxInstances={high}"]
            await deployed(client, f"{low} to {high}", set=numbers)
            scaling.append(workspace.get("run", SERVICE.format(KEEPS))["template"]["scaling"].get("maxInstanceCount"))
        found["kept"] = await finished(client, "teardown", {"stack": KEEPS})
        found["gone"] = await finished(client, "teardown", {"stack": KEEPS})

    def edits(number):
        if asked[number - 1].startswith("DEPLOY") and sum(one.startswith("DEPLOY") for one in asked) == 2:
            file.write_text(file.read_text().replace("concurrency: 16", "concurrency: 8"))

    asks = person(shelf, asked, declined=(1, 3, 8), edits=edits)
    options = ("--allow", "up,ask,smoke,bench,stage,scale,teardown", "--answer-within", "1")
    driven(workspace, work, *options, elicitation_callback=asks)
    workspace.call("DELETE", f"iam/v1/{account}")
    failed = {name: result.content[0].text for name, result in found.items() if result.is_error}
    assert set(failed) == {"declined copy", "declined", "edited", "kept"}, failed
    assert "The user declined, so nothing was changed." in failed["declined copy"]
    assert "The user declined, so nothing was changed." in failed["declined"]
    assert "is stale" in failed["edited"]
    assert "the user declined" in failed["kept"]
    content = {name: result.structured_content for name, result in found.items() if name not in failed}
    assert content["no limit"]["allowed"] is False
    assert (
        f"Stack {KEEPS} has no maxUsd. The user can set limits in Pulumi.{KEEPS}.yaml" in content["no limit"]["budget"]
    )
    limit = "maxUsd is $50. A scheduled guard enforces it: the account ci-guard of project local-project shows that one was set up, not that it runs."
    assert f"per hour. {limit} Decline" in asked[2]
    assert asked[2] != asked[4]  # the plan of the edited file
    # The alerts have no recipient, and tokens come faster than a load test believes.
    assert {name for name in OF_DOCUMENT_002 if not content[name]["ok"]} <= {"alerts", "bench"}
    assert content["bench"]["document"]["points"][0]["completed"] == 4
    assert scaling == [2, 1]
    assert content["gone"]["document"]["clean"]
    assert existing(workspace) == before


async def waits_for_capacity(client, stack, plan, told=None):
    """Begin an `up` that finds no capacity, and return its handle when the engine says that it waits."""
    found = await client.call_tool("up", {"stack": stack, "plan": plan}, progress_callback=told)
    with anyio.fail_after(LIMIT_S):
        shown = found.structured_content
        while shown["step"] is None or "WAITING" not in ((shown["says"] or {}).get("text") or ""):
            arguments = {"run": shown["run"], "seconds": 1}
            shown = (await client.call_tool("wait", arguments, progress_callback=told)).structured_content
    return shown


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
    asks = person(shelf, asked, declined=(2,), forgets=(3,))
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
    assert [question.split()[0] for question in asked] == ["DEPLOY", "DELETE", "DELETE", "DELETE"]
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
        options = {"read_timeout_seconds": LIMIT_S, "elicitation_callback": person(None, [])}
        async with Client(server, **options) as one, Client(other, **options) as two:
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
        done = await finished(client, "up", {"stack": OTHER, "plan": plan})
        kill_servers()
        return done

    done = driven(ready, goes_on, "--allow", "up", elicitation_callback=person(None, []))
    assert done.structured_content["ok"], json.dumps(done.structured_content, indent=1)
    assert ready.admin("requests?id=tpu.projects.locations.queuedResources.create")["requests"] == requests_made
    assert capacity_state(ready, OTHER) == "ACTIVE"  # a killed server ends nothing
    ready.advance(5 * 3600)
    assert capacity_state(ready, OTHER) != "ACTIVE"  # Google ends the run


def kill_servers():
    """Kill each server that this process started."""
    for child in Path("/proc/self/task").glob("*/children"):
        for pid in child.read_text().split():
            if b"scripts.agent" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)


def capacity_state(workspace, stack):
    path = f"v2alpha1/projects/{PROJECT}/locations/{ZONE}/queuedResources/gemma-{stack}"
    return workspace.get("tpu", path)["state"]["state"]
