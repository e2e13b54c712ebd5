"""Chat requests of the checks, and the contents of their responses."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from gemma_serving.planning.units import number_of
from gemma_serving.scripts.smoke.context import CheckContext
from gemma_serving.scripts.smoke.results import Outcome, failed, passed, warned
from gemma_serving.scripts.smoke.right_answers import OTHER_RELEASE, OTHER_VALUE
from loadtest.client.events import ChatMessage, delta_of, joined
from loadtest.client.json_values import as_mapping
from loadtest.client.openai import ServerAnswer, ServerError

FEATURE_LIMIT_S: Final = 180.0
"""Time for a reasoning response of 1,024 tokens at 6 tokens/s."""
THINKING_TOKENS: Final = 1024
"""Output tokens of a request with thinking."""
MARK: Final = re.compile(r'<\|"?\w*|<?\w*"?\|>|<pad>|<unused\d+>|\Athought(?=\n)')
"""Gemma 4's delimiters, such as `<|channel>`, `<channel|>` and `<|"|>`, whole or cut, unused tokens, and a reasoning without delimiters."""
LOOP: Final = re.compile(r"(.{1,60}?)\1{7,}", re.DOTALL)
"""The same characters, eight times or more."""
LOOP_CHARACTERS: Final = 96
"""A shorter repetition, such as a line of dashes, can be right."""
STREAM_HINT: Final = f"Without `stream: true`, the same request passes, so the settings are right. {OTHER_RELEASE}"
CUT: Final = "the response was cut off at its token limit (finish_reason length)."
IN_REASONING: Final = (
    f"the content is empty and the text is in `reasoning` (vllm#49717). Ask without thinking. {OTHER_RELEASE}"
)
Judge = Callable[[ChatMessage], Outcome]
"""Returns the result for one message."""
Message = Mapping[str, object]
Body = Mapping[str, object]


class StatusError(ServerError):
    """A response with another status than 200. The message is the server's."""

    def __init__(self, answer: ServerAnswer) -> None:
        super().__init__(answer.message)
        self.status = answer.status


def user(content: object) -> Message:
    """Return a user's message: text, or a list of content parts."""
    return {"role": "user", "content": content}


