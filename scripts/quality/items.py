"""The questions: read from `data/`, each with its request and the right answer."""

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from scripts.quality.long_text import codes_of, long_text, read_words, tokens_of

Kind = Literal["exact", "json", "tools", "retrieval"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
JUDGES: Final = 1
"""Version of the judges, a part of the digest. Raise it when a judge changes."""
SEED: Final = 0
THINKING_TOKENS: Final = 4_096
"""Output tokens of a request with thinking."""
_OUTPUT_TOKENS: Final[Mapping[Kind, int]] = {"exact": 512, "json": 512, "tools": 256, "retrieval": 64}
_CHARACTERS_PER_TOKEN: Final = 3
"""Lower estimate for short requests."""
_TEMPLATE_TOKENS: Final = 128
_FEWEST_OUTPUT: Final = 64
_FEWEST_THINKING: Final = 1_024
"""Output tokens that must be free beside a request."""
_DATA: Final = Path(__file__).with_name("data")
_TYPES: Final = {"string": str, "integer": int, "number": float, "boolean": bool}


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityItem:
    """One question."""

    id: str
    kind: Kind
    ask: str
    """The question without the generated text and the instructions, for reports."""
    prompt: str
    expected: Mapping[str, Any]
    """Right answer, in the form of the kind's judge."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Additional fields of the request: tools or the form of the response."""
    prompt_tokens: int
    """Upper estimate of the request's tokens."""

    def fits(self, max_model_len: int | None, *, thinking: bool) -> bool:
        """Return whether a server with this limit can answer it."""
        least = _FEWEST_THINKING if thinking else _FEWEST_OUTPUT
        return max_model_len is None or self.prompt_tokens + least <= max_model_len

    def body(self, model: str, max_model_len: int | None, *, thinking: bool) -> dict[str, Any]:
        """Return the request: greedy, and with the same seed for every server."""
        wanted = THINKING_TOKENS if thinking else _OUTPUT_TOKENS[self.kind]
        room = wanted if max_model_len is None else max(_FEWEST_OUTPUT, max_model_len - self.prompt_tokens)
        return {
            "model": model,
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": min(wanted, room),
            "temperature": 0,
            "seed": SEED,
            "chat_template_kwargs": {"enable_thinking": thinking},
            **self.extra,
        }


@cache
def all_items() -> tuple[QualityItem, ...]:
    """Return all questions. Those of one text follow one another, so that a prefix cache computes the text once."""
    return (*_exact(), *_json(), *_tools(), *_retrieval())


def digest(items: Sequence[QualityItem]) -> str:
    """Return the identity of a set: two results compare only if it is the same."""
    parts = [[one.id, one.prompt, one.extra, one.expected] for one in items]
    raw = json.dumps([JUDGES, SEED, parts], sort_keys=True, ensure_ascii=False).encode()
    return hashlib.sha256(raw).hexdigest()


def _rows(name: str) -> Iterator[dict[str, Any]]:
    for line in (_DATA / name).read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def _item(
    kind: Kind,
    row: Mapping[str, Any],
    prompt: str,
    *,
    expected: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    prompt_tokens: int | None = None,
) -> QualityItem:
    if prompt_tokens is None:
        prompt_tokens = len(prompt + json.dumps(extra)) // _CHARACTERS_PER_TOKEN + _TEMPLATE_TOKENS
    return QualityItem(
        id=f"{kind}/{row['id']}",
        kind=kind,
        ask=row["ask"],
        prompt=prompt,
        expected=expected,
        extra=extra or {},
        prompt_tokens=prompt_tokens,
    )


def _exact() -> Iterator[QualityItem]:
    how = "If needed, work it out in a few short steps. End with one line that has `Answer: ` and then only the value."
    for row in _rows("exact.jsonl"):
        yield _item("exact", row, f"{row['ask']}\n{how}", expected=row["expected"])


def _json() -> Iterator[QualityItem]:
    for row in _rows("json.jsonl"):
        form = json.dumps(row["shape"])
        prompt = f"{row['ask']}\nReturn one JSON object with these fields, and nothing else: {form}"
        wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema_of(row["shape"])}}
        expected = {"value": row["expected"], "any_order": row.get("any_order", False)}
        yield _item("json", row, prompt, expected=expected, extra={"response_format": wanted})


def schema_of(shape: object) -> dict[str, Any]:
    """Return the JSON schema of a shape: an object, a list of one shape, a type, a type with `?` for null, or words such as `a|b`."""
    if isinstance(shape, dict):
        fields = cast("dict[str, object]", shape)
        inner = {name: schema_of(one) for name, one in fields.items()}
        return {"type": "object", "properties": inner, "required": list(fields), "additionalProperties": False}
    if isinstance(shape, list):
        return {"type": "array", "items": schema_of(cast("list[object]", shape)[0])}
    text = str(shape)
    if "|" in text:
        return {"type": "string", "enum": text.split("|")}
    kind = text.removesuffix("?")
    if kind not in _TYPES:
        raise ValueError(f"{text!r} is not a type of a shape")
    return {"type": [kind, "null"]} if text.endswith("?") else {"type": kind}


@cache
def tool_rows() -> Mapping[str, Mapping[str, Any]]:
    """Return the tools by name, as `data/tools.toml` has them."""
    found = tomllib.loads((_DATA / "tools.toml").read_text(encoding="utf-8"))
    return {row["name"]: row for row in found["tool"]}


def _declared(row: Mapping[str, Any]) -> dict[str, Any]:
    required = [name for name in row["parameters"] if name not in row.get("optional", ())]
    parameters = {"type": "object", "properties": row["parameters"], "required": required}
    about = {"name": row["name"], "description": row["description"], "parameters": parameters}
    return {"type": "function", "function": about}


def _tools() -> Iterator[QualityItem]:
    how = (
        "Use a tool only if it does what I want. If no tool does, or a needed value is missing, reply in text instead."
    )
    extra = {"tools": [_declared(row) for row in tool_rows().values()], "tool_choice": "auto"}
    for row in _rows("tools.jsonl"):
        yield _item("tools", row, f"{row['ask']}\n{how}", expected={"calls": row["calls"]}, extra=extra)


def _retrieval() -> Iterator[QualityItem]:
    words = read_words()
    for window in words.windows:
        text, codes = long_text(window, words), codes_of(window, words)
        for depth, (keeper, code) in zip(words.depths, codes.items(), strict=True):
            ask = f"What is the code of the {keeper}?"
            others = [other for other in codes.values() if other != code]
            yield _item(
                "retrieval",
                {"id": f"{window}-at-{depth:.0%}", "ask": ask},
                f"{text}\n\n{ask} Reply with the code only.",
                expected={"code": code, "others": others},
                prompt_tokens=tokens_of(window) + _TEMPLATE_TOKENS,
            )
