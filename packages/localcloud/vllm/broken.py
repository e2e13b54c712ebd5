"""Broken features of a simulated server (`faults.py`): what a fault does to a request before and after it is answered."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

from localcloud.json_values import as_list, as_object
from localcloud.vllm import tokens
from localcloud.vllm.generation import Completion
from localcloud.vllm.media_items import KINDS
from localcloud.vllm.protocol import Request

_LONG: Final = 2000
"""Characters of a message from which it is cut."""


def broken_body(body: Mapping[str, Any], broken: AbstractSet[str]) -> Mapping[str, Any]:
    """Return a chat request as the model gets it."""
    messages = [as_object(message) for message in as_list(body.get("messages"))]
    if "ignores_tool_results" in broken:
        messages = [message for message in messages if message.get("role") != "tool"]
    if "ignores_system" in broken:
        messages = [message for message in messages if message.get("role") not in {"system", "developer"}]
    if "ignores_media" in broken:
        messages = [{**message, "content": _without_media(message.get("content"))} for message in messages]
    if "cuts_prompts" in broken:
        messages = [{**message, "content": _cut(message.get("content"))} for message in messages]
    thinks = as_object(body.get("chat_template_kwargs")).get("enable_thinking") is True
    dropped = {"response_format"} if "ignores_schema" in broken and thinks else set[str]()
    return {**{key: value for key, value in body.items() if key not in dropped}, "messages": messages}


def _without_media(content: object) -> object:
    if not isinstance(content, list):
        return content
    return [part for part in as_list(content) if as_object(part).get("type") not in KINDS]  # pyright: ignore[reportUnknownArgumentType]


def _cut(content: object) -> object:
    return content[len(content) // 2 :] if isinstance(content, str) and len(content) > _LONG else content


def broken_request(request: Request, broken: AbstractSet[str]) -> Request:
    """Return a request as the model understands it."""
    if "knows_nothing" not in broken:
        return request
    return replace(request, question="?", told="", system="", tool_result="", media=())


def broken_completion(made: Completion, broken: AbstractSet[str]) -> Completion:
    """Return a completion as the parsers of the server leave it."""
    if "leaks_tool_calls" not in broken or made.tool is None or made.reasoning_end == 0:
        return made
    call = f"<|tool_call>call:{made.tool.name}{made.arguments()}<tool_call|>"
    pieces = [piece.decode() for piece in tokens.pieces(call)]
    texts = [*made.texts[: made.content_end], *pieces]
    return replace(made, texts=texts, content_end=len(texts), tool=None, finish_reason="stop")