def request(
    context: CheckContext, messages: Sequence[Message], *, max_tokens: int, thinks: bool = False, **extra: object
) -> dict[str, object]:
    """Return a greedy request. With `thinks`, thinking is on; otherwise it is off if the server's default is on.

    It requests `max_tokens`, or fewer if max-model-len is short.
    """
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}} if thinks else context.without_thinking
    return {
        "model": context.target.model,
        "messages": list(messages),
        "max_tokens": max_tokens if context.length is None else max(16, min(max_tokens, context.length // 2)),
        "temperature": 0,
        **kwargs,
        **extra,
    }


async def send(context: CheckContext, body: Body, *, limit_s: float = FEATURE_LIMIT_S) -> ServerAnswer:
    """Send a chat request and return the response, regardless of its status."""
    return await context.client.post("/v1/chat/completions", body, limit_s=limit_s)


async def answered(context: CheckContext, body: Body, *, limit_s: float = FEATURE_LIMIT_S) -> ServerAnswer:
    """Send a chat request and return the response. Raises StatusError."""
    return succeeded(await send(context, body, limit_s=limit_s))


async def made_by(context: CheckContext, part: str) -> str:
    """Return a part of the server with the release, which it reads once: `the tool-call parser of vLLM 0.31.0`."""
    if context.release is None:
        answer = await context.client.get("/version", limit_s=FEATURE_LIMIT_S)
        context.release = str(as_mapping(answer.body).get("version", ""))
    return f"the {part} of {f'vLLM {context.release}' if context.release else 'the server'}"


def succeeded(answer: ServerAnswer) -> ServerAnswer:
    """Return the response. Raises StatusError unless its status is 200."""
    if answer.status != HTTPStatus.OK:
        raise StatusError(answer)
    return answer


async def both(context: CheckContext, body: Body) -> tuple[ChatMessage, ChatMessage]:
    """Return a chat request's response in one piece and as a stream. Both requests are sent at the same time. Raises ServerError."""
    stream = context.client.stream({**body, "stream": True}, limit_s=FEATURE_LIMIT_S)
    answer, streamed = await asyncio.gather(answered(context, body), stream)
    return joined([delta_of(as_mapping(answer.body))]), streamed


async def judged(context: CheckContext, body: Body, judge: Judge, hint: str = "") -> Outcome:
    """Return the result of a chat request, as `compared`. Raises ServerError."""
    return compared(*await both(context, body), judge, hint)


def compared(whole: ChatMessage, streamed: ChatMessage, judge: Judge, hint: str = "") -> Outcome:
    """Return the worse of two results: of a response in one piece, and of a response to the same request as a stream.

    Their texts may differ, so the judge reads both, and the presence of reasoning, the tool calls and the finish reason are compared. `hint`:
    what to check if the response in one piece fails.
    """
    plain, in_stream = _result(whole, judge), _result(streamed, judge)
    if in_stream.state != "failed" and _parts(whole) != _parts(streamed):
        in_stream = failed(f"{_parts(streamed)} (plain: {_parts(whole)})")
    if in_stream.state == "passed" and whole.finish_reason != streamed.finish_reason:
        in_stream = warned(f"finish_reason {streamed.finish_reason}", f"it is {whole.finish_reason} without a stream.")
    in_stream = replace(in_stream, measured=f"streamed: {in_stream.measured}")
    return worst(_with_hint(plain, hint), _with_hint(in_stream, STREAM_HINT))


async def judged_in_turn(context: CheckContext, bodies: Mapping[str, Body], judge: Judge, hint: str) -> Outcome:
    """Judge named requests one after the other, until one does not pass."""
    outcome = passed("")
    for name, body in bodies.items():
        outcome = await judged(context, body, judge, hint)
        if outcome.state != "passed":
            return replace(outcome, measured=f"{name}: {outcome.measured}")
    return outcome


def worst(*outcomes: Outcome) -> Outcome:
    """Return the first failed result, else the first warned one, else the first."""
    return min(outcomes, key=lambda outcome: ("failed", "warned", "passed").index(outcome.state))


def _result(message: ChatMessage, judge: Judge) -> Outcome:
    """Return the judge's result, or a failed one for a wrong role, delimiters, a loop, or a text in the reasoning."""
    if message.role != "assistant":
        return failed(f"role {message.role or 'missing'}", "the message is not the assistant's.")
    calls = "".join(call.name + call.arguments for call in message.tool_calls)
    for place, text in (("the response", message.text), ("a tool call", calls)):
        marks = dict.fromkeys(MARK.findall(text.replace('\\"', '"')))
        if marks:
            return failed(f"markers {', '.join(marks)} in {place}")
    for found in LOOP.finditer(f"{message.reasoning}\n{message.text}\n{calls}"):
        if len(found[0]) >= LOOP_CHARACTERS:
            return failed(f"repeats {found[1]!r}", f"the response repeats itself for {len(found[0])} characters.")
    is_empty = not message.text and not message.tool_calls
    if is_empty and message.reasoning and message.finish_reason != "length":
        return failed("no text", IN_REASONING)
    return judge(message)


def _parts(message: ChatMessage) -> str:
    calls = number_of(len(message.tool_calls), "tool call")
    return f"{calls}, {'with' if message.reasoning else 'without'} reasoning"


def _with_hint(outcome: Outcome, hint: str) -> Outcome:
    """Return a failed outcome with a hint. One that names its cause needs no other, except that only the stream fails."""
    is_named = any(words in outcome.detail for words in (OTHER_RELEASE, OTHER_VALUE, CUT))
    if outcome.state != "failed" or (is_named and hint != STREAM_HINT):
        return outcome
    return replace(outcome, detail=f"{outcome.detail.removesuffix(OTHER_RELEASE).strip()} {hint}".strip())


def content_of(answer: ServerAnswer) -> str:
    """Return the text of a response, without its reasoning."""
    return delta_of(as_mapping(answer.body)).text


def prompt_tokens_of(answer: ServerAnswer) -> int:
    """Return the tokens of the request's prompt; 0 if the server reports no usage."""
    return answer.usage.prompt_tokens if answer.usage is not None else 0


def shorten(text: str, length: int = 60) -> str:
    """Return a text on one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
