"""Checks of reasoning, tool calls, structured output, the system message and the length limit."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final, cast

from gemma_serving.scripts.smoke.chat_request import (
    THINKING_TOKENS,
    Message,
    answered,
    both,
    compared,
    content_of,
    judged,
    judged_in_turn,
    prompt_tokens_of,
    request,
    send,
    shorten,
    user,
    worst,
)
from gemma_serving.scripts.smoke.context import CheckContext
from gemma_serving.scripts.smoke.results import Outcome, failed, failed_or_passed, passed, skipped, warned
from loadtest.client.events import ChatMessage

TOOL_QUESTION: Final = "What is the weather in Tokyo today?"
TOOL_HINT: Final = "Check `vllm.enableAutoToolChoice`, `vllm.toolCallParser: gemma4` and the chat template."
TEMPLATE_HINT: Final = "Check the template (`vllm.thinking.template` or `vllm.chatTemplate`): the checkpoint's own can lack tools or thinking."
WEATHER_CALL: Final = 'get_weather({"location": "…Tokyo…"})'
WEATHER_TOOL: Final[dict[str, object]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a location",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string", "description": "City name"}},
            "required": ["location"],
        },
    },
}
CALLS: Final = 4
"""Calls one after the other in the check of a tool call: a parser's state can break the third (vllm#39214)."""
UNFORCED_QUESTION: Final = "Write one sentence about Tokyo."
"""A question that needs no tool."""
NOT_FORCED: Final = (
    "the server ignores `tool_choice`, as vLLM 0.26.0 and 0.32.0 do with the parser gemma4 (vllm#50477). Use `auto`."
)
TEMPERATURE: Final = "23.7"
"""A temperature that no model guesses."""
WEATHER_RESULT: Final = json.dumps({"location": "Tokyo", "temperature_celsius": float(TEMPERATURE), "sky": "clear"})
CITY_QUESTION: Final = "Tell me about Paris, France."
CITY: Final[Mapping[str, tuple[str, type]]] = {
    "city": ("string", str),
    "country": ("string", str),
    "population": ("integer", int),
}
"""Keys of the schema, with their types in JSON and in Python."""
CODE: Final = "heron"
CODE_RULE: Final = f"Set the field code to the word {CODE}, in lower case."
SNAIL: Final = "A snail climbs 3 feet a day and slides back 2 at night. How many days does it need for a 20-foot well?"
REJECTIONS: Final = frozenset({400, 413, 422})
"""Status of a server that rejects a prompt as too long."""
WORDS: Final = ("river", "stone", "cloud", "green", "seven", "light", "paper", "north")


async def reasoning(context: CheckContext) -> Outcome:
    """Check that reasoning has its own field when thinking is enabled."""
    context.wanted = "a `reasoning` field, no channel markers in the response"
    if not context.features().thinking:
        return skipped("no reasoning parser in the settings")
    body = request(context, [user(SNAIL)], max_tokens=THINKING_TOKENS, thinks=True)
    return await judged(context, body, _has_reasoning, "Check `vllm.reasoningParser: gemma4` and the chat template.")


def _has_reasoning(message: ChatMessage) -> Outcome:
    thought = message.reasoning
    return passed(f"{len(thought)} characters of reasoning") if thought else failed("no reasoning")


async def tool_call(context: CheckContext) -> Outcome:
    """Check that the tool is called with valid arguments, several times in a row."""
    if not context.features().tools:
        return skipped("no tool-call parser in the settings")
    context.wanted = WEATHER_CALL
    body = request(context, [user(TOOL_QUESTION)], max_tokens=512, tools=[WEATHER_TOOL])
    return await judged_in_turn(context, {f"call {number + 1}": body for number in range(CALLS)}, _called, TOOL_HINT)


async def forced_tool_call(context: CheckContext) -> Outcome:
    """Check that `tool_choice` forces a call that the question does not need, by `required` and by the function's name."""
    if not context.features().tools:
        return skipped("no tool-call parser in the settings")
    context.wanted = WEATHER_CALL
    choices = {"required": "required", "by name": {"type": "function", "function": {"name": "get_weather"}}}
    bodies = {
        name: request(context, [user(UNFORCED_QUESTION)], max_tokens=256, tools=[WEATHER_TOOL], tool_choice=choice)
        for name, choice in choices.items()
    }
    return await judged_in_turn(context, bodies, _forced, TOOL_HINT)


