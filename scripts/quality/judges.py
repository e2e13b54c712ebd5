"""Decide whether an answer is right, one judge for each kind. Pure functions: a response's message in, a judgement out."""

import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from contracts.fields import as_mapping
from loadtest.client.json_values import as_list
from scripts.quality.items import Kind, tool_rows

_ANSWER: Final = re.compile(r"^[\s*_>#-]*answer[\s*_]*:[\s*_]*(.*)$", re.IGNORECASE)
_BOXED: Final = re.compile(r"\\boxed\{(.*)\}")
_LATEX_TEXT: Final = re.compile(r"\\(?:text|mathrm)\{([^}]*)\}")
_NUMBER: Final = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*(.*)")
_THOUSANDS: Final = re.compile(r"(?<=\d)[,\u00a0\u202f ](?=\d{3}(?!\d))")
_ARTICLE: Final = re.compile(r"^(?:the|a|an) ")
_MINUS: Final = "\N{MINUS SIGN}"
_SHOWN: Final = 120
_PRECISION: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerJudgement:
    """Whether an answer is right."""

    found: str
    """The part of the answer that was judged."""
    fault: str = ""
    """What is wrong; empty if the answer is right."""

    @property
    def is_right(self) -> bool:
        """True if the answer is right."""
        return not self.fault


def judge(kind: Kind, expected: Mapping[str, Any], message: Mapping[str, object], *, cut: bool) -> AnswerJudgement:
    """Return the judgement on a response's message. `cut`: the response reached its token limit."""
    found = _JUDGES[kind](expected, message)
    if cut and not found.is_right:
        return AnswerJudgement(found=found.found, fault=f"{found.fault} The response was cut off at its token limit.")
    return found


def text_of(message: Mapping[str, object]) -> str:
    """Return the content of a message."""
    content = message.get("content")
    return content if isinstance(content, str) else ""


def expected_text(kind: Kind, expected: Mapping[str, Any]) -> str:
    """Return the right answer as text, for reports."""
    if kind == "tools":
        return "; ".join(_call_text(one["name"], one["arguments"]) for one in expected["calls"]) or "no tool call"
    if kind == "json":
        return json.dumps(expected["value"], ensure_ascii=False)
    return str(expected.get("code") or expected.get("number") or expected["text"][0])


# --- exact answers -------------------------------------------------------------------------------------------------------------------


def _exact(expected: Mapping[str, Any], message: Mapping[str, object]) -> AnswerJudgement:
    given = final_answer(text_of(message))
    if given is None:
        return AnswerJudgement(found=_short(text_of(message)), fault="No line starts with `Answer:`.")
    return AnswerJudgement(found=_short(given), fault="" if _is_expected(given, expected) else "Another value.")


def _is_expected(given: str, expected: Mapping[str, Any]) -> bool:
    if "number" in expected:
        return _is_number(given, expected["number"], expected.get("units", ()))
    return plain(given) in map(plain, expected["text"])


def final_answer(text: str) -> str | None:
    """Return the value in the last line that starts with `Answer:`, or the whole text if it is a single line; otherwise None."""
    lines = [line for line in text.splitlines() if line.strip()]
    named = [found[1] for line in lines if (found := _ANSWER.match(line))]
    if named:
        return _unformatted(named[-1])
    return _unformatted(lines[0]) if len(lines) == 1 else None


def _unformatted(text: str) -> str:
    """Return text without Markdown and LaTeX around it, and without a full stop at its end."""
    inner = text.replace("$", "").replace("\\,", "").replace("\\%", "%").replace("^\\circ", "°").replace("\\circ", "°")
    boxed = _BOXED.search(inner)
    inner = _LATEX_TEXT.sub(r"\1", boxed[1] if boxed else inner)
    return inner.strip().strip("*_`\"'").rstrip(".").strip()


def plain(text: str) -> str:
    """Return text for comparison: without case, accents, quotes, a leading article, and spaces beyond one."""
    folded = unicodedata.normalize("NFKD", " ".join(text.split()).casefold())
    bare = "".join(char for char in folded if not unicodedata.combining(char))
    return _ARTICLE.sub("", bare.strip(" .\"'`*")).strip()


def _is_number(given: str, number: float, units: Sequence[str]) -> bool:
    """Return whether text is the number, alone or with one of the units. A number with another unit, and a second number, are wrong."""
    text = _THOUSANDS.sub("", given.replace(_MINUS, "-").casefold()).strip()
    for sign in (unit for unit in units if text.startswith(unit)):
        text = text.removeprefix(sign).strip()
    found = _NUMBER.fullmatch(text)
    if found is None or (found[2].rstrip(".") and found[2].rstrip(".") not in units):
        return False
    return math.isclose(float(found[1]), number, rel_tol=_PRECISION)


# --- JSON ----------------------------------------------------------------------------------------------------------------------------


def _json(expected: Mapping[str, Any], message: Mapping[str, object]) -> AnswerJudgement:
    text = text_of(message)
    try:
        value: object = json.loads(text)
    except ValueError:
        return AnswerJudgement(found=_short(text), fault="The response is not JSON.")
    fault = difference(expected["value"], value, any_order=bool(expected["any_order"]))
    return AnswerJudgement(found=_short(json.dumps(value, ensure_ascii=False)), fault=fault)


