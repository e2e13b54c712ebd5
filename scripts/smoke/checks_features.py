"""Checks of reasoning, tool calls, structured output, the system message and the length limit."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, cast

from gemma_serving.contracts.fields import as_mapping
from gemma_serving.scripts.smoke.chat_request import (
    THINKING_TOKENS,
    Message,
    answered,
    content_of,
    marks_in,
    prompt_tokens_of,
    reasoning_of,
    request,
    send,
    shorten,
    user,
)
from gemma_serving.scripts.smoke.context import CheckContext
from gemma_serving.scripts.smoke.results import Outcome, failed, failed_or_passed, passed, skipped, warned
from loadtest.client.events import first_message, was_cut
from loadtest.client.json_values import as_list
from loadtest.client.openai import ServerAnswer

TOOL_QUESTION: Final = "What is the weather in Tokyo today?"
TOOL_HINT: Final = "Check `vllm.enableAutoToolChoice`, `vllm.toolCallParser: gemma4` and the chat template."
TEMPLATE_HINT: Final = "Check `vllm.thinking.template`: the checkpoint's own template can lack tools or thinking."
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
TEMPERATURE: Final = "23.7"
"""A temperature that no model guesses."""
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
    if not context.target.thresholds.expect_reasoning:
        return skipped("no reasoning parser in the settings")
    answer = await answered(context, request(context, [user(SNAIL)], max_tokens=THINKING_TOKENS, thinks=True))
    thought, marks = reasoning_of(answer), marks_in(content_of(answer))
    if thought and not marks:
        return passed(f"{len(thought)} characters of reasoning")
    measured = f"markers {marks} in the response" if thought else "no reasoning"
    return failed(measured, "Check `vllm.reasoningParser: gemma4` and the chat template.")


async def tool_call(context: CheckContext) -> Outcome:
    """Check that the tool is called with valid arguments."""
    if not context.target.thresholds.expect_tool_calls:
        return skipped("no tool-call parser in the settings")
    return await _called(context, max_tokens=512, thinks=False, hint=TOOL_HINT)


async def tools_with_thinking(context: CheckContext) -> Outcome:
    """Check that a thinking model calls the tool, with its reasoning in a separate field."""
    if not (context.features().tools and context.features().thinking):
        return skipped("needs a tool-call parser and a reasoning parser in the settings")
    hint = f"Without thinking, see the check tool call. {TEMPLATE_HINT}"
    return await _called(context, max_tokens=THINKING_TOKENS, thinks=True, hint=hint)


async def _called(context: CheckContext, *, max_tokens: int, thinks: bool, hint: str) -> Outcome:
    context.wanted = 'get_weather({"location": "…Tokyo…"})'
    tools = {"tools": [WEATHER_TOOL], "tool_choice": "auto"}
    body = request(context, [user(TOOL_QUESTION)], max_tokens=max_tokens, thinks=thinks, **tools)
    answer = await answered(context, body)
    calls = as_list(first_message(answer.body).get("tool_calls"))
    marks = marks_in(content_of(answer))
    if thinks and marks:
        return failed(f"markers {marks} in the response", hint)
    if not calls:
        return failed("no tool call", hint)
    function = as_mapping(as_mapping(calls[0]).get("function"))
    name, raw = str(function.get("name")), str(function.get("arguments"))
    measured = f"{name}({raw})"[:60]
    try:
        location = str(json.loads(raw)["location"])
    except (ValueError, KeyError, TypeError):
        return failed(measured, f"the arguments are not an object with a location. {hint}")
    if name != "get_weather":
        return failed(measured, f"the call names another function. {hint}")
    if "tokyo" not in location.lower() and context.simulated is None:
        return warned(measured, "the call is well-formed, but its argument is not the city in the question.")
    return passed(measured)


async def tool_result(context: CheckContext) -> Outcome:
    """Check that the model sees the result of a tool."""
    context.wanted = f"the tool's {TEMPERATURE} in the response"
    if not context.features().tools:
        return skipped("no tool-call parser in the settings")
    function = {"name": "get_weather", "arguments": json.dumps({"location": "Tokyo"})}
    call = {"id": "call-smoke-1", "type": "function", "function": function}
    result = json.dumps({"location": "Tokyo", "temperature_celsius": float(TEMPERATURE), "sky": "clear"})
    messages: list[Message] = [
        user(TOOL_QUESTION),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "name": "get_weather", "content": result},
    ]
    answer = await answered(context, request(context, messages, max_tokens=256, tools=[WEATHER_TOOL]))
    content = content_of(answer)
    if TEMPERATURE in content.replace(",", "."):
        return passed(shorten(content))
    again = first_message(answer.body).get("tool_calls")
    why = "the model called a tool again" if again else "the response lacks the tool's number"
    return failed(shorten(content) or "no text", f"{why}, so the model did not see the result. {TEMPLATE_HINT}")


async def structured_output(context: CheckContext) -> Outcome:
    """Check that a response to a request with a JSON schema is valid."""
    context.wanted = "JSON that matches the schema"
    answer, fault = await _city(context, max_tokens=256, thinks=False)
    return failed_or_passed(shorten(content_of(answer)), fault)


async def schema_with_thinking(context: CheckContext) -> Outcome:
    """Check that a thinking model's response matches the schema, with its reasoning in a separate field."""
    context.wanted = "reasoning in its field, JSON that matches the schema"
    if not context.features().thinking:
        return skipped("no reasoning parser in the settings")
    answer, fault = await _city(context, max_tokens=THINKING_TOKENS, thinks=True)
    thought = reasoning_of(answer)
    fault = fault or ("" if thought else "the response has no reasoning.")
    return failed_or_passed(f"{len(thought)} characters of reasoning, {shorten(content_of(answer), 40)}", fault)


async def _city(context: CheckContext, *, max_tokens: int, thinks: bool) -> tuple[ServerAnswer, str]:
    """Return a response that should be a city as JSON, and its fault or empty."""
    schema = _format({name: {"type": kind} for name, (kind, _) in CITY.items()})
    body = request(context, [user(CITY_QUESTION)], max_tokens=max_tokens, thinks=thinks, response_format=schema)
    answer = await answered(context, body)
    city = _object_in(answer)
    if city is None:
        cut = f"the response was cut off at {body['max_tokens']} tokens (finish_reason length) before its JSON was complete."
        return answer, cut if was_cut(answer.body) else "the response is not JSON."
    types = {name: type(value) for name, value in city.items()}
    if types != {name: kind for name, (_, kind) in CITY.items()}:
        return answer, "the response does not match the schema."
    return answer, ""


def _format(properties: Mapping[str, object]) -> dict[str, object]:
    """Return the `response_format` of a request for a JSON object with these properties."""
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "smoke", "schema": schema, "strict": True}}


def _object_in(answer: ServerAnswer) -> Mapping[str, object] | None:
    try:
        found: object = json.loads(content_of(answer))
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
    found = _object_in(told)
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