def _forced(message: ChatMessage) -> Outcome:
    return _called(message) if message.tool_calls else warned("no tool call", NOT_FORCED)


async def tools_with_thinking(context: CheckContext) -> Outcome:
    """Check a round of the tool with a thinking model, whose reasoning is in a separate field."""
    if not context.features().thinking:
        return skipped("no reasoning parser in the settings")
    return await _round(context, thinks=True)


async def tool_result(context: CheckContext) -> Outcome:
    """Check a round of the tool: its call, its result, and the answer."""
    return await _round(context, thinks=False)


async def _round(context: CheckContext, *, thinks: bool) -> Outcome:
    if not context.features().tools:
        return skipped("no tool-call parser in the settings")
    context.wanted = f"{WEATHER_CALL}, then {TEMPERATURE} in the response"
    body = request(context, (), max_tokens=THINKING_TOKENS if thinks else 512, thinks=thinks, tools=[WEATHER_TOOL])
    question = user(TOOL_QUESTION)
    whole, streamed = await both(context, {**body, "messages": [question]})
    called = compared(whole, streamed, _called, f"{TOOL_HINT} {TEMPLATE_HINT}")
    if called.state == "failed":
        return called
    call = streamed.tool_calls[0]
    function = {"name": call.name, "arguments": call.arguments}
    turn = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call.id, "type": "function", "function": function}],
    }
    result = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": WEATHER_RESULT}
    hint = f"The model did not see the result. {TEMPLATE_HINT}"
    answer = await judged(context, {**body, "messages": [question, turn, result]}, _read, hint)
    return worst(replace(answer, measured=f"after the call: {answer.measured}"), called)


def _called(message: ChatMessage) -> Outcome:
    calls = message.tool_calls
    if not calls:
        return failed("no tool call")
    measured = "; ".join(f"{call.name}({call.arguments})" for call in calls)[:60]
    try:
        locations = [str(json.loads(call.arguments)["location"]).lower() for call in calls]
    except (ValueError, KeyError, TypeError):
        return failed(measured, "the arguments are not an object with a location.")
    if any(call.name != "get_weather" or not call.id for call in calls):
        return failed(measured, "the call names another function, or has no id.")
    if len({call.arguments for call in calls}) < len(calls):
        return failed(measured, "the response has the same call twice.")
    if not all("tokyo" in location for location in locations):
        return warned(measured, "the call is well-formed, but its argument is not the city in the question.")
    return passed(measured)


def _read(message: ChatMessage) -> Outcome:
    measured = shorten(message.text)
    if TEMPERATURE in message.text.replace(",", "."):
        return passed(measured)
    why = "the model called a tool again." if message.tool_calls else "the response lacks the tool's number."
    return failed(measured or "no text", why)


