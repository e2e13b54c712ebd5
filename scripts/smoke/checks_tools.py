"""Checks for coding agents: rounds of a tool's call, its result and the answer in each API of the server, and twenty tools at once.

What clients of Gemma 4 report: a call without a required argument (vllm#39072), text that repeats without end (vllm#40080), reasoning in
the text after a tool's result (vllm#39885), calls as text in a stream of /v1/responses (vllm#36435).
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, cast

from gemma_serving.planning.data.tables import Table
from gemma_serving.planning.model.support import support_rows, version_key
from gemma_serving.scripts.smoke.chat_request import (
    CUT,
    FEATURE_LIMIT_S,
    THINKING_TOKENS,
    Body,
    Message,
    StatusError,
    both,
    compared,
    judged,
    judged_in_turn,
    made_by,
    request,
    shorten,
    succeeded,
    user,
    worst,
)
from gemma_serving.scripts.smoke.context import CheckContext, NotApplicableError
from gemma_serving.scripts.smoke.results import Outcome, failed, failed_or_passed, passed, skipped, warned
from gemma_serving.scripts.smoke.right_answers import EDIT_QUESTION, EditFile, Expected, Weather, fault_of, tool_of
from loadtest.client.events import DONE, ChatMessage, EventSplitter, ServerError, delta_of, joined
from loadtest.client.json_values import as_list, as_mapping

CHAT: Final = "/v1/chat/completions"
TOOL_QUESTION: Final = "What is the weather in Tokyo today?"
TOOL_HINT: Final = "Check `vllm.enableAutoToolChoice`, `vllm.toolCallParser: gemma4` and the chat template."
TEMPLATE_HINT: Final = "Check the template (`vllm.thinking.template` or `vllm.chatTemplate`): the checkpoint's own can lack tools or thinking."
WEATHER_CALL: Final = 'get_weather({"location": "…Tokyo…"})'
TEMPERATURE: Final = "23.7"
"""A temperature that no model guesses."""
CALLS: Final = 4
"""Calls one after the other in the check of a tool call: a parser's state can break the third (vllm#39214)."""
UNFORCED_QUESTION: Final = "Write one sentence about Tokyo."
"""A question that needs no tool."""
NOT_FORCED: Final = (
    "the server ignores `tool_choice`, as vLLM 0.26.0 and 0.32.0 do with the parser gemma4 (vllm#50477). Use `auto`."
)
WEATHER_RESULT: Final = json.dumps({"location": "Tokyo", "temperature_celsius": float(TEMPERATURE), "sky": "clear"})
RESULT_HINT: Final = f"The model did not see the result. {TEMPLATE_HINT}"
AGENT: Final[Table[Any]] = Table(lambda: json.loads(Path(__file__).with_name("agent.json").read_text(encoding="utf-8")))
"""Tools of a coding agent, and the forms of the server's APIs, which agent.json explains."""


async def _parser(context: CheckContext) -> str:
    """Return the server's parser, for sentences. Raises NotApplicableError if the server parses no calls."""
    if not context.features().tools:
        raise NotApplicableError("no tool-call parser in the settings")
    return await made_by(context, "tool-call parser")


async def tool_call(context: CheckContext) -> Outcome:
    """Check that the tool is called with valid arguments, several times in a row."""
    context.wanted = WEATHER_CALL
    judge = partial(_judge_call, expected=Weather, parser=await _parser(context))
    body = request(context, [user(TOOL_QUESTION)], max_tokens=512, tools=[tool_of(Weather)])
    return await judged_in_turn(context, {f"call {number + 1}": body for number in range(CALLS)}, judge, TOOL_HINT)


async def forced_tool_call(context: CheckContext) -> Outcome:
    """Check that `tool_choice` forces a call that the question does not need, by `required` and by the function's name."""
    context.wanted = WEATHER_CALL
    choices = {"required": "required", "by name": {"type": "function", "function": {"name": Weather.tool}}}
    judge = partial(_judge_forced, parser=await _parser(context))
    tools = [tool_of(Weather)]
    bodies = {
        name: request(context, [user(UNFORCED_QUESTION)], max_tokens=256, tools=tools, tool_choice=choice)
        for name, choice in choices.items()
    }
    return await judged_in_turn(context, bodies, judge, TOOL_HINT)


def _judge_forced(message: ChatMessage, parser: str) -> Outcome:
    is_ignored = message.text and not message.tool_calls
    return warned("no tool call", NOT_FORCED) if is_ignored else _judge_call(message, Weather, parser)


def _judge_call(message: ChatMessage, expected: type[Expected], parser: str) -> Outcome:
    """Judge that the message is one whole call of a tool, with the right arguments."""
    calls = message.tool_calls
    if not calls:
        return failed("no tool call")
    measured = "; ".join(f"{call.name}({call.arguments})" for call in calls)[:60]
    if any(call.name != expected.tool or not call.id for call in calls):
        return failed(measured, "the call names another function, or has no id.")
    if len(calls) > 1:
        return failed(measured, "the response has more than the one call that the question asks for.")
    if message.finish_reason == "length":
        return failed(measured, CUT)
    return failed_or_passed(measured, fault_of(expected, calls[0].arguments, parser))


