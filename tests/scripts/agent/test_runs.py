"""Work that is left: a handle, where it is, its answer, its end. No engine, no cloud; a program of its own where a process is the point."""

import json
import re
from types import SimpleNamespace

import anyio
import pytest
from mcp.client.client import Client

from gemma_serving.scripts.agent import context
from gemma_serving.scripts.agent.permissions import CHANGES
from gemma_serving.scripts.agent.table import TOOLS
from gemma_serving.scripts.agent.tool_server import build
from tests.scripts.agent.conftest import STACK, YES, called, calls_of, keep, lines, typing

ALL = ",".join(CHANGES)


@pytest.fixture
def slow(commands, monkeypatch):
    """Commands wait until they may end; dry runs do not. `there` has those that wait."""
    found = SimpleNamespace(there=[], go=anyio.Event(), holds=None)
    ended = context.run_program

    async def waits(argv, **options):
        words = called(argv)
        is_held = "--dry-run" not in words if found.holds is None else words[1] in found.holds
        if is_held:
            found.there.append(words)
            await found.go.wait()
        return await ended(argv, **options)

    monkeypatch.setattr(context, "run_program", waits)
    return found


def driven(agent, audit, work, **client):
    """Run work with a client of a server that answers at once."""

    async def run():
        with anyio.fail_after(120):
            async with Client(build(agent, audit), **{"elicitation_callback": YES, **client}) as one:
                return await work(one)

    return anyio.run(run)


def left(bench_of, allow=ALL, within_s=0.0):
    agent = bench_of(allow)
    agent.runs.within_s = within_s
    return agent


async def until(condition):
    while not condition():  # noqa: ASYNC110 - a file, or a table
        await anyio.sleep(0.01)


def outcomes(audit, tool):
    return [line["outcome"] for line in lines(audit) if line["tool"] == tool]


def test_a_client_that_gives_up_ends_nothing_and_finds_the_work_in_status(bench_of, audit, slow):
    agent = left(bench_of, within_s=60)
    given = keep(agent)

    async def work(client):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "up", given)
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
    assert outcomes(audit, "up") == ["begun", "asked", "begun", "left", "done"]


def while_up_runs(agent, audit, slow, work, **client):
    """Run work with a client while a stack's `up` runs, and return its handle and what the work returned."""
    given = keep(agent)

    async def run(one):
        handle = (await one.call_tool("up", given)).structured_content["run"]
        await until(lambda: slow.there)
        agent.runs.within_s = 60.0
        return handle, await work(one)

    return driven(agent, audit, run, **client)


@pytest.mark.parametrize("tool", ["up", "teardown", "stage_weights"])
def test_a_second_change_of_a_stack_is_refused_with_the_handle_of_the_first(  # noqa: PLR0917 - fixtures
    bench_of, audit, slow, commands, codes, tool
):
    agent = left(bench_of)

    async def work(client):
        refused = await client.call_tool(tool, keep(agent) if tool == "up" else {"stack": STACK})
        agent.runs.within_s = 0.0
        return refused, await client.call_tool("up", keep(agent, "other"))

    run, (refused, free) = while_up_runs(agent, audit, slow, work, elicitation_callback=typing(codes))
    assert f"up of stack {STACK} is already running as {run}" in refused.content[0].text
    assert free.structured_content["running"]
    assert not any("teardown" in argv for argv in commands.run)


def test_every_answer_about_a_stack_names_the_work_that_changes_it(bench_of, audit, slow, commands):
    """A state between two steps looks like a fault, and a repair of it would disturb the work."""
    commands.documents["logs"], agent = None, left(bench_of)

    async def work(client):
        slow.holds = {"up"}
        found = await client.call_tool("doctor", {"stack": STACK})
        other = await client.call_tool("doctor", {"stack": "other"})
        slow.holds, agent.runs.within_s = {"smoke"}, 0.0
        handle = await client.call_tool("smoke", {"stack": STACK})
        assert handle.structured_content["active"] == found.structured_content["active"]
        agent.runs.within_s, commands.code = 60.0, 2
        return found, other, await client.call_tool("logs", {"stack": STACK})

    run, (found, other, refused) = while_up_runs(agent, audit, slow, work)
    sentence = f"up of stack {STACK} runs as {run}, call wait."
    assert next(iter(found.structured_content)) == "active"
    assert found.structured_content["active"].startswith(sentence)
    assert json.loads(found.content[0].text) == found.structured_content
    assert "active" not in other.structured_content
    assert refused.is_error
    assert refused.content[0].text.startswith(sentence)


def test_a_handle_is_an_answer_of_every_tool(bench_of, audit, slow, codes):
    """A client that reads only the text has the handle too. No schema of an answer is listed, so that a client refuses none."""
    agent = left(bench_of)

    slow.holds = {tool.room for tool in TOOLS}

    async def work(client):
        found, tools = {}, (await client.list_tools()).tools
        for tool in tools:
            if tool.name in {"wait", "cancel"}:
                continue
            given = keep(agent) if tool.name == "up" else calls_of(tool)
            answer = await client.call_tool(tool.name, given)
            assert not answer.is_error, answer
            assert json.loads(answer.content[0].text) == answer.structured_content
            run = answer.structured_content["run"]
            ended = await client.call_tool("cancel", {"run": run})
            assert json.loads(ended.content[0].text) == ended.structured_content
            found[tool.name] = ended.structured_content["tool"]
        return found, {tool.name: tool.output_schema for tool in tools}

    found, listed = driven(agent, audit, work, elicitation_callback=typing(codes))
    assert len(found) == len(listed) - 2
    assert found == {tool: tool for tool in found}
    assert set(listed.values()) == {None}


def test_the_whole_of_an_answer_that_was_cut_is_kept(bench_of, audit, commands):
    rows = [{"n": n, "text": "t" * 200} for n in range(200)]
    commands.documents["doctor"] = {"rows": rows, "checks": rows}

    async def work(client):
        cut = await client.call_tool("doctor", {"stack": STACK})
        handle = re.search(r"run-[0-9a-f]+", cut.structured_content["more"])[0]
        return cut, [await client.call_tool("wait", {"run": handle}) for _ in range(2)]

    agent = bench_of()
    cut, whole = driven(agent, audit, work)
    assert len(cut.content[0].text) < 10_000
    for found in whole:
        assert found.structured_content["document"] == {"rows": rows, "checks": rows}
        assert json.loads(found.content[0].text) == found.structured_content
    assert agent.runs.shown() == []


def test_a_failure_of_work_that_was_left_is_its_answer(bench_of, audit, slow, commands):
    agent = left(bench_of)
    given = keep(agent)
    commands.up_code = 1

    async def work(client):
        runs = [
            (await client.call_tool(tool, arguments)).structured_content["run"]
            for tool, arguments in (("up", given), ("smoke", {"stack": STACK}))
        ]
        await until(lambda: len(slow.there) == len(runs))
        commands.code = 1
        slow.go.set()
        return [await client.call_tool("wait", {"run": run, "seconds": 60}) for run in runs]

    failed, with_document = driven(agent, audit, work)
    assert failed.is_error
    assert failed.content[0].text.startswith("said (Text from")
    assert with_document.structured_content["ok"] is False
    assert [outcomes(audit, tool)[-1] for tool in ("up", "smoke")] == ["failed", "failed"]
    assert outcomes(audit, "wait") == ["begun", "failed", "begun", "done"]


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
