"""Answers of the simulated model: the first row of `data/answers.toml` whose pattern is in the chat, otherwise sentences marked as simulated."""

import codecs
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from localcloud.json_values import JsonObject, as_object, packaged, part, parts, strings
from localcloud.vllm import tokens
from localcloud.vllm.requests import Request, RequestError

_TABLE: Final = packaged("localcloud.vllm", "answers.toml")
OPENING: Final = str(_TABLE["opening"])
_SENTENCES: Final = " ".join(strings(_TABLE, "sentences"))
_ROWS: Final = parts(_TABLE, "answers")
_ENDING: Final = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A planned answer. `texts[i]` is the text of token i (possibly empty).

    Tokens before `reasoning_end` are reasoning, those before `content_end` content, the rest the arguments of `tool`.
    """

    texts: list[str]
    reasoning_end: int
    content_end: int
    tool: str | None
    """Name of the called function."""
    finish_reason: str

    def reasoning(self) -> str:
        """Return the reasoning text."""
        return "".join(self.texts[: self.reasoning_end])

    def content(self) -> str:
        """Return the content text."""
        return "".join(self.texts[self.reasoning_end : self.content_end])

    def arguments(self) -> str:
        """Return the tool call's arguments, as JSON text."""
        return "".join(self.texts[self.content_end :])

    def ended(self, end: int) -> "Completion":
        """Return what a client gets of this answer if the server shuts down after `end` tokens."""
        return replace(self, texts=self.texts[:end], finish_reason="abort")


def completion(
    request: Request, *, most: int, adapter: str = "", thinks: bool = False, splits_reasoning: bool = True
) -> Completion:
    """Return the answer of at most `most` tokens. Raises RequestError if the table has none in the form that the request wants."""
    tool, text = (None, None) if request.ignore_eos else _known(request)
    thought = str(_TABLE["thinking"]).format(question=" ".join(request.chat.question.split()[:12]))
    reasoning = tokens.pieces(thought) if thinks and request.is_chat else []
    forced = most - len(reasoning) if request.ignore_eos else 0
    whole = [*reasoning, *(free(adapter, forced) if text is None else tokens.pieces(text))]
    is_cut = len(whole) > most or request.ignore_eos
    whole = whole[:most]
    head = min(len(reasoning), len(whole))
    return Completion(
        texts=[*_decoded(whole[:head]), *_decoded(whole[head:])],
        # Without a parser the reasoning stays in the content.
        reasoning_end=head if splits_reasoning else 0,
        content_end=len(whole) if tool is None else head,
        tool=tool if len(whole) > head else None,
        finish_reason="length" if is_cut else "stop" if tool is None else "tool_calls",
    )


def _known(request: Request) -> tuple[str | None, str | None]:
    """Return the tool to call, if there is one, and the text of the answer or of the call's arguments; None for free sentences."""
    chat, schema, choice = request.chat, request.schema, request.tool_choice
    if request.choices:
        named = [item for item in request.choices if item.lower() in chat.question.lower()]
        return None, (named or request.choices)[0]
    names = {tool["function"]["name"] for tool in request.tools} if choice not in (None, "none") else set[str]()
    if choice not in (None, "none", "auto", "required"):
        names &= {choice}
    for row in _ROWS:
        found = re.search(row["pattern"], chat.transcript, re.DOTALL | re.IGNORECASE)
        if found is None or chat.is_result != row["pattern"].startswith("tool: "):
            continue
        if row.get("tool") in names and not chat.is_result:
            return row["tool"], json.dumps(row["arguments"])
        if schema is not None and "json" in row:
            wanted = as_object(json.loads(schema)) if isinstance(schema, str) else schema
            return None, json.dumps(_keyed(row["json"], wanted, found), ensure_ascii=False)
        if schema is None and "text" in row:
            return None, found.expand(row["text"])
    if schema is not None or choice not in (None, "none", "auto"):
        raise _no_answer("tool_choice" if schema is None else "response_format")
    return None, None


def _no_answer(field: str) -> RequestError:
    words = "The simulated server has no answer of this form to this prompt. localcloud/vllm/data/answers.toml lists those that it has."
    return RequestError(words, param=field)


def _keyed(values: Mapping[str, Any], schema: JsonObject, found: re.Match[str]) -> JsonObject:
    """Return a row's values by the properties of a schema. Raises RequestError for a property without one."""
    keys = {key: _ENDING.sub("", key) for key in part(schema, "properties")}
    if not keys.keys() or not set(keys.values()) <= values.keys():
        raise _no_answer("response_format")
    given = {key: values[name] for key, name in keys.items()}
    return {key: found.expand(value) if isinstance(value, str) else value for key, value in given.items()}


def free(adapter: str, count: int) -> list[bytes]:
    """Return the pieces of the sentences, as often as `count` tokens need; 0: once. An adapter names itself."""
    said = f"{OPENING} {f'The adapter {adapter} gave it. ' if adapter else ''}{_SENTENCES}"
    once = tokens.pieces(said)
    return tokens.pieces(said + f" {_SENTENCES}" * (count // len(once) + 1))[:count] if count else once


def _decoded(pieces: list[bytes]) -> list[str]:
    """Decode the pieces one by one. A character that spans several pieces appears with its last piece."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(piece) for piece in pieces]
    rest = decoder.decode(b"", final=True)
    if rest:
        texts[-1] += rest
    return texts