async def many_tools(context: CheckContext) -> Outcome:
    """Check that the right one of twenty tools is called with the right arguments."""
    context.wanted = "edit_file with the arguments of the question"
    judge = partial(_judge_call, expected=EditFile, parser=await _parser(context))
    tools = [tool_of(EditFile), tool_of(Weather), *AGENT["tools"]]
    return await judged(context, request(context, [user(EDIT_QUESTION)], max_tokens=512, tools=tools), judge, TOOL_HINT)


async def tools_with_thinking(context: CheckContext) -> Outcome:
    """Check a round with a thinking model, whose reasoning is in a separate field."""
    if not context.features().thinking:
        return skipped("no reasoning parser in the settings")
    return await _round(context, CHAT, thinks=True)


async def tool_result(context: CheckContext) -> Outcome:
    """Check a round without thinking."""
    return await _round(context, CHAT, thinks=False)


async def other_api(context: CheckContext, path: str) -> Outcome:
    """Check a round in another API, if the server's release has it."""
    try:
        return await _round(context, path, thinks=context.features().thinking)
    except StatusError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
    release = context.release or ""
    (row,) = (row for row in support_rows() if row.scheme == path)
    key, last = version_key(release), version_key(row.last)
    if key is not None and last is not None and key <= last:
        return skipped(f"not in this release: {row.note}", release)
    where = "Check what is between this client and the server."
    return failed("status 404", f"{row.note}, and the server's release is {release or 'unknown'}. {where}")


async def _round(context: CheckContext, path: str, *, thinks: bool) -> Outcome:
    """Judge the call of a tool, then the answer to its result."""
    context.wanted = f"{WEATHER_CALL}, then {TEMPERATURE} in the response"
    judge = partial(_judge_call, expected=Weather, parser=await _parser(context))
    chat = request(context, (), max_tokens=THINKING_TOKENS, thinks=thinks, tools=[tool_of(Weather)])
    turns = [user(TOOL_QUESTION)]
    whole, streamed = await _send(context, path, chat, turns)
    outcome = compared(whole, streamed, judge, f"{TOOL_HINT} {TEMPLATE_HINT}")
    if outcome.state == "failed":
        return outcome
    call = streamed.tool_calls[0]
    values = {"id": call.id, "name": call.name, "arguments": call.arguments, "input": json.loads(call.arguments)}
    turns += _filled(AGENT[path]["after"], {**values, "result": WEATHER_RESULT})
    answer = compared(*await _send(context, path, chat, turns), _read, RESULT_HINT)
    return worst(replace(answer, measured=f"after the call: {answer.measured}"), outcome)


def _read(message: ChatMessage) -> Outcome:
    measured = shorten(message.text)
    if message.finish_reason == "length":
        return failed(measured, CUT)
    if TEMPERATURE in message.text.replace(",", "."):
        return passed(measured)
    why = "the model called a tool again." if message.tool_calls else "the response lacks the tool's number."
    return failed(measured or "no text", why)


async def _send(context: CheckContext, path: str, chat: Body, turns: list[Message]) -> tuple[ChatMessage, ChatMessage]:
    """Return the response of an API in one piece and as a stream. Raises ServerError."""
    if path == CHAT:
        return await both(context, {**chat, "messages": turns})
    form = AGENT[path]
    body = _filled(form["request"], {**chat, **tool_of(Weather)["function"], "turns": turns})
    bodies = (body, {**body, "stream": True})
    sent = (context.client.post(path, each, limit_s=FEATURE_LIMIT_S) for each in bodies)
    whole, streamed = map(succeeded, await asyncio.gather(*sent))
    payloads = EventSplitter().feed(str(streamed.body).encode())
    events = [as_mapping(json.loads(payload)) for payload in payloads if payload != DONE]
    last = events[-1].get("type") if events else "no event"
    if last != form["last"]:
        raise ServerError(f"the stream of {path} ends with {last} instead of {form['last']}.")
    items = map(as_mapping, as_list(as_mapping(whole.body).get(form["items"])))
    return _message(form["parts"], items), _message(form["parts"], events)


def _message(forms: Mapping[str, Any], parts: Iterable[Mapping[str, object]]) -> ChatMessage:
    """Return the message that the items of a response, or the events of its stream, add up to."""
    deltas: list[object] = [{"role": "assistant"}]  # a call has no role in these APIs
    for part in parts:
        kinds = [str(inner["type"]) for inner in map(as_mapping, part.values()) if "type" in inner]
        form = forms.get(" ".join((str(part.get("type")), *kinds)))
        deltas += [] if form is None else [_filled(form, part)]
    return joined([delta_of({"choices": [{"delta": delta}]}) for delta in deltas])


def _filled(form: Any, values: Mapping[str, object]) -> Any:  # noqa: ANN401 - any JSON
    """Return a form with the value at each place such as `$content.0.text`, and its JSON at `%input`."""
    if isinstance(form, dict):
        return {key: _filled(item, values) for key, item in cast("dict[str, Any]", form).items()}
    if isinstance(form, list):
        return [_filled(item, values) for item in cast("list[Any]", form)]
    if not isinstance(form, str) or not form.startswith(("$", "%")):
        return form
    value: object = values
    for key in form[1:].split("."):
        value = as_list(value)[int(key)] if key.isdigit() else as_mapping(value).get(key)
    return value if form.startswith("$") else json.dumps(value)
