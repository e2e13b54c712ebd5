"""A person's yes to `up`, a restart and a copy of weights: by a form of either kind of protocol, or by a code of their terminal. No engine, no cloud."""

import json
import re

import anyio
import pytest
from mcp import types
from mcp.client.client import Client

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine.exported_state import deployment_of
from gemma_serving.engine.state import of_deployment
from gemma_serving.scripts.agent import approvals, consent, runs
from gemma_serving.scripts.agent.tool_server import build
from tests.scripts.agent.conftest import BOUND, ROOT, STACK, YES, answering, call, keep, lines

MODES = ["legacy", "auto"]
"""The server sends the question during the call, or answers the call with it."""
CODE = re.compile(
    r"Without a form, the user runs `gemma agent code l4-qat` in their own terminal, in \S+, and tells you the code: pass it as `code`\."
)


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


@pytest.fixture
def agent(bench_of):
    return bench_of("up,restart,stage")


def texts(found):
    return found.content[0].text


def up(agent, audit, given, person=YES, **client):
    return anyio.run(lambda: call(build(agent, audit), "up", given, elicitation_callback=person, **client))


def test_the_question_names_the_stack_the_plan_its_effect_the_price_and_its_maximum(agent, audit, commands, mode):
    asked, given = [], keep(agent)

    async def person(_context, question):
        assert commands.run == []
        asked.append((question.message, question.requested_schema["required"]))
        return types.ElicitResult(action="accept", content={"approve": True})

    assert up(agent, audit, given, person, mode=mode).structured_content["ok"]
    effect = f"{STACK}: creates the service. Cost: {BOUND} Decline to change nothing."
    assert asked == [(f"DEPLOY stack '{STACK}'? An assistant requests {given['plan']}. {effect}", ["approve"])]


@pytest.mark.parametrize(
    ("action", "content"),
    [("decline", None), ("cancel", None), ("accept", {"approve": False}), ("accept", {}), ("accept", None)],
)
def test_nothing_runs_without_a_yes_and_the_plan_stays_valid(agent, audit, commands, mode, action, content):  # noqa: PLR0917 - a table
    given = keep(agent)
    refused = up(agent, audit, given, answering(action, content), mode=mode)
    assert refused.is_error
    assert "changed" in texts(refused)
    assert "gemma agent code" in texts(refused)
    assert commands.run == []
    assert lines(audit)[-1]["outcome"] == "refused"
    assert up(agent, audit, given, mode=mode).structured_content["ok"]


def test_a_client_that_fails_to_ask_is_named_with_the_code(agent, audit, commands):
    async def broken(_context, _question):
        return types.ErrorData(code=-32601, message="no form here")

    given = keep(agent)
    refused = up(agent, audit, given, broken, mode="legacy")
    assert texts(refused).startswith(
        "The client did not ask the user: no form here. Nothing was changed. Without a form, the user runs"
    )
    assert commands.run == []
    assert given["plan"] in agent.shown


def test_a_question_that_nobody_answers_ends_and_the_plan_stays_valid(agent, audit, commands, monkeypatch):
    monkeypatch.setattr(runs, "QUESTION_S", 0.2)

    async def silent(_context, _question):
        await anyio.sleep(60)

    given = keep(agent)
    refused = up(agent, audit, given, silent, mode="legacy")
    said = f"The user did not answer, so up of stack {STACK} changed nothing, and its plan stays valid. Call up again when they can answer."
    assert texts(refused) == said
    assert commands.run == []
    assert lines(audit)[-1]["outcome"] == "cancelled"
    assert up(agent, audit, given).structured_content["ok"]


def test_a_call_that_the_client_gives_up_while_it_asks_runs_nothing_and_status_says_so(agent, audit, commands):
    given, asked = keep(agent), anyio.Event()

    async def silent(_context, _question):
        asked.set()
        await anyio.sleep(60)

    async def work():
        async with Client(build(agent, audit), elicitation_callback=silent, mode="legacy") as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "up", given)
                await asked.wait()
                tasks.cancel_scope.cancel()
            with anyio.fail_after(60):
                while lines(audit)[-1]["outcome"] != "cancelled":  # noqa: ASYNC110 - a file
                    await anyio.sleep(0.01)
            status = await client.call_tool("status", {"stack": STACK})
            (run,) = status.structured_content["runs"]
            return run, await client.call_tool("wait", {"run": run["run"]})

    run, waited = anyio.run(work)
    assert (run["outcome"], commands.run[0][1]) == ("cancelled", "status")
    assert run["next"].startswith(
        f"The user did not answer, so up of stack {STACK} changed nothing, and its plan stays valid."
    )
    assert waited.is_error
    assert texts(waited) == run["next"]
    assert len(commands.run) == 1
    assert up(agent, audit, given).structured_content["ok"]