async def structured_output(context: CheckContext) -> Outcome:
    """Check that a response to a request with a JSON schema is valid, alone and with others at the same time."""
    context.wanted = "JSON that matches the schema"
    alone = await judged(context, _city(context, max_tokens=256), _is_city)
    if alone.state != "passed":
        return alone
    pairs = max(2, context.target.thresholds.burst_requests // 2)
    others = (
        judged(context, _city(context, max_tokens=256, ending=end), partial(_is_city, ending=end))
        for end in map("_{}".format, range(pairs))
    )
    parallel = worst(*await asyncio.gather(*others))
    if parallel.state == "passed":
        return alone
    detail = "alone, such a request passes, so structured output breaks under requests in parallel, or takes another's schema."
    return replace(parallel, measured=f"{2 * pairs} in parallel: {parallel.measured}", detail=detail)


async def schema_with_thinking(context: CheckContext) -> Outcome:
    """Check that a thinking model's response matches the schema, with its reasoning in a separate field."""
    context.wanted = "reasoning in its field, JSON that matches the schema"
    if not context.features().thinking:
        return skipped("no reasoning parser in the settings")
    return await judged(context, _city(context, max_tokens=THINKING_TOKENS, thinks=True), _is_reasoned_city)


def _city(context: CheckContext, *, max_tokens: int, thinks: bool = False, ending: str = "") -> dict[str, object]:
    """Return a request for a city as JSON, which its prompt asks for too (vllm#42110). `ending`: of the keys, so schemas differ."""
    properties = {f"{name}{ending}": {"type": kind} for name, (kind, _) in CITY.items()}
    question = f"Return JSON with the keys {', '.join(properties)}. {CITY_QUESTION}"
    return request(context, [user(question)], max_tokens=max_tokens, thinks=thinks, response_format=_format(properties))


def _is_reasoned_city(message: ChatMessage) -> Outcome:
    return _is_city(message) if message.reasoning else failed("no reasoning", "the response has no reasoning.")


def _is_city(message: ChatMessage, ending: str = "") -> Outcome:
    city = _object_in(message.text)
    fault = ""
    if city is None and message.finish_reason == "length":
        fault = "the response was cut off at its token limit (finish_reason length) before its JSON was complete."
    elif city is None:
        fault = "the response is not JSON."
    elif {name: type(value) for name, value in city.items()} != {
        f"{name}{ending}": kind for name, (_, kind) in CITY.items()
    }:
        fault = "the response does not match the schema."
    return failed_or_passed(shorten(message.text), fault)


def _format(properties: Mapping[str, object]) -> dict[str, object]:
    """Return the `response_format` of a request for a JSON object with these properties."""
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "smoke", "schema": schema, "strict": True}}


def _object_in(text: str) -> Mapping[str, object] | None:
    try:
        found: object = json.loads(text)
    except ValueError:
        return None
    return cast("dict[str, object]", found) if isinstance(found, dict) else None


async def schema_instructions(context: CheckContext) -> Outcome:
    """Check that an instruction for a field works in the system message.

    vLLM compiles the schema into a grammar, so the model sees neither the schema nor its descriptions.
    """
    context.features()
    context.wanted = f"{CODE!r} from the system message"
    question = user("Give me the code of this smoke check.")
    system: Message = {"role": "system", "content": CODE_RULE}
    schema = _format({"code": {"type": "string"}})
    plain = await answered(context, request(context, [question], max_tokens=64, response_format=schema))
    told = await answered(context, request(context, [system, question], max_tokens=64, response_format=schema))
    found = _object_in(content_of(told))
    code = content_of(told) if found is None else str(found.get("code"))
    measured = repr(shorten(code, 20))
    if prompt_tokens_of(told) <= prompt_tokens_of(plain):
        fault = (
            "the system message does not reach the model, because it adds no prompt tokens. Check the chat template."
        )
        return failed(measured, fault)
    if code != CODE:
        fault = "the system message reached the model, but the field does not follow it. It can be the model's skill."
        return warned(measured, fault)
    return passed(measured)


async def max_model_len(context: CheckContext) -> Outcome:
    """Check the reported length, and that a longer prompt is rejected."""
    configured = context.target.thresholds.max_model_len
    stated = context.max_model_len
    length = context.length
    if length is None:
        return skipped("neither the server nor the settings report a length")
    context.wanted = f"{configured or length} tokens, longer prompts rejected with 400"
    values = {"stated": stated, "wanted": configured}
    if configured is not None and stated is not None and stated != configured:
        differs = f"the server's length differs by {stated - configured:+d} tokens"
        return failed(f"{stated} tokens", f"{differs}: `vllm.maxModelLen` did not take effect.", values)
    # Each word is a token or more, for any tokenizer that does not merge words.
    prompt = " ".join(WORDS[index % len(WORDS)] for index in range(length + 1))
    answer = await send(context, request(context, [user(prompt)], max_tokens=1))
    measured = f"{stated if stated is not None else 'not reported'}; a longer prompt: {answer.status}"
    if answer.status in REJECTIONS:
        return passed(measured, values)
    message = "" if answer.status == HTTPStatus.OK else answer.message
    return failed(measured, f"a prompt over the limit was not rejected: {message}", values)
