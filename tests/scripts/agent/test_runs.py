"""Work that is left: a handle, where it is, its answer, its end. No engine, no cloud; a program of its own where a process is the point."""

import re
import sys
from types import SimpleNamespace

import anyio
import pytest
from mcp import types
from mcp.client.client import Client

from scripts.agent import programs, update_tools
from scripts.agent.runs import Runs
from scripts.agent.server import build
from tests.scripts.agent.conftest import STACK, answering, keep, lines

ALL = "up,smoke,bench,stage,rollout,restart,recover,teardown"
NO_PLAN = f"plan-{'0' * 16}"
STOPPABLE = """
import signal, sys, time
def told(*_):
    open(sys.argv[1], "a").write("SIGINT ended")
    sys.exit(130)
signal.signal(signal.SIGINT, told)
open(sys.argv[1], "w").write("works ")
print("loading the weights", file=sys.stderr, flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def slow(commands, monkeypatch):
    """Commands wait until they may end, and so does the engine's update; its previews do not. `there` has those that wait."""
    found = SimpleNamespace(there=[], go=anyio.Event())
    ended = update_tools.run_program

    async def waits(argv, **options):
        if argv[1] != "preview":
            found.there.append(argv)
            await found.go.wait()
        return await ended(argv, **options)

    for module in ("scripts.agent.context", "scripts.agent.update_tools"):
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


def test_up_is_left_with_a_handle_and_its_answer_is_the_one_that_it_would_have_given(bench_of, audit, slow):
    agent = left(bench_of)
    plan_id = keep(agent)

    async def work(client):
        handle = (await client.call_tool("up", {"plan_id": plan_id})).structured_content
        await until(lambda: slow.there)
        told = []

        async def hear(*progress):
            told.append(progress)

        still = (
            await client.call_tool("wait", {"run": handle["run"], "seconds": 0.05}, progress_callback=hear)
        ).structured_content
        held = agent.spending.sentence()
        slow.go.set()
        ended = await client.call_tool("wait", {"run": handle["run"], "seconds": 60})
        again = await client.call_tool("wait", {"run": handle["run"]})
        return handle, still, held, ended, again, told

    handle, still, held, ended, again, told = driven(agent, audit, work)
    assert re.fullmatch("run-[0-9a-f]{8}", handle["run"])
    assert (handle["running"], handle["tool"], still["outcome"]) == (True, "up", "running")
    assert still["stack"] == STACK
    assert "wait" in still["next"]
    assert still["says"]["text"] == "comparing with the plan"
    assert told[0][2] == "comparing with the plan"
    assert held.startswith("$2.00 of $10.00 per hour is counted")
    assert ended.structured_content == again.structured_content
    assert (ended.structured_content["ok"], ended.structured_content["plan_id"]) == (True, plan_id)
    assert outcomes(audit, "up") == ["begun", "left", "done"]
    assert len({line["call"] for line in lines(audit) if line["tool"] == "up"}) == 1
    paid = [line for line in lines(audit) if line["outcome"] != "begun" and line["usd_per_hour"]]
    assert [line["tool"] for line in paid] == ["up"]  # what a run costs is recorded once


def test_a_call_that_ends_in_time_has_no_handle(bench_of, audit, commands):
    agent = left(bench_of, within_s=60)
    plan_id = keep(agent)
    found = driven(agent, audit, lambda client: client.call_tool("up", {"plan_id": plan_id}))
    assert found.structured_content["ok"]
    assert agent.runs.shown() == []
    assert outcomes(audit, "up") == ["begun", "done"]


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


def test_cancel_stops_the_program_as_ctrl_c_does(bench_of, audit, monkeypatch, tmp_path):
    file = tmp_path / "told"
    argv = [sys.executable, "-c", STOPPABLE, str(file)]
    monkeypatch.setattr("scripts.agent.context.script", lambda *_: argv)
    agent = left(bench_of, "smoke")

    async def work(client):
        run = (await client.call_tool("smoke", {"stack": STACK})).structured_content["run"]
        await until(lambda: any(one["says"] for one in agent.runs.shown()))
        says = agent.runs.shown()[0]["says"]["text"]
        agent.runs.within_s = 60.0
        return says, await client.call_tool("cancel", {"run": run}), await client.call_tool("wait", {"run": run})

    says, ended, waited = driven(agent, audit, work)
    assert says == "loading the weights"
    assert file.read_text() == "works SIGINT ended"
    assert (ended.structured_content["outcome"], ended.structured_content["running"]) == ("cancelled", False)
    assert waited.structured_content == ended.structured_content
    assert agent.runs.shown() == []  # its end was read
    assert outcomes(audit, "smoke") == ["begun", "left", "cancelled"]
    assert lines(audit)[-1]["tool"] == "wait"
    assert [line["detail"] for line in lines(audit) if line["outcome"] == "cancelled"] == ["cancel"]


def while_up_runs(agent, audit, slow, work, **client):
    """Run work with a client while a stack's `up` runs, and return its handle and what the work returned."""
    plan_id = keep(agent)

    async def run(one):
        handle = (await one.call_tool("up", {"plan_id": plan_id})).structured_content["run"]
        await until(lambda: slow.there)
        agent.runs.within_s = 60.0
        return handle, await work(one)

    return driven(agent, audit, run, **client)


