"""Chat requests of the checks, and what their responses contain."""

from collections.abc import Mapping, Sequence
from typing import Final

from loadtest.client.events import first_message
from loadtest.client.openai import ServerAnswer
from scripts.smoke.context import CheckContext

FEATURE_LIMIT_S: Final = 180.0
"""Time for a reasoning response of 1,024 tokens at 6 tokens/s."""
THINKING_TOKENS: Final = 1024
"""Output tokens of a request with thinking."""
CHANNEL_MARKS: Final = ("<|channel", "<channel|", "<|tool_call", "<tool_call|")
"""Gemma 4's delimiters. In a response's text, they show that a parser is missing."""
Message = Mapping[str, object]


def room(context: CheckContext, wanted: int) -> int:
    """Return the output tokens to request: `wanted`, or fewer if max-model-len is short."""
    length = context.max_model_len or context.target.thresholds.max_model_len
    return wanted if length is None else max(16, min(wanted, length // 2))


def user(content: object) -> Message:
    """Return a user's message: text, or a list of content parts."""
    return {"role": "user", "content": content}


def request(
    context: CheckContext,
    messages: Sequence[Message],
    *,
    max_tokens: int,
    thinks: bool = False,
    extra: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Return a greedy request. With `thinks`, thinking is on; otherwise it is off if the server's default is on."""
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}} if thinks else context.without_thinking
    return {
        "model": context.target.model,
        "messages": list(messages),
        "max_tokens": room(context, max_tokens),
        "temperature": 0,
        **kwargs,
        **(extra or {}),
    }


async def send(context: CheckContext, body: Mapping[str, object], *, limit_s: float = FEATURE_LIMIT_S) -> ServerAnswer:
    """Send a chat request, count its tokens, and return the response, whatever its status."""
    answer = await context.client.post("/v1/chat/completions", body, limit_s=limit_s)
    context.count(answer.usage)
    return answer


def content_of(answer: ServerAnswer) -> str:
    """Return the text of a response, without its reasoning."""
    return str(first_message(answer.body).get("content") or "")


def reasoning_of(message: Message) -> str:
    """Return the reasoning of a message. vLLM named the field `reasoning_content` before it was `reasoning`."""
    return str(message.get("reasoning") or message.get("reasoning_content") or "")


def marks_in(text: str) -> str:
    """Return the names of the delimiters in a text, separated by commas."""
    return ", ".join(mark for mark in CHANNEL_MARKS if mark in text)


def short(text: str, length: int = 60) -> str:
    """Return a text on one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
