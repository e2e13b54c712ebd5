"""Work that is left: a handle, where it is, its answer, its end. No engine, no cloud; a program of its own where a process is the point."""

import json
import sys
from types import SimpleNamespace

import anyio
import pytest
from mcp.client.client import Client

from gemma_serving.scripts.agent import programs, update_tools
from gemma_serving.scripts.agent.server import build
from tests.scripts.agent.conftest import STACK, answering, keep, lines

ALL = "up,ask,smoke,bench,stage,restart,teardown"
NO_PLAN = f"plan-{'0' * 16}"


@pytest.fixture
def slow(commands, monkeypatch):
    """Commands wait until they may end, and so does the engine's update; its previews do not. `there` has those that wait."""
    found = SimpleNamespace(there=[], go=anyio.Event(), holds=None)
    ended = update_tools.run_program

    async def waits(argv, **options):
        if argv[1] != "preview" and (found.holds is None or argv[1] in found.holds):
            found.there.append(argv)
            await found.go.wait()
        return await ended(argv, **options)

    for module in ("gemma_serving.scripts.agent.context", "gemma_serving.scripts.agent.update_tools"):
        monkeypatch.setattr(f"{module}.run_program", waits)
    return found


def driven(agent, audit, work, **client):
    """Run work with a client of a server that answers at once."""

    async def run():
        with anyio.fail_after(120):
            async with Client(build(agent, audit), **client) as one:
                return await work(one)

    return anyio.run(run)


def left(bench_of, allow=ALL, within_s=0.0, **spending):
    agent = bench_of(allow, **spending)
    agent.runs.within_s = within_s
    return agent


async def until(condition):
    while not condition():  # noqa: ASYNC110 - a file, or a table
        await anyio.sleep(0.01)


def outcomes(audit, tool):
    return [line["outcome"] for line in lines(audit) if line["tool"] == tool]


def test_a_client_that_gives_up_ends_nothing_and_finds_the_work_in_status(bench_of, audit, slow):
    agent = left(bench_of, within_s=60)
    plan_id = keep(agent)

    async def work(client):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "up", {"plan_id": plan_id})
            await until(lambda: slow.there)
            tasks.cancel_scope.cancel()
        await until(lambda: "left" in outcomes(audit, "up"))
        (run,) = agent.runs.shown(STACK)
        async with anyio.create_task_group() as tasks:  # a wait that is given up ends nothing either
            tasks.start_soon(client.call_tool, "wait", {"run": run["run"]})
            await until(lambda: "begun" in outcomes(audit, "wait"))
            tasks.cancel_scope.cancel()
        await until(lambda: "cancelled" in outcomes(audit, "wait"))
        slow.go.set()
        await until(lambda: "done" in outcomes(audit, "up"))  # even if no call waits
        status = (await client.call_tool("status", {"stack": STACK})).structured_content
        other = (await client.call_tool("status", {"stack": "other"})).structured_content
        return status["runs"], other["runs"], await client.call_tool("wait", {"run": run["run"]})

    runs, other, found = driven(agent, audit, work)
    assert [(run["tool"], run["outcome"]) for run in runs] == [("up", "done")]
    assert other == []
    assert found.structured_content["ok"]
    assert outcomes(audit, "up") == ["begun", "left", "done"]


def while_up_runs(agent, audit, slow, work, **client):
    """Run work with a client while a stack's `up` runs, and return its handle and what the work returned."""
    plan_id = keep(agent)

    async def run(one):
        handle = (await one.call_tool("up", {"plan_id": plan_id})).structured_content["run"]
        await until(lambda: slow.there)
        agent.runs.within_s = 60.0
        return handle, await work(one)

    return driven(agent, audit, run, **client)


@pytest.mark.parametrize("tool", ["up", "teardown", "restart"])
def test_a_second_change_of_a_stack_is_refused_with_the_handle_of_the_first(bench_of, audit, slow, commands, tool):
    agent = left(bench_of)

    async def work(client):
        given = {"stack": STACK, **({} if tool == "teardown" else {"plan_id": NO_PLAN})}
        refused = await client.call_tool(tool, {"plan_id": keep(agent)} if tool == "up" else given)
        agent.runs.within_s = 0.0
        return refused, await client.call_tool("up", {"plan_id": keep(agent, "other")})

    person = answering("accept", {"stack_name": STACK, "code": ""})
    run, (refused, free) = while_up_runs(agent, audit, slow, work, elicitation_callback=person)
    assert f"up of stack {STACK} is already running as {run}" in refused.content[0].text
    assert free.structured_content["running"]
    assert not any("teardown" in argv for argv in commands.run)