def test_a_second_up_of_a_stack_is_refused_with_the_handle_of_the_first(bench_of, audit, slow):
    agent = left(bench_of)
    other = keep(agent, "other")

    async def work(client):
        second = keep(agent)
        refused = await client.call_tool("up", {"plan_id": second})
        agent.runs.within_s = 0.0
        return refused, await client.call_tool("up", {"plan_id": other})

    run, (refused, free) = while_up_runs(agent, audit, slow, work)
    assert refused.is_error
    assert f"up of stack {STACK} is already running as {run}" in refused.content[0].text
    assert free.structured_content["running"]


def test_a_teardown_is_refused_while_up_runs(bench_of, audit, slow, commands):
    agent = left(bench_of)
    run, refused = while_up_runs(
        agent,
        audit,
        slow,
        lambda client: client.call_tool("teardown", {"stack": STACK}),
        elicitation_callback=answering("accept", {"stack_name": STACK, "code": ""}),
    )
    assert f"up of stack {STACK} is already running as {run}" in refused.content[0].text
    assert not any("scripts.teardown" in argv for argv in commands.run)


@pytest.mark.parametrize(("tool", "more"), [("rollout", {"to": "a-1"}), ("recover", {})])
def test_a_rollout_restart_or_recovery_is_refused_while_up_runs(bench_of, audit, slow, tool, more):
    agent = left(bench_of)
    run, refused = while_up_runs(
        agent, audit, slow, lambda client: client.call_tool(tool, {"stack": STACK, "plan_id": NO_PLAN, **more})
    )
    assert f"up of stack {STACK} is already running as {run}" in refused.content[0].text


def test_a_handle_is_an_answer_of_every_tool_that_can_be_left(bench_of, audit, slow):
    """No schema of an answer is listed, so that a client refuses none."""
    agent = left(bench_of)
    calls = {
        "up": {"plan_id": keep(agent)},
        "smoke": {"stack": STACK},
        "benchmark": {"stack": STACK, "name": "left"},
    }

    async def work(client):
        found = {}
        for tool, arguments in calls.items():
            run = (await client.call_tool(tool, arguments)).structured_content["run"]
            found[tool] = (await client.call_tool("cancel", {"run": run})).structured_content["tool"]
        return found, {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}

    found, listed = driven(agent, audit, work, elicitation_callback=answering("decline"))
    assert found == {tool: tool for tool in calls}
    assert set(listed.values()) == {None}


def test_a_person_who_takes_time_to_answer_is_waited_for(bench_of, audit, slow, codes):
    """In the older versions of the protocol, the question is asked while the call runs."""
    agent = left(bench_of)
    slow.go.set()

    async def late(_context, _question):
        await anyio.sleep(0.3)
        assert agent.runs.shown() == []  # nothing has begun that could be left
        return types.ElicitResult(action="accept", content={"stack_name": STACK, "code": codes.new(STACK).keeps_bucket})

    async def work(client):
        found = await client.call_tool("teardown", {"stack": STACK})
        run = found.structured_content.get("run")
        return (await client.call_tool("wait", {"run": run, "seconds": 60})) if run else found

    found = driven(agent, audit, work, elicitation_callback=late, mode="legacy")
    assert found.structured_content["ok"]
    assert outcomes(audit, "teardown")[-1] == "done"


def test_the_end_of_the_server_ends_what_runs_and_says_so(bench_of, audit, slow, capsys):
    agent = left(bench_of)

    async def work(client):
        return (await client.call_tool("smoke", {"stack": STACK})).structured_content["run"]

    run = driven(agent, audit, work)
    assert f"stopping smoke of stack {STACK} ({run}) because the server exits" in capsys.readouterr().err
    assert outcomes(audit, "smoke") == ["begun", "left", "cancelled"]
    assert lines(audit)[-1]["detail"] == "the server exited"


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


TOLD = (
    ("comparing with the plan", None),
    ("1 of 2: creating b", "1 of 2: creating b"),
    ("b: waits", "1 of 2: creating b"),
    ("2 of 2: creating c", "2 of 2: creating c"),
    ("1 of 2: created b", "2 of 2: creating c"),
)


def test_where_it_is_names_the_newest_step_and_what_was_said_since(monkeypatch):
    now, seen = [0.0], []
    monkeypatch.setattr("scripts.agent.runs.time", SimpleNamespace(monotonic=lambda: now[0]))

    async def work():
        run = Runs().begin("up", STACK)
        for text, step in TOLD:
            now[0] += 5.0
            run.note(0.0, 2.0, text, step)
            shown = run.shown()
            seen.append((shown["step"], shown["says"]["text"] if shown["says"] else None))
        now[0] += 60.0
        return run.shown()

    last = anyio.run(work)
    assert seen == [
        (None, "comparing with the plan"),
        ("1 of 2: creating b", None),
        ("1 of 2: creating b", "b: waits"),
        ("2 of 2: creating c", None),
        ("2 of 2: creating c", "1 of 2: created b"),
    ]
    assert (last["says_for_s"], last["elapsed_s"]) == (60.0, 85.0)


def test_a_preview_that_hangs_is_stopped_at_its_limit(bench_of, audit, commands, monkeypatch):
    hangs = [sys.executable, "-c", "import time; time.sleep(3600)"]

    async def run(_argv, **options):
        return await programs.run_program(hangs, **{**options, "folder": None})

    monkeypatch.setattr(update_tools, "run_program", run)
    monkeypatch.setattr(update_tools, "PREVIEW_LIMIT_S", 0.2)
    found = driven(bench_of(), audit, lambda client: client.call_tool("preview", {"stack": STACK}))
    assert "did not finish within 0.2 s and was stopped" in found.content[0].text
    assert outcomes(audit, "preview") == ["begun", "failed"]
