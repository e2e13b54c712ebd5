"""Chat requests of the checks, and the contents of their responses."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from gemma_serving.scripts.smoke.context import CheckContext
from loadtest.client.events import first_message
from loadtest.client.openai import ServerAnswer, ServerError

FEATURE_LIMIT_S: Final = 180.0
"""Time for a reasoning response of 1,024 tokens at 6 tokens/s."""
THINKING_TOKENS: Final = 1024
"""Output tokens of a request with thinking."""
CHANNEL_MARKS: Final = ("<|channel", "<channel|", "<|tool_call", "<tool_call|")
"""Gemma 4's delimiters. In a response's text, they show that a parser is missing."""
Message = Mapping[str, object]


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


async def send(context: CheckContext, body: Mapping[str, object], *, limit_s: float = FEATURE_LIMIT_S) -> ServerAnswer:
    """Send a chat request and return the response, regardless of its status."""
    return await context.client.post("/v1/chat/completions", body, limit_s=limit_s)


async def answered(
    context: CheckContext, body: Mapping[str, object], *, limit_s: float = FEATURE_LIMIT_S
) -> ServerAnswer:
    """Send a chat request and return the response. Raises StatusError."""
    return succeeded(await send(context, body, limit_s=limit_s))


def succeeded(answer: ServerAnswer) -> ServerAnswer:
    """Return the response. Raises StatusError unless its status is 200."""
    if answer.status != HTTPStatus.OK:
        raise StatusError(answer)
    return answer


def content_of(answer: ServerAnswer) -> str:
    """Return the text of a response, without its reasoning."""
    return str(first_message(answer.body).get("content") or "")


def reasoning_of(answer: ServerAnswer) -> str:
    """Return the reasoning of a response."""
    return str(first_message(answer.body).get("reasoning") or "")


def prompt_tokens_of(answer: ServerAnswer) -> int:
    """Return the tokens of the request's prompt; 0 if the server reports no usage."""
    return answer.usage.prompt_tokens if answer.usage is not None else 0


def marks_in(text: str) -> str:
    """Return the names of the delimiters in a text, separated by commas."""
    return ", ".join(mark for mark in CHANNEL_MARKS if mark in text)


def shorten(text: str, length: int = 60) -> str:
    """Return a text on one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