def test_of_two_questions_at_once_each_runs_once(agent, audit, commands, mode):
    """One plan is asked about twice, and another stack's beside it: all three are answered with yes."""
    one, other, open_questions = keep(agent), keep(agent, "other"), []

    async def person(_context, question):
        open_questions.append(question.message)
        with anyio.fail_after(60):
            while len(open_questions) < 3:  # noqa: ASYNC110 - a list
                await anyio.sleep(0.01)
        return types.ElicitResult(action="accept", content={"approve": True})

    async def work():
        found = []
        async with (
            Client(build(agent, audit), elicitation_callback=person, mode=mode) as client,
            anyio.create_task_group() as tasks,
        ):

            async def ask(given):
                found.append(await client.call_tool("up", given))

            for given in (one, one, other):
                tasks.start_soon(ask, given)
        return found

    found = anyio.run(work)
    assert sorted(answer.is_error for answer in found) == [False, False, True]
    (refused,) = [texts(answer) for answer in found if answer.is_error]
    assert f"up of stack {STACK} is already running" in refused or "or was already run" in refused
    assert sorted(argv[3] for argv in commands.run) == [STACK, "other"]


def test_what_changes_while_the_question_is_open_is_not_approved(agent, audit, commands, monkeypatch, mode):
    """Such as a first run that ends, so that the plan would start a second one. The newer protocol asks again."""
    given, asked = keep(agent), []

    async def person(_context, question):
        asked.append(question.message)
        monkeypatch.setattr(approvals, "require_bound", lambda *_: "$2.00 per hour. Another maximum.")
        return types.ElicitResult(action="accept" if len(asked) == 1 else "decline", content={"approve": True})

    refused = up(agent, audit, given, person, mode=mode)
    assert refused.is_error
    assert commands.run == []
    if mode == "legacy":
        assert texts(refused) == "The question changed while it was open, so nothing was changed. Call up again."
    else:
        assert "Another maximum." in asked[1]


def test_a_file_that_changes_while_the_question_is_open_is_refused_by_the_command(agent, audit, commands, mode):
    given = keep(agent)

    async def person(_context, _question):
        commands.up_code, commands.said = 2, "plan-x is stale."
        return types.ElicitResult(action="accept", content={"approve": True})

    assert texts(up(agent, audit, given, person, mode=mode)) == "plan-x is stale."
    assert given["plan"] in agent.shown


# Without a form.


def by_code(agent, audit, tool, given):
    return anyio.run(lambda: call(build(agent, audit), tool, given, elicitation_callback=None))


@pytest.mark.parametrize("tool", ["up", "stage_weights"])
def test_without_a_form_the_code_of_the_terminal_approves_exactly_the_question_once(
    agent, audit, commands, codes, tool
):
    given = keep(agent) if tool == "up" else {"stack": STACK}
    refused = texts(by_code(agent, audit, tool, given))
    assert CODE.search(refused)
    question, code = codes.new(STACK)
    assert question in refused
    assert commands.run == []
    done = by_code(agent, audit, tool, {**given, "code": code})
    assert not done.is_error, done
    assert len(commands.run) == 1
    assert code not in audit.path.read_text()
    assert code not in str(commands.run)
    again = by_code(agent, audit, tool, {**(keep(agent) if tool == "up" else given), "code": code})
    assert texts(again).startswith(
        "The code does not belong to this question, was used, or is older than 10 minutes. Nothing was changed. "
    )
    assert len(commands.run) == 1


def test_a_code_approves_no_other_question(agent, audit, commands, codes, monkeypatch):
    """The plan's cost changes, another stack is deployed, weights are copied, or the code is a guess."""
    one, other = keep(agent), keep(agent, "other")

    def code():
        by_code(agent, audit, "up", one)
        return codes.new(STACK)[1]

    for tool, given in (("up", other), ("stage_weights", {"stack": STACK})):
        assert "does not belong to this question" in texts(by_code(agent, audit, tool, {**given, "code": code()}))
    assert "does not belong" in texts(by_code(agent, audit, "up", {**one, "code": "AAAA-AAAA"}))
    right = code()
    assert "does not belong" in texts(
        by_code(agent, audit, "up", {**one, "code": f"{right[:-1]}{'A' if right[-1] != 'A' else 'B'}"})
    )
    assert "does not belong" in texts(by_code(agent, audit, "up", {**one, "code": right}))
    right = code()
    monkeypatch.setattr(approvals, "require_bound", lambda *_: "$9.00 per hour.")
    assert "does not belong" in texts(by_code(agent, audit, "up", {**one, "code": right}))
    assert commands.run == []