def test_every_answer_about_a_stack_names_the_work_that_changes_it(bench_of, audit, slow, commands):
    """A state between two steps looks like a fault, and a repair of it would disturb the work."""
    commands.documents["logs"] = None

    async def work(client):
        slow.holds = {"up"}
        found = await client.call_tool("doctor", {"stack": STACK})
        other = await client.call_tool("doctor", {"stack": "other"})
        commands.code = 2
        return found, other, await client.call_tool("logs", {"stack": STACK})

    run, (found, other, refused) = while_up_runs(left(bench_of), audit, slow, work)
    sentence = f"up of stack {STACK} runs as {run}, call wait."
    assert next(iter(found.structured_content)) == "active"
    assert found.structured_content["active"].startswith(sentence)
    assert json.loads(found.content[0].text) == found.structured_content
    assert "active" not in other.structured_content
    assert refused.is_error
    assert refused.content[0].text.startswith(sentence)


def test_a_handle_is_an_answer_of_every_tool_that_can_be_left(bench_of, audit, slow):
    """No schema of an answer is listed, so that a client refuses none. A client that reads only the text has the handle too."""
    agent = left(bench_of)
    calls = {
        "up": {"plan_id": keep(agent)},
        "smoke": {"stack": STACK},
        "benchmark": {"stack": STACK, "name": "left"},
    }

    async def work(client):
        found = {}
        for tool, arguments in calls.items():
            answer = await client.call_tool(tool, arguments)
            assert json.loads(answer.content[0].text) == answer.structured_content
            run = answer.structured_content["run"]
            found[tool] = (await client.call_tool("cancel", {"run": run})).structured_content["tool"]
        return found, {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}

    found, listed = driven(agent, audit, work, elicitation_callback=answering("decline"))
    assert found == {tool: tool for tool in calls}
    assert set(listed.values()) == {None}


def test_a_failure_of_work_that_was_left_is_its_answer(bench_of, audit, slow, commands):
    agent = left(bench_of)
    plan_id = keep(agent)
    commands.up_code = 255

    async def work(client):
        runs = [
            (await client.call_tool(tool, arguments)).structured_content["run"]
            for tool, arguments in (("up", {"plan_id": plan_id}), ("smoke", {"stack": STACK}))
        ]
        await until(lambda: len(slow.there) == len(runs))  # before that, the preview of up fails, not its update
        commands.code, commands.documents = 1, {"smoke": None}
        slow.go.set()
        return [await client.call_tool("wait", {"run": run, "seconds": 60}) for run in runs]

    failed, without_document = driven(agent, audit, work)
    assert failed.structured_content["ok"] is False
    assert without_document.is_error
    assert "said" in without_document.content[0].text
    assert [outcomes(audit, tool)[-1] for tool in ("up", "smoke")] == ["failed", "failed"]
    assert outcomes(audit, "wait") == ["begun", "done", "begun", "failed"]


def test_an_unknown_handle_is_refused_with_those_that_are_known(bench_of, audit, slow):
    agent = left(bench_of)

    async def work(client):
        run = (await client.call_tool("smoke", {"stack": STACK})).structured_content["run"]
        return run, await client.call_tool("wait", {"run": "run-0"}), await client.call_tool("cancel", {"run": "--x"})

    run, unknown, wrong = driven(agent, audit, work)
    assert (
        f"Run 'run-0' not found in this server. Runs: {run} (smoke of stack {STACK}: running)"
        in unknown.content[0].text
    )
    assert wrong.is_error


def test_a_preview_that_hangs_is_stopped_at_its_limit(bench_of, audit, commands, monkeypatch):
    hangs = [sys.executable, "-c", "import time; time.sleep(3600)"]

    async def run(_argv, **options):
        return await programs.run_program(hangs, **{**options, "folder": None})

    monkeypatch.setattr(update_tools, "run_program", run)
    monkeypatch.setattr(update_tools, "PREVIEW_LIMIT_S", 0.2)
    found = driven(bench_of(), audit, lambda client: client.call_tool("preview", {"stack": STACK}))
    assert "did not finish within 0.2 s and was stopped" in found.content[0].text
    assert outcomes(audit, "preview") == ["begun", "failed"]
