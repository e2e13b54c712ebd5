"""Every broken answer that is drawn fails the check that asks for it, whole or streamed; the right one passes.

The faults are those of the local cloud's model server, which plants them by the same functions.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from gemma_serving.contracts.features import ServedFeatures
from gemma_serving.contracts.outputs import SmokeThresholds
from gemma_serving.scripts.smoke.checks import AGENT_CHECKS, CHECKS, _run_one
from gemma_serving.scripts.smoke.context import CheckContext, SmokeCheck, SmokeTarget
from gemma_serving.scripts.smoke.results import Outcome
from gemma_serving.scripts.stack.access import ServerAccess
from loadtest.client.events import ChatMessage, delta_of, joined
from loadtest.client.openai import ServerAnswer
from localcloud.vllm.broken_answers import KINDS, broken
from tests.laws import examples

EDIT = {
    "path": "README",
    "edits": [{"old_text": "<b>draft</b>", "new_text": "<i>final</i>"}],
    "mode": "exact",
    "limit": 2,
}
FACTS = {"city": "Paris", "country": "France", "population": 2_102_650, "code": "heron"}
JUDGED: Final = (
    *("reasoning", "tool call", "forced tool call", "twenty tools", "tool result", "tools with thinking"),
    *("structured output", "schema with thinking", "schema instructions"),
)
"""Checks whose answers have a right one."""
ALL = {check.name: check for check in (*CHECKS, *AGENT_CHECKS)}
WARNED = {
    ("forced tool call", "no_call"): ("both",),
    ("forced tool call", "call_as_text"): ("both",),
    ("schema instructions", "wrong_value"): ("both", "stream", "whole"),
    ("schema instructions", "truncated"): ("both", "stream", "whole"),
}
"""Warnings: a release that ignores `tool_choice`, and a model that does not follow an instruction that reached it."""
OUTSIDE = {
    ("reasoning", "wrong_value"): ("both", "stream", "whole"),
    ("reasoning", "truncated"): ("both", "stream", "whole"),
    ("tools with thinking", "no_reasoning"): ("both",),
}
"""Faults outside the name of a check: what it says of a snail, a limit in the reasoning, a model that does not think."""
PLACES = ("both", "stream", "whole")


def right(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the right answer to a check's request."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "reasoning": None}
    if body.get("chat_template_kwargs", {}).get("enable_thinking"):
        message["reasoning"] = "The user asks. I answer."
    called = "edit_file" if "edit_file" in str(body["messages"][-1]["content"]) else "get_weather"
    if "tools" in body and body["messages"][-1]["role"] != "tool":
        arguments = EDIT if called == "edit_file" else {"location": "Tokyo"}
        function = {"name": called, "arguments": json.dumps(arguments)}
        message["tool_calls"] = [{"id": "c1", "type": "function", "function": function}]
        return {"message": message, "finish_reason": "tool_calls"}
    message["content"] = "In Tokyo it is 23.7 degrees and clear."
    if "response_format" in body:
        keys = body["response_format"]["json_schema"]["schema"]["properties"]
        message["content"] = json.dumps({key: FACTS[key.partition("_")[0]] for key in keys})
    return {"message": message, "finish_reason": "stop"}


class Answering:
    """A client of a server whose answers have a fault: after a tool's result, or before."""

    def __init__(self, kind: str = "", place: str = "both", seed: int = 0, *, after_result: bool = False) -> None:
        self.fault = (kind, place, seed, after_result)
        self.changed = 0

    def choice(self, body: Mapping[str, Any], *, is_stream: bool) -> dict[str, Any]:
        kind, place, seed, after_result = self.fault
        choice = right(body)
        is_turn = (body["messages"][-1]["role"] == "tool") is after_result
        if not (kind and is_turn and place in ("both", "stream" if is_stream else "whole")):
            return choice
        found = broken(choice, kind, random.Random(seed))  # noqa: S311 - draws cases, not secrets
        self.changed += found is not None and found != choice
        return found or choice

    async def get(self, path: str, *, limit_s: float) -> ServerAnswer:
        return ServerAnswer(status=200, body={"version": "0.26.0"}, headers={}, elapsed_s=0)

    async def post(self, path: str, body: Mapping[str, Any], *, limit_s: float) -> ServerAnswer:
        usage = {"prompt_tokens": 10 * len(body["messages"]), "completion_tokens": 1}
        return ServerAnswer(
            status=200, body={"choices": [self.choice(body, is_stream=False)], "usage": usage}, headers={}, elapsed_s=0
        )

    async def stream(self, body: Mapping[str, Any], *, limit_s: float) -> ChatMessage:
        return joined([delta_of({"choices": [self.choice(body, is_stream=True)]})])


def outcome_of(check: SmokeCheck, client: Answering) -> Outcome:
    target = SmokeTarget(
        model="m", thresholds=SmokeThresholds(startup_budget_s=1), features=ServedFeatures(thinking=True, tools=True)
    )
    context = CheckContext(
        client=client,  # pyright: ignore[reportArgumentType] - the part of a client that these checks use
        access=ServerAccess(base_url="", auth="none"),
        target=target,
        report_progress=lambda _text: None,
    )
    return asyncio.run(_run_one(check, context)).outcome


def drawn(kind: str, seeds: int) -> Iterator[tuple[str, Answering]]:
    """Yield the checks that this fault can break, each with a server that has it."""
    for name in JUDGED:
        turns = (False, True) if name in {"tool result", "tools with thinking"} else (False,)
        for place in PLACES:
            for after_result in turns:
                yield from ((name, Answering(kind, place, seed, after_result=after_result)) for seed in range(seeds))


@pytest.mark.parametrize("name", JUDGED)
def test_the_right_answer_passes(name: str):
    assert outcome_of(ALL[name], Answering()).state == "passed"


@pytest.mark.law
@pytest.mark.parametrize("kind", KINDS)
def test_every_broken_answer_fails(kind: str):
    judged = 0
    for name, client in drawn(kind, examples(test=6, part=20, night=100)):
        outcome = outcome_of(ALL[name], client)
        if client.changed == 0 or client.fault[1] in OUTSIDE.get((name, kind), ()):
            continue
        allowed = {"failed", "warned"} if client.fault[1] in WARNED.get((name, kind), ()) else {"failed"}
        assert outcome.state in allowed, (name, client.fault, outcome)
        judged += 1
    assert judged


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("wrong_type", "the tool-call parser of vLLM 0.26.0 returned a wrong type (location: "),
        (
            "kept_quotes",
            "the tool-call parser of vLLM 0.26.0 kept extra quotes inside a text. Try another vLLM release",
        ),
        ("wrong_value", "the types are right, but not the values: the model"),
        ("text_in_reasoning", "the content is empty and the text is in `reasoning` (vllm#49717)"),
        ("call_twice", "more than the one call"),
        ("role", "the message is not the assistant's"),
    ],
)
def test_a_fault_is_named_with_who_makes_it(kind: str, words: str):
    outcome = outcome_of(ALL["tool call"], Answering(kind))
    assert outcome.detail.startswith(words) or words in outcome.detail, outcome
    assert ("vllm.toolCallParser" in outcome.detail) is (kind in {"call_twice", "role"})


@pytest.mark.parametrize("place", PLACES)
def test_a_text_in_the_reasoning_after_a_tools_result_is_named(place: str):
    """As vllm-project/vllm#49717."""
    outcome = outcome_of(ALL["tools with thinking"], Answering("text_in_reasoning", place, after_result=True))
    assert "the text is in `reasoning`" in outcome.detail
    assert "did not see the result" not in outcome.detail