def test_the_newest_question_has_the_code_and_keeps_it_when_it_is_asked_again(codes):
    for question in ("one", "two"):
        codes.ask(STACK, question)
        shown, code = codes.new(STACK)
        assert shown == question
    codes.ask(STACK, "two")
    assert codes.take(STACK, code, "two")
    with pytest.raises(CommandRefusedError, match=r"No assistant asked about stack l4-qat here in the last 10 minutes"):
        codes.new(STACK)


def test_a_form_that_is_declined_unseen_can_be_approved_by_a_code(agent, audit, commands, codes):
    """Some clients decline forms that they do not show. A question that is asked again keeps the code that the user read."""
    given = keep(agent)
    assert CODE.search(texts(up(agent, audit, given, answering("decline"))))
    _, code = codes.new(STACK)
    assert up(agent, audit, given, answering("decline")).is_error
    assert up(agent, audit, {**given, "code": code}, answering("decline")).structured_content["ok"]


def test_the_effect_and_the_price_of_the_question_are_of_the_preview(agent, audit, commands, codes):
    commands.usd_per_hour = 3.5
    seen = anyio.run(lambda: call(build(agent, audit), "preview", {"stack": STACK})).structured_content
    assert seen["budget"] == "$3.5 per hour."
    by_code(agent, audit, "up", {"stack": STACK, "plan": seen["plan"]})
    assert f"{STACK}: changes. Requests fail for 8 min. Cost: $3.5 per hour. Decline" in codes.new(STACK)[0]


def test_a_restart_is_asked_with_what_it_interrupts_and_the_price_that_stays(agent, audit, commands, mode, monkeypatch):
    asked = []

    async def person(_context, question):
        asked.append(question.message)
        return types.ElicitResult(action="accept", content={"approve": True})

    document = json.loads((ROOT / "tests" / "fixtures" / "state" / "tpu-v6e4.json").read_text())
    deployed = of_deployment(STACK, deployment_of(STACK, document))
    monkeypatch.setattr(approvals, "read", lambda _: deployed)
    server = build(agent, audit)
    seen = anyio.run(lambda: call(server, "preview", {"stack": STACK, "restart": True})).structured_content
    given = {"stack": STACK, "restart": True, "plan": seen["plan"]}
    assert up(agent, audit, given, person, mode=mode).structured_content["ok"]
    (question,) = asked
    effect = f"{STACK}: changes. Requests fail for 8 min. Cost: $5.40/h until "
    assert question.startswith(f"RESTART the server of stack '{STACK}'? An assistant requests {seen['plan']}. {effect}")
    assert question.endswith(", when Google deletes the VM. A restart changes no price. Decline to change nothing.")


def test_a_copy_of_weights_is_asked_with_its_source_its_bucket_and_its_price(agent, audit, commands, mode):
    asked = []

    async def person(_context, question):
        asked.append(question.message)
        return types.ElicitResult(action="decline")

    refused = anyio.run(
        lambda: call(build(agent, audit), "stage_weights", {"stack": STACK}, elicitation_callback=person, mode=mode)
    )
    assert "The user declined, so nothing was changed." in texts(refused)
    assert commands.run == []
    (question,) = asked
    for part in (
        "It copies xbill9/gemma-4-26B",
        "from the Hugging Face hub to bucket local-project-gemma-l4-qat-models",
        "Pulumi.l4-qat.yaml",
    ):
        assert part in question
    assert re.search(
        r"Cost: \$0\.000\d per hour \(\$0\.3\d per month\) of storage until the bucket is deleted, no maximum\.",
        question,
    ), question


def test_nobody_is_asked_about_what_is_refused(agent, audit, commands, bench_of, monkeypatch):
    asked = []

    async def person(_context, question):
        asked.append(question.message)
        return types.ElicitResult(action="accept", content={"approve": True})

    def refused(tool, given, allow="up,stage"):
        of = bench_of(allow)
        of.shown.update(agent.shown)
        found = anyio.run(lambda: call(build(of, audit), tool, given, elicitation_callback=person))
        assert found.is_error
        return texts(found)

    given = keep(agent)
    assert "is not a plan for these arguments" in refused("up", {**given, "refresh": True})
    assert "is not allowed to up" in refused("up", given, "restart")
    assert "stack is '../x'" in refused("stage_weights", {"stack": "../x"})
    assert "does not use staged weights (weights: hub)" in refused("stage_weights", {"stack": "tpu-v6e1"})
    assert "which the user who started this server did not allow" in refused(
        "stage_weights", {"stack": STACK, "origin": "gs://other/x"}
    )
    monkeypatch.setattr(approvals, "require_bound", raising)
    assert refused("up", given) == "No maxUsd."
    assert (asked, commands.run) == ([], [])
    assert consent.code_shelf().memory.stacks("code-") == []


def raising(*_):
    raise CommandRefusedError("No maxUsd.")
