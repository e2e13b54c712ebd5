"""Responses of the simulated model: correct ones for a few kinds of questions, otherwise sentences marked as simulated."""

import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from localcloud.json_values import as_object, packaged, part, strings
from localcloud.vllm import tokens

_TEXTS: Final = packaged("localcloud.vllm", "answers.json")
OPENING: Final = str(_TEXTS["opening"])
_SENTENCES: Final = strings(_TEXTS, "sentences")
"""Sentences of a free answer."""

_FIELDS: Final = part(_TEXTS, "fields")
"""Pattern of what a question states, by the field of a schema."""
_NUMBERS: Final = part(_TEXTS, "numbers")
"""Facts by the field of a schema."""

_SAY: Final = r"\b(?:reply|answer|respond|say|output|print|return|write)\s+(?:back\s+)?(?:with\s+)?"
_EXACTLY: Final = (
    # Reply with exactly (this text, one word...): X
    re.compile(
        _SAY + r"(?:exactly|precisely|only|just|the single|one)\b[^:.\n]{0,40}:\s*(?P<text>\S.*)",
        re.IGNORECASE | re.DOTALL,
    ),
    # Say only (the word) "X"
    re.compile(
        _SAY + r"(?:exactly|precisely|only|just)[^:.\n\"'`\u201c]{0,20}(?P<text>[\"'`\u201c]\S.*)",
        re.IGNORECASE | re.DOTALL,
    ),
    # Reply with exactly the word X
    re.compile(
        _SAY + r"(?:exactly|precisely)\s+(?:the (?:word|text|phrase|string|number)\s+)?(?P<text>\S[^\n]*)",
        re.IGNORECASE,
    ),
)
_REPEAT: Final = re.compile(r"\brepeat(?:\s+after me)?\s*:\s*(?P<text>\S.*)", re.IGNORECASE | re.DOTALL)
_ARITHMETIC: Final = re.compile(
    r"(?<![\w.])(-?\d{1,12})\s*(\+|-|\N{MINUS SIGN}|\*|x|\N{MULTIPLICATION SIGN}|times|plus|minus)\s*(-?\d{1,12})(?![\w.]*\d)",
    re.IGNORECASE,
)
_ASKS: Final = re.compile(
    r"\b(what(?:'s| is| are)?|compute|calculate|solve|how much|evaluate)\b|=\s*\??\s*$", re.IGNORECASE
)
_NUMBER_ONLY: Final = re.compile(r"\bonly\b|\bjust\b|=\s*\??\s*$", re.IGNORECASE)
_CAPITALS: Final = part(_TEXTS, "capitals")
_CAPITAL: Final = re.compile(r"\bcapital of ([a-z ]+?)\s*(?:\?|\.|,|\bis\b|$)", re.IGNORECASE)

_ASKS_FACT: Final = re.compile(r"\bwhat is (?P<fact>the [a-z ]{3,60}?)\?", re.IGNORECASE)
_TELLS_FIELD: Final = re.compile(r"\bset the field (?P<field>\w+) to the word (?P<word>\w+)", re.IGNORECASE)

NATURAL_TOKENS: Final = (48, 192)
"""Range of the length of free responses in tokens, unless the request limits or forces the length."""


def known_answer(question: str) -> str | None:
    """Return the correct answer to supported questions (arithmetic, `Reply with exactly: X`, a few capitals), or None."""
    for pattern in (*_EXACTLY, _REPEAT):
        match = pattern.search(question)
        if match is not None:
            return _unquoted(match["text"].strip())
    sum_ = _ARITHMETIC.search(question)
    if sum_ is not None and _ASKS.search(question):
        result = _calculate(int(sum_[1]), sum_[2].lower(), int(sum_[3]))
        if _NUMBER_ONLY.search(question):
            return str(result)
        return f"{sum_[1]} {sum_[2]} {sum_[3]} = {result}"
    capital = _CAPITAL.search(question)
    return None if capital is None else _CAPITALS.get(capital[1].strip().lower())


def recalled(question: str, told: str) -> str | None:
    """Return the word that the messages state about the question: `the password is X` for `What is the password?`. Otherwise None."""
    asked = _ASKS_FACT.search(question)
    stated = re.search(rf"{re.escape(asked['fact'])} is (\w+)", told, re.IGNORECASE) if asked else None
    return None if stated is None else stated[1]


def stated(field: str, question: str) -> str | int | None:
    """Return the value of a schema's field that the question states, or that is known; None if neither. A number may end the field's name."""
    name = field.rstrip("0123456789").rstrip("_")
    found = re.search(_FIELDS[name], question, re.IGNORECASE) if name in _FIELDS else None
    return _NUMBERS.get(name) if found is None else found[1]


def about_result(result: str) -> str:
    """Return a sentence with the values of a tool's result."""
    try:
        found: object = json.loads(result)
    except ValueError:
        found = result
    values = as_object(found)
    said = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in values.items()) or result
    return f"The tool returned: {said}."


def told_fields(system: str, value: Mapping[str, Any]) -> dict[str, str]:
    """Return the text fields that the system message sets: `Set the field X to the word Y`. A schema's descriptions do not reach a model."""
    told = {match["field"]: match["word"] for match in _TELLS_FIELD.finditer(system)}
    return {field: word for field, word in told.items() if isinstance(value.get(field), str)}


def _unquoted(text: str) -> str:
    first = text[0]
    closing = {'"': '"', "'": "'", "`": "`", "\N{LEFT DOUBLE QUOTATION MARK}": "\N{RIGHT DOUBLE QUOTATION MARK}"}.get(
        first
    )
    end = text.find(closing, 1) if closing else -1
    return text[1:end] if end > 0 else text


def _calculate(left: int, operator: str, right: int) -> int:
    if operator in ("+", "plus"):
        return left + right
    if operator in ("-", "\N{MINUS SIGN}", "minus"):
        return left - right
    return left * right


def seed_of(tokens: Sequence[int], seed: str) -> int:
    """Return a number that is the same for the same prompt and seed, and varies between prompts."""
    text = f"{seed}|{len(tokens)}|{tokens[:64]}|{tokens[-256:]}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def natural_length(seed: int) -> int:
    """Return the number of tokens of a free response for this seed."""
    low, high = NATURAL_TOKENS
    return low + seed % (high - low + 1)


def sentences(seed: int, count: int) -> list[bytes]:
    """Return the pieces of a response of exactly this many tokens. A longer response starts with a shorter one of the same seed."""
    order = random.Random(seed)  # noqa: S311 - filler text, no secret
    said = [OPENING]
    while sum(map(len, said)) <= tokens.LONGEST * count:
        said += order.sample(_SENTENCES, k=len(_SENTENCES))
    return tokens.pieces(" ".join(said))[:count]


def whole_sentences(seed: int, count: int) -> list[bytes]:
    """Return the pieces of as many complete sentences as this number of tokens has room for, at least one."""
    order = random.Random(seed)  # noqa: S311 - as above
    text = OPENING
    for sentence in order.sample(_SENTENCES, k=len(_SENTENCES)):
        longer = f"{text} {sentence}"
        if tokens.count(longer) > count:
            break
        text = longer
    return tokens.pieces(text)


def thinking(question: str) -> str:
    """Return a short line of reasoning about the question."""
    subject = " ".join(question.split()[:12])
    return f"The user asks: {subject}. I work it out and answer briefly."
