"""Checks of reasoning, tool calls, structured output and the length limit."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, cast

from contracts.fields import as_mapping
from loadtest.client.events import first_message, was_cut
from loadtest.client.json_values import as_list
from loadtest.client.openai import chat_body
from scripts.smoke.context import CheckContext
from scripts.smoke.results import Outcome, failed, judged, passed, skipped, warned

FEATURE_LIMIT_S: Final = 180.0
"""Time for a reasoning response of 1,024 tokens at 6 tokens/s."""
CHANNEL_MARKS: Final = ("<|channel", "<channel|", "<|tool_call", "<tool_call|")
"""Gemma 4's delimiters. In a response's text, they show that a parser is missing."""

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
CITY_SCHEMA: Final[dict[str, object]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string"}, "population": {"type": "integer"}},
    "required": ["city", "country", "population"],
    "additionalProperties": False,
}


def _room(context: CheckContext, wanted: int) -> int:
    """Return the output tokens to request: `wanted`, or fewer if max-model-len is short."""
    length = context.max_model_len or context.target.thresholds.max_model_len
    return wanted if length is None else max(16, min(wanted, length // 2))


async def _send(
    context: CheckContext, prompt: str, *, max_tokens: int, extra: Mapping[str, object]
) -> Mapping[str, object]:
    body = chat_body(context.target.model, prompt, max_tokens=_room(context, max_tokens), extra=extra)
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
        max_tokens=1024,
        extra={"chat_template_kwargs": {"enable_thinking": True}},
    )
    thought = str(message.get("reasoning") or message.get("reasoning_content") or "")
    content = str(message.get("content") or "")
    marks = [mark for mark in CHANNEL_MARKS if mark in content]
    wanted = "a `reasoning` field, no channel markers in the response"
    if thought and not marks:
        return passed(f"{len(thought)} characters of reasoning", wanted=wanted)
    return failed(
        "no reasoning" if not thought else f"markers {', '.join(marks)} in the response",
        wanted=wanted,
        detail="Check `vllm.reasoningParser: gemma4` and the chat template.",
    )


async def tool_call(context: CheckContext) -> Outcome:
    """Check that a question that needs the tool returns a call with valid arguments."""
    if not context.target.thresholds.expect_tool_calls:
        return skipped("no tool-call parser in the settings")
    message = await _send(
        context,
        "What is the weather in Tokyo today?",
        max_tokens=512,
        extra={"tools": [WEATHER_TOOL], "tool_choice": "auto"},
    )
    calls = as_list(message.get("tool_calls"))
    wanted = 'get_weather({"location": "…Tokyo…"})'
    hint = "Check `vllm.enableAutoToolChoice`, `vllm.toolCallParser: gemma4` and the chat template."
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
    response_format = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY_SCHEMA, "strict": True}}
    body = chat_body(
        context.target.model,
        "Tell me about Paris, France.",
        max_tokens=_room(context, 256),
        extra={"response_format": response_format},
    )
    answer = await context.client.post("/v1/chat/completions", body, limit_s=FEATURE_LIMIT_S)
    wanted = "JSON that matches the schema"
    if answer.status in {400, 422, 501}:
        return skipped(
            f"the server does not support it: {answer.message}", measured=f"status {answer.status}", wanted=wanted
        )
    if answer.status != HTTPStatus.OK:
        return failed(f"status {answer.status}", wanted=wanted, detail=answer.message)
    context.count(answer.usage)
    content = str(first_message(answer.body).get("content") or "")
    measured = " ".join(content.split())[:60]
    try:
        found: object = json.loads(content)
    except ValueError:
        cut = f"the response was cut off at {body['max_tokens']} tokens (finish_reason length) before its JSON was complete."
        return failed(measured, wanted=wanted, detail=cut if was_cut(answer.body) else "the response is not JSON.")
    return judged(measured, _city_fault(found), wanted=wanted)


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
