"""Checks of reasoning, structured output, the system message and the length limit."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final

from gemma_serving.scripts.smoke.chat_request import (
    CUT,
    THINKING_TOKENS,
    Message,
    answered,
    judged,
    made_by,
    prompt_tokens_of,
    request,
    send,
    shorten,
    user,
    worst,
)
from gemma_serving.scripts.smoke.context import CheckContext
from gemma_serving.scripts.smoke.results import Outcome, failed, failed_or_passed, passed, skipped, warned
from gemma_serving.scripts.smoke.right_answers import CODE, OTHER_RELEASE, City, Code, fault_of, schema_of, with_ending
from loadtest.client.events import ChatMessage

CITY_QUESTION: Final = "Tell me about Paris, France."
GRAMMAR: Final = "structured output"
"""Part of the server that makes JSON, for sentences."""
CODE_RULE: Final = f"Set the field code to the word {CODE}, in lower case."
FOLLOWS_NOT: Final = (
    "the system message reached the model, but the field does not follow it. It can be the model's skill."
)
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


async def structured_output(context: CheckContext) -> Outcome:
    """Check that a response to a request with a JSON schema is valid, alone and with others at the same time."""
    context.wanted = "JSON that matches the schema"
    grammar = await made_by(context, GRAMMAR)
    alone = await judged(context, _city(context, max_tokens=256), partial(_judge_city, grammar=grammar))
    if alone.state != "passed":
        return alone
    pairs = max(2, context.target.thresholds.burst_requests // 2)
    others = (
        judged(
            context,
            _city(context, max_tokens=256, ending=end),
            partial(_judge_city, grammar=grammar, ending=end),
        )
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
    judge = partial(_judge_reasoned_city, grammar=await made_by(context, GRAMMAR))
    return await judged(context, _city(context, max_tokens=THINKING_TOKENS, thinks=True), judge)


def _city(context: CheckContext, *, max_tokens: int, thinks: bool = False, ending: str = "") -> dict[str, object]:
    """Return a request for a city as JSON, which its prompt asks for too (vllm#42110). `ending`: of the keys, so schemas differ."""
    schema = schema_of(with_ending(City, ending))
    question = f"Return JSON with the keys {', '.join(schema['properties'])}. {CITY_QUESTION}"
    return request(context, [user(question)], max_tokens=max_tokens, thinks=thinks, response_format=_format(schema))


def _judge_reasoned_city(message: ChatMessage, grammar: str) -> Outcome:
    is_whole = message.reasoning or message.finish_reason == "length"
    return _judge_city(message, grammar) if is_whole else failed("no reasoning", "the response has no reasoning.")


def _judge_city(message: ChatMessage, grammar: str, ending: str = "") -> Outcome:
    is_cut = message.finish_reason == "length"
    return failed_or_passed(
        shorten(message.text), CUT if is_cut else fault_of(with_ending(City, ending), message.text, grammar)
    )


def _format(schema: Mapping[str, object]) -> dict[str, object]:
    """Return the `response_format` of a request for JSON."""
    return {"type": "json_schema", "json_schema": {"name": "smoke", "schema": schema, "strict": True}}


async def schema_instructions(context: CheckContext) -> Outcome:
    """Check that an instruction for a field works in the system message.

    vLLM compiles the schema into a grammar, so the model sees neither the schema nor its descriptions.
    """
    context.features()
    context.wanted = f"{CODE!r} from the system message"
    question = user("Give me the code of this smoke check.")
    system: Message = {"role": "system", "content": CODE_RULE}
    schema, grammar = _format(schema_of(Code)), await made_by(context, GRAMMAR)
    plain = await answered(context, request(context, [question], max_tokens=64, response_format=schema))
    body = request(context, [system, question], max_tokens=64, response_format=schema)
    if prompt_tokens_of(await answered(context, body)) <= prompt_tokens_of(plain):
        fault = (
            "the system message does not reach the model, because it adds no prompt tokens. Check the chat template."
        )
        return failed("no more prompt tokens", fault)
    return await judged(context, body, partial(_judge_code, grammar=grammar))


def _judge_code(message: ChatMessage, grammar: str) -> Outcome:
    fault = fault_of(Code, message.text, grammar)
    if fault and (OTHER_RELEASE not in fault or message.finish_reason == "length"):
        return warned(shorten(message.text), FOLLOWS_NOT)
    return failed_or_passed(shorten(message.text), fault)


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