def difference(expected: object, found: object, *, any_order: bool, at: str = "the response") -> str:
    """Return the first difference of two JSON values as a sentence; empty without one. Texts differ in more than case and spaces."""
    if _are(dict, expected, found):
        return _object_difference(as_mapping(expected), as_mapping(found), any_order=any_order, at=at)
    if _are(list, expected, found):
        return _list_difference(as_list(expected), as_list(found), any_order=any_order, at=at)
    if _is_same(expected, found):
        return ""
    return f"{at} is {_short(json.dumps(found, ensure_ascii=False))}, not {json.dumps(expected, ensure_ascii=False)}."


def _are(kind: type, expected: object, found: object) -> bool:
    return isinstance(expected, kind) and isinstance(found, kind)


def _object_difference(expected: Mapping[str, object], found: Mapping[str, object], *, any_order: bool, at: str) -> str:
    if set(expected) != set(found):
        return f"{at} has the fields {', '.join(sorted(found)) or 'of an empty object'}, not {', '.join(sorted(expected))}."
    parts = (difference(value, found[name], any_order=any_order, at=f"`{name}`") for name, value in expected.items())
    return next(filter(None, parts), "")


def _list_difference(expected: Sequence[object], found: Sequence[object], *, any_order: bool, at: str) -> str:
    if len(expected) != len(found):
        return f"{at} has {len(found)} entries, not {len(expected)}."
    if not any_order:
        parts = (
            difference(one, two, any_order=False, at=f"{at}[{number}]")
            for number, (one, two) in enumerate(zip(expected, found, strict=True))
        )
        return next(filter(None, parts), "")
    left = list(found)
    for one in expected:
        match = next((at for at, two in enumerate(left) if not difference(one, two, any_order=True)), None)
        if match is None:
            return f"{at} lacks {json.dumps(one, ensure_ascii=False)}."
        del left[match]
    return ""


def _is_same(expected: object, found: object) -> bool:
    if isinstance(expected, bool) or isinstance(found, bool) or expected is None or found is None:
        return expected is found
    if isinstance(expected, int | float) and isinstance(found, int | float):
        return math.isclose(expected, found, rel_tol=_PRECISION)
    if isinstance(expected, str) and isinstance(found, str):
        return plain(expected) == plain(found)
    return False


# --- tool calls ----------------------------------------------------------------------------------------------------------------------


def _tools(expected: Mapping[str, Any], message: Mapping[str, object]) -> AnswerJudgement:
    functions = [as_mapping(as_mapping(call).get("function")) for call in as_list(message.get("tool_calls"))]
    calls = [(str(one.get("name")), _arguments(one.get("arguments"))) for one in functions]
    shown = "; ".join(_call_text(name, given) for name, given in calls) or f"no tool call: {text_of(message)}"
    wanted = [(str(one["name"]), as_mapping(one["arguments"])) for one in expected["calls"]]
    return AnswerJudgement(found=_short(shown), fault=_calls_fault(wanted, calls))


def _arguments(raw: object) -> Mapping[str, object] | None:
    """Return the arguments of a call; None if they are not a JSON object."""
    try:
        found: object = json.loads(raw) if isinstance(raw, str) else raw
    except ValueError:
        return None
    return cast("Mapping[str, object]", found) if isinstance(found, dict) else None


def _calls_fault(
    wanted: Sequence[tuple[str, Mapping[str, object]]], calls: Sequence[tuple[str, Mapping[str, object] | None]]
) -> str:
    if len(wanted) != len(calls):
        return f"Tool calls: {len(calls)}, expected: {len(wanted)}."
    left = list(calls)
    for name, arguments in wanted:
        faults = [(_call_fault(name, arguments, call), call) for call in left]
        fault, call = min(faults, key=lambda one: (bool(one[0]), one[1][0] != name))
        if fault:
            return fault
        left.remove(call)
    return ""


def _call_fault(name: str, arguments: Mapping[str, object], call: tuple[str, Mapping[str, object] | None]) -> str:
    called, given = call
    if called != name:
        return f"The call is to {called}, not to {name}."
    if given is None:
        return f"The arguments of {name} are not a JSON object."
    row = tool_rows()[name]
    free, usual = row.get("free", ()), as_mapping(row.get("usual"))
    lacking = [key for key in (*arguments, *free) if given.get(key) in (None, "")]
    if lacking:
        return f"{name} lacks {', '.join(lacking)}."
    for key, value in given.items():
        if key in free:
            continue
        wanted = arguments.get(key, usual.get(key))
        if wanted is None:
            return f"{name} has {key}, which nothing asked for."
        fault = difference(wanted, value, any_order=False, at=f"`{key}`")
        if fault:
            return fault
    return ""


def _call_text(name: str, arguments: Mapping[str, object] | None) -> str:
    return f"{name}({json.dumps(arguments, ensure_ascii=False) if arguments is not None else '?'})"


# --- retrieval -----------------------------------------------------------------------------------------------------------------------


def _retrieval(expected: Mapping[str, Any], message: Mapping[str, object]) -> AnswerJudgement:
    text = text_of(message)
    digits = re.findall(r"\d+", _THOUSANDS.sub("", text))
    if expected["code"] not in digits:
        other = next((code for code in expected["others"] if code in digits), None)
        return AnswerJudgement(found=_short(text), fault="The code of another place." if other else "No such code.")
    if set(digits) & set(expected["others"]):
        return AnswerJudgement(found=_short(text), fault="Several codes.")
    return AnswerJudgement(found=_short(text))


_JUDGES: Final[Mapping[Kind, Callable[[Mapping[str, Any], Mapping[str, object]], AnswerJudgement]]] = {
    "exact": _exact,
    "json": _json,
    "tools": _tools,
    "retrieval": _retrieval,
}


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
