"""Checks of features together: a tool's result fed back, tools and structured output with thinking, and where instructions for a schema belong."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, cast

from contracts.features import ServedFeatures
from loadtest.client.events import first_message
from loadtest.client.openai import ServerAnswer
from scripts.smoke.chat_request import (
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
from scripts.smoke.checks_features import (
    CITY_QUESTION,
    CITY_SCHEMA,
    TOOL_QUESTION,
    UNSUPPORTED,
    WEATHER_TOOL,
    city_fault,
    judged_call,
    response_format,
)
from scripts.smoke.context import CheckContext
from scripts.smoke.results import Outcome, Values, failed, judged, passed, skipped, warned

TEMPERATURE: Final = "23.7"
"""A temperature that no model guesses."""
CODE: Final = "heron"
CODE_RULE: Final = f"Set the field code to the word {CODE}, in lower case."
_TEMPLATE_HINT: Final = "Check `vllm.thinking.template`: the checkpoint's own template can lack tools or thinking."


async def tool_result(context: CheckContext, features: ServedFeatures) -> Outcome:
    """Check that the response to a tool's result contains the number of the result."""
    if not features.tools:
        return skipped("no tool-call parser in the settings")
    function = {"name": "get_weather", "arguments": json.dumps({"location": "Tokyo"})}
    call = {"id": "call-smoke-1", "type": "function", "function": function}
    result = json.dumps({"location": "Tokyo", "temperature_celsius": float(TEMPERATURE), "sky": "clear"})
    messages: list[Message] = [
        user(TOOL_QUESTION),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "name": "get_weather", "content": result},
    ]
    answer = await send(context, request(context, messages, max_tokens=256, extra={"tools": [WEATHER_TOOL]}))
    wanted = f"the tool's {TEMPERATURE} in the response"
    if answer.status != HTTPStatus.OK:
        return failed(
            f"status {answer.status}", wanted=wanted, detail=f"the server rejected the result: {answer.message}"
        )
    content = content_of(answer)
    if TEMPERATURE in content or TEMPERATURE.replace(".", ",") in content:
        return passed(short(content), wanted=wanted)
    if first_message(answer.body).get("tool_calls"):
        detail = f"the model called a tool again, so it did not see the result. {_TEMPLATE_HINT}"
    else:
        detail = f"the response lacks the tool's number, so the model did not see the result. {_TEMPLATE_HINT}"
    return failed(short(content) or "no text", wanted=wanted, detail=detail)


async def tools_with_thinking(context: CheckContext, features: ServedFeatures) -> Outcome:
    """Check that a thinking model calls the tool, with its reasoning in a separate field."""
    if not (features.tools and features.thinking):
        return skipped("needs a tool-call parser and a reasoning parser in the settings")
    extra = {"tools": [WEATHER_TOOL], "tool_choice": "auto"}
    body = request(context, [user(TOOL_QUESTION)], max_tokens=THINKING_TOKENS, thinks=True, extra=extra)
    answer = await send(context, body)
    if answer.status != HTTPStatus.OK:
        return failed(f"status {answer.status}", wanted="a tool call", detail=answer.message)
    message = first_message(answer.body)
    marks = marks_in(str(message.get("content") or ""))
    hint = f"Without thinking, see the check tool call. {_TEMPLATE_HINT}"
    if marks:
        return failed(f"markers {marks} in the response", wanted="a tool call", detail=hint)
    return judged_call(context, message, hint=hint)


async def schema_with_thinking(context: CheckContext, features: ServedFeatures) -> Outcome:
    """Check that a thinking model's response matches the schema, with its reasoning in a separate field."""
    if not features.thinking:
        return skipped("no reasoning parser in the settings")
    extra = {"response_format": response_format("city", CITY_SCHEMA)}
    body = request(context, [user(CITY_QUESTION)], max_tokens=THINKING_TOKENS, thinks=True, extra=extra)
    answer = await send(context, body)
    wanted = "reasoning in its field, JSON that matches the schema"
    if answer.status in UNSUPPORTED:
        return skipped(f"the server does not support it: {answer.message}", wanted=wanted)
    if answer.status != HTTPStatus.OK:
        return failed(f"status {answer.status}", wanted=wanted, detail=answer.message)
    thought = reasoning_of(first_message(answer.body))
    faults = city_fault(answer, body) or ("" if thought else "the response has no reasoning.")
    return judged(f"{len(thought)} characters of reasoning, {short(content_of(answer), 40)}", faults, wanted=wanted)


async def schema_instructions(context: CheckContext, _: ServedFeatures) -> Outcome:
    """Check that an instruction for a field works in the system message, and report whether a description of the schema works.

    vLLM compiles the schema into a grammar. The model sees neither the schema nor its descriptions, so an ignored description is normal.
    """
    described = await _code(context, {"type": "string", "description": CODE_RULE}, system="")
    told = await _code(context, {"type": "string"}, system=CODE_RULE)
    wanted = f"{CODE!r} from the system message"
    for answer in (described, told):
        if answer.status in UNSUPPORTED:
            return skipped(f"the server does not support it: {answer.message}", wanted=wanted)
        if answer.status != HTTPStatus.OK:
            return failed(f"status {answer.status}", wanted=wanted, detail=answer.message)
    in_description, in_system = _code_in(described), _code_in(told)
    values: Values = {"description_followed": in_description == CODE, "system_message_followed": in_system == CODE}
    measured = f"system message: {short(in_system, 20)!r}, description alone: {short(in_description, 20)!r}"
    if _prompt_tokens(told) <= _prompt_tokens(described):
        fault = "the system message does not reach the model: it adds no prompt tokens. Check the chat template."
        return failed(measured, wanted=wanted, detail=fault, values=values)
    if in_system != CODE:
        fault = "the system message reached the model, but the field does not follow it. It can be the model's skill."
        return warned(measured, wanted=wanted, detail=fault, values=values)
    note = (
        ""
        if in_description == CODE
        else "descriptions of fields do not reach the model. Repeat them in the system message."
    )
    return Outcome(verdict="passed", measured=measured, wanted=wanted, detail=note, values=values)


def _prompt_tokens(answer: ServerAnswer) -> int:
    return answer.usage.prompt_tokens if answer.usage is not None else 0


async def _code(context: CheckContext, field: Mapping[str, object], *, system: str) -> ServerAnswer:
    schema = {"type": "object", "properties": {"code": field}, "required": ["code"], "additionalProperties": False}
    messages: list[Message] = [user("Give me the code of this smoke check.")]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return await send(
        context, request(context, messages, max_tokens=64, extra={"response_format": response_format("code", schema)})
    )


def _code_in(answer: ServerAnswer) -> str:
    try:
        found: object = json.loads(content_of(answer))
    except ValueError:
        return content_of(answer)
    return str(cast("dict[str, object]", found).get("code")) if isinstance(found, dict) else content_of(answer)
