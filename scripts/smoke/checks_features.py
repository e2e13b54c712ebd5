"""Checks of reasoning, tool calls, structured output and the length limit."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, cast

from contracts.fields import as_mapping
from loadtest.client.events import first_message, was_cut
from loadtest.client.json_values import as_list
from loadtest.client.openai import ServerAnswer, chat_body
from scripts.smoke.chat_request import (
    FEATURE_LIMIT_S,
    THINKING_TOKENS,
    Message,
    content_of,
    marks_in,
    reasoning_of,
    request,
    send,
    short,
    user,
)
from scripts.smoke.context import CheckContext
from scripts.smoke.results import Outcome, failed, judged, passed, skipped, warned

TOOL_QUESTION: Final = "What is the weather in Tokyo today?"
TOOL_HINT: Final = "Check `vllm.enableAutoToolChoice`, `vllm.toolCallParser: gemma4` and the chat template."
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
UNSUPPORTED: Final = frozenset({400, 422, 501})
"""Status of a server that does not support structured output."""
CITY_QUESTION: Final = "Tell me about Paris, France."
CITY_SCHEMA: Final[dict[str, object]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string"}, "population": {"type": "integer"}},
    "required": ["city", "country", "population"],
    "additionalProperties": False,
}


async def _send(
    context: CheckContext,
    prompt: str,
    *,
    max_tokens: int,
    thinks: bool = False,
    extra: Mapping[str, object] | None = None,
) -> Message:
    body = request(context, [user(prompt)], max_tokens=max_tokens, thinks=thinks, extra=extra)
    answer = await context.client.chat(body, limit_s=FEATURE_LIMIT_S)
    context.count(answer.usage)
    return first_message(answer.body)


async def reasoning(context: CheckContext) -> Outcome:
    """Check that reasoning has its own field when thinking is enabled."""
    if not context.target.thresholds.expect_reasoning:
        return skipped("no reasoning parser in the settings")
    message = await _send(
        context,
        "A snail climbs 3 feet a day and slides back 2 at night. How many days does it need for a 20-foot well?",
        max_tokens=THINKING_TOKENS,
        thinks=True,
    )
    thought, marks = reasoning_of(message), marks_in(str(message.get("content") or ""))
    wanted = "a `reasoning` field, no channel markers in the response"
    if thought and not marks:
        return passed(f"{len(thought)} characters of reasoning", wanted=wanted)
    return failed(
        "no reasoning" if not thought else f"markers {marks} in the response",
        wanted=wanted,
        detail="Check `vllm.reasoningParser: gemma4` and the chat template.",
    )


async def tool_call(context: CheckContext) -> Outcome:
    """Check that a question that needs the tool returns a call with valid arguments."""
    if not context.target.thresholds.expect_tool_calls:
        return skipped("no tool-call parser in the settings")
    message = await _send(
        context,
        TOOL_QUESTION,
        max_tokens=512,
        extra={"tools": [WEATHER_TOOL], "tool_choice": "auto"},
    )
    return judged_call(context, message)


def judged_call(context: CheckContext, message: Message, *, hint: str = TOOL_HINT) -> Outcome:
    """Return the result for a message that should call get_weather for Tokyo."""
    calls = as_list(message.get("tool_calls"))
    wanted = 'get_weather({"location": "…Tokyo…"})'
    if not calls:
        return failed("no tool call", wanted=wanted, detail=hint)
    function = as_mapping(as_mapping(calls[0]).get("function"))
    name, raw = str(function.get("name")), str(function.get("arguments"))
    measured = f"{name}({raw})"[:60]
    try:
        location = str(json.loads(raw)["location"])
    except (ValueError, KeyError, TypeError):
        return failed(measured, wanted=wanted, detail=f"the arguments are not an object with a location. {hint}")
    if name != "get_weather":
        return failed(measured, wanted=wanted, detail=f"the call names another function. {hint}")
    if "tokyo" not in location.lower() and context.simulated is None:
        return warned(
            measured, wanted=wanted, detail="the call is well-formed, but its argument is not the city in the question."
        )
    return passed(measured, wanted=wanted)


async def structured_output(context: CheckContext) -> Outcome:
    """Check that a response to a request with a JSON schema is valid."""
    body = request(
        context, [user(CITY_QUESTION)], max_tokens=256, extra={"response_format": response_format("city", CITY_SCHEMA)}
    )
    answer = await send(context, body)
    wanted = "JSON that matches the schema"
    if answer.status in UNSUPPORTED:
        return skipped(
            f"the server does not support it: {answer.message}", measured=f"status {answer.status}", wanted=wanted
        )
    if answer.status != HTTPStatus.OK:
        return failed(f"status {answer.status}", wanted=wanted, detail=answer.message)
    return judged(short(content_of(answer)), city_fault(answer, body), wanted=wanted)


def response_format(name: str, schema: Mapping[str, object]) -> dict[str, object]:
    """Return the field of a request for JSON that matches a schema."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}


def city_fault(answer: ServerAnswer, body: Mapping[str, object]) -> str:
    """Return how a response violates CITY_SCHEMA; empty if it is valid."""
    try:
        found: object = json.loads(content_of(answer))
    except ValueError:
        cut = f"the response was cut off at {body['max_tokens']} tokens (finish_reason length) before its JSON was complete."
        return cut if was_cut(answer.body) else "the response is not JSON."
    return _city_fault(found)


def _city_fault(found: object) -> str:
    """Return how a value violates CITY_SCHEMA; empty if it is valid."""
    if not isinstance(found, dict):
        return "the response is not a JSON object."
    city = cast("dict[str, object]", found)
    if set(city) != {"city", "country", "population"}:
        return f"the keys are {sorted(city)}."
    population = city["population"]
    if not isinstance(city["city"], str) or not isinstance(city["country"], str):
        return "city and country must be text."
    if not isinstance(population, int) or isinstance(population, bool):
        return "population must be a whole number."
    return ""


def overlong_prompt(tokens: int) -> str:
    """Return a prompt with more than `tokens` tokens for any tokenizer that does not merge words."""
    words = ("river", "stone", "cloud", "green", "seven", "light", "paper", "north")
    return " ".join(words[index % len(words)] for index in range(tokens + 1))


async def max_model_len(context: CheckContext) -> Outcome:
    """Check that the server reports the configured length and rejects a longer prompt with 400."""
    wanted_len = context.target.thresholds.max_model_len
    stated = context.max_model_len
    length = stated or wanted_len
    if length is None:
        return skipped("neither the server nor the settings report a length")
    wanted = f"{wanted_len if wanted_len is not None else length} tokens, longer prompts rejected with 400"
    values = {"stated": stated, "wanted": wanted_len}
    if wanted_len is not None and stated is not None and stated != wanted_len:
        return failed(
            f"{stated} tokens",
            wanted=wanted,
            detail=f"the server's length differs by {stated - wanted_len:+d} tokens: `vllm.maxModelLen` did not take effect.",
            values=values,
        )
    body = chat_body(context.target.model, overlong_prompt(length), max_tokens=1)
    answer = await context.client.post("/v1/chat/completions", body, limit_s=FEATURE_LIMIT_S)
    status, message = answer.status, "" if answer.status == HTTPStatus.OK else answer.message
    measured = f"{stated if stated is not None else 'not reported'}; a longer prompt: {status}"
    if status in {400, 413, 422}:
        return passed(measured, wanted=wanted, values=values)
    return failed(measured, wanted=wanted, detail=f"a prompt over the limit was not rejected: {message}", values=values)
