"""Answers of the simulated model: the first row of `data/answers.toml` whose pattern is in the chat, otherwise sentences marked as simulated."""

import codecs
import hashlib
import json
import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final

from localcloud.json_values import JsonObject, as_list, as_object, part, parts, strings
from localcloud.vllm import tokens
from localcloud.vllm.requests import Request

_TABLE: Final[JsonObject] = tomllib.loads(
    (files("localcloud.vllm") / "data" / "answers.toml").read_text(encoding="utf-8")
)
OPENING: Final = str(_TABLE["opening"])
_SENTENCES: Final = strings(_TABLE, "sentences")
_ROWS: Final = parts(_TABLE, "answers")
NATURAL_TOKENS: Final = (48, 192)
"""Range of the length of free answers in tokens, unless the request limits or forces the length."""
_ENDING: Final = re.compile(r"_\d+$")


class NoAnswerError(Exception):
    """The table has no answer to a request that allows no sentences. The message names the field of the request."""


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
    stop_reason: str | None = None

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
        return replace(self, texts=self.texts[:end], finish_reason="abort", stop_reason=None)


def completion(request: Request, *, most: int, seed: str, thinks: bool, splits_reasoning: bool) -> Completion:
    """Return the answer of at most `most` tokens. `seed` varies free sentences. Raises NoAnswerError."""
    tool, text = (None, None) if request.ignore_eos else _known(request)
    thought = str(_TABLE["thinking"]).format(question=" ".join(request.question.split()[:12]))
    reasoning = tokens.pieces(thought) if thinks and request.is_chat else []
    content = tokens.pieces(text) if text is not None else []
    if text is None:
        content = _free(
            request, most - len(reasoning), _number(f"{seed}|{request.prompt[:64]}|{request.prompt[-256:]}")
        )
    whole = [*reasoning, *content]
    is_forced = text is None and (request.ignore_eos or len(whole) < request.min_tokens)
    finish = "tool_calls" if tool is not None else "stop"
    if len(whole) > most or (is_forced and len(whole) == most):
        whole, finish = whole[:most], "length"
    head = min(len(reasoning), len(whole))
    texts = [*_decoded(whole[:head]), *_decoded(whole[head:])]
    made = Completion(
        texts=texts,
        # Without a parser the reasoning stays in the content.
        reasoning_end=head if splits_reasoning else 0,
        content_end=head if tool is not None else len(whole),
        tool=tool if len(whole) > head else None,
        finish_reason=finish,
    )
    return _stopped(made, request) if request.stop and tool is None else made


def _known(request: Request) -> tuple[str | None, str | None]:
    """Return the tool to call, if there is one, and the text of the answer or of the call's arguments; None for free sentences."""
    schema, choices = _constraint(request)
    if choices:
        named = [item for item in choices if item.lower() in request.question.lower()]
        return None, (named or choices)[0]
    names = (
        {tool["function"]["name"] for tool in request.tools}
        if request.tool_choice not in (None, "none")
        else set[str]()
    )
    if request.tool_choice not in (None, "none", "auto", "required"):
        names &= {str(request.tool_choice)}
    for row in _ROWS:
        found = re.search(row["pattern"], request.transcript, re.DOTALL | re.IGNORECASE)
        if found is None or request.is_result != row["pattern"].startswith("tool: "):
            continue
        if row.get("tool") in names and not request.is_result:
            return row["tool"], json.dumps(row["arguments"])
        if schema is not None and "json" in row:
            return None, json.dumps(_keyed(row["json"], schema, found), ensure_ascii=False)
        if schema is None and "text" in row:
            return None, found.expand(row["text"])
    if schema is not None or request.tool_choice not in (None, "none", "auto"):
        what = "tool_choice" if schema is None else "response_format"
        raise NoAnswerError(what)
    return None, None


def _constraint(request: Request) -> tuple[JsonObject | None, Sequence[str]]:
    """Return the JSON schema of the answer, and the texts of which it must be one."""
    if request.constraint is None:
        return None, ()
    kind, value = request.constraint
    if kind == "choice":
        return None, [str(item) for item in as_list(value)]
    return as_object(json.loads(value) if isinstance(value, str) else value), ()


def _keyed(values: Mapping[str, Any], schema: JsonObject, found: re.Match[str]) -> JsonObject:
    """Return a row's values by the properties of a schema. Raises NoAnswerError for a property without one."""
    keys = {key: _ENDING.sub("", key) for key in part(schema, "properties")}
    if not keys.keys() or not set(keys.values()) <= values.keys():
        raise NoAnswerError("response_format")
    given = {key: values[name] for key, name in keys.items()}
    return {key: found.expand(value) if isinstance(value, str) else value for key, value in given.items()}


def _free(request: Request, most: int, seed: int) -> list[bytes]:
    """Return sentences of the forced, natural or minimum length."""
    if request.ignore_eos:
        return sentences(seed, max(1, most))
    low, high = NATURAL_TOKENS
    text = OPENING
    for sentence in random.Random(seed).sample(_SENTENCES, k=len(_SENTENCES)):  # noqa: S311 - filler text, no secret
        if tokens.count(f"{text} {sentence}") <= low + seed % (high - low + 1):
            text = f"{text} {sentence}"
    whole = tokens.pieces(text)
    # One token more than allowed shows that the limit ended the answer.
    return (whole if len(whole) >= request.min_tokens else sentences(seed, request.min_tokens))[: max(1, most + 1)]


def sentences(seed: int, count: int) -> list[bytes]:
    """Return the pieces of an answer of exactly this many tokens. A longer answer starts with a shorter one of the same seed."""
    order = random.Random(seed)  # noqa: S311 - as above
    said = [OPENING]
    while sum(map(len, said)) <= tokens.LONGEST * count:
        said += order.sample(_SENTENCES, k=len(_SENTENCES))
    return tokens.pieces(" ".join(said))[:count]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _decoded(pieces: list[bytes]) -> list[str]:
    """Decode the pieces one by one. A character that spans several pieces appears with its last piece."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(piece) for piece in pieces]
    rest = decoder.decode(b"", final=True)
    if rest:
        texts[-1] += rest
    return texts


def _stopped(made: Completion, request: Request) -> Completion:
    """End the answer at the first stop string in its content."""
    content = made.content()
    found = [(content.find(stop), stop) for stop in request.stop if stop in content]
    if not found:
        return made
    at, stop = min(found)
    kept = content[: at + len(stop) if request.include_stop else at]
    # The tokens up to the end of the stop string were generated.
    texts = [*made.texts[: made.reasoning_end], *_decoded(tokens.pieces(kept))] or [""]
    return replace(made, texts=texts, content_end=len(texts), finish_reason="stop", stop_reason=stop)
