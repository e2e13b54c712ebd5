"""Filters of lists and of log entries: the part of the Logging query language that Google's clients send.

Comparisons (`=`, `!=`, `:`, `<`, `<=`, `>`, `>=`, `=~`, `!~`) of a dotted field with a value or a parenthesized list of values; text without a
field; AND (also a blank or a newline), OR, NOT (also `-`) and parentheses. Functions such as SEARCH are rejected.
Source: cloud.google.com/logging/docs/view/logging-query-language, 2026-11: NOT binds before OR, and OR before AND; text comparison ignores
case, except in regular expressions; a comparison with a missing field is false. Lists of resources are filtered in the same way, which is
simpler than at Google, where each API has its own part of the language.
"""

import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

from localcloud.json_values import JsonObject
from localcloud.rest.errors import CloudError

Matches: TypeAlias = Callable[[JsonObject], bool]
_Compare: TypeAlias = Callable[[object], bool]

_SPACE = re.compile(r"\s+")
_PATH = re.compile(r'[A-Za-z_](?:[\w\-/]|\\.)*(?:\.(?:"[^"]*"|[\w\-/]+))*')
_SIGN = re.compile(r"\s*(=~|!~|!=|<=|>=|=|<|>|:)\s*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'')
_BARE = re.compile(r'[^\s()"]+')
_WORD = re.compile(r"(AND|OR|NOT)(?=[\s(]|$)")
_OF_COMPUTE = {"eq": "=", "ne": "!="}
"""Signs that only Compute Engine has, as gcloud sends them."""
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SEVERITIES = ("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY")
"""Severities of log entries in ascending order (logging.v2, LogSeverity). An entry without one has DEFAULT."""


def chosen(items: list[tuple[str, JsonObject]], expression: str | None) -> list[tuple[str, JsonObject]]:
    """Return the items that match a filter. Raise 400 for a filter outside the supported subset."""
    matches = matcher(re.sub(r"\s+(eq|ne)\s+", lambda found: _OF_COMPUTE[found[1]], expression or ""))
    return [(key, item) for key, item in items if matches(item)]


def matcher(expression: str) -> Matches:
    """Return a predicate for entries that match the filter. Raise 400 for a filter outside the supported subset."""
    if not expression.strip():
        return lambda _entry: True
    parser = _FilterParser(expression)
    matches = parser.conjunction()
    parser.expect_end()
    return matches


class _FilterParser:
    """Reads one filter from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def conjunction(self) -> Matches:
        """Read terms joined by AND, a blank or a newline."""
        terms = [self._disjunction()]
        while not self._at_end() and self._peek() != ")":
            self._take_word("AND")
            terms.append(self._disjunction())
        return terms[0] if len(terms) == 1 else lambda entry: all(term(entry) for term in terms)

    def expect_end(self) -> None:
        """Raise 400 if any token is unread."""
        if not self._at_end():
            raise self._error()

    def _disjunction(self) -> Matches:
        terms = [self._term()]
        while self._take_word("OR"):
            terms.append(self._term())
        return terms[0] if len(terms) == 1 else lambda entry: any(term(entry) for term in terms)

    def _term(self) -> Matches:
        if self._at_end():
            raise self._error()
        if self._take_word("NOT") or self._take("-"):
            negated = self._term()
            return lambda entry: not negated(entry)
        if self._take("("):
            inner = self.conjunction()
            if not self._take(")"):
                raise self._error()
            return inner
        return self._comparison()

    def _comparison(self) -> Matches:
        path = _PATH.match(self._text, self._at)
        sign = _SIGN.match(self._text, path.end()) if path else None
        if path is None or sign is None:
            wanted = self._value().lower()
            return lambda entry: any(wanted in text.lower() for text in _texts(entry))
        self._at = sign.end()
        steps = [step.strip('"') for step in re.findall(r'"[^"]*"|[^."]+', path[0])]
        compare = self._values(sign[1], steps)
        if sign[1] in {"!=", "!~"}:
            return lambda entry: _field(entry, steps) is not None and not compare(_field(entry, steps))
        return lambda entry: _field(entry, steps) is not None and compare(_field(entry, steps))

    def _values(self, sign: str, steps: list[str]) -> _Compare:
        """Read the value, or a list such as `("a" OR "b")`."""
        if not self._take("("):
            return _comparing(sign, self._value(), steps)
        alternatives = [_comparing(sign, self._value(), steps)]
        join = any
        while not self._take(")"):
            if self._take_word("AND"):
                join = all
            elif not self._take_word("OR"):
                raise self._error()
            alternatives.append(_comparing(sign, self._value(), steps))
        return lambda value: join(each(value) for each in alternatives)

    def _value(self) -> str:
        self._skip()
        quoted = _QUOTED.match(self._text, self._at)
        found = quoted or _BARE.match(self._text, self._at)
        if found is None or _WORD.fullmatch(found[0]):
            raise self._error()
        self._at = found.end()
        if quoted is None:
            return found[0]
        return re.sub(r'\\(["\\\'])', r"\1", quoted[1] if quoted[1] is not None else quoted[2])

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at

    def _peek(self) -> str:
        self._skip()
        return self._text[self._at : self._at + 1]

    def _at_end(self) -> bool:
        return not self._peek()

    def _take(self, sign: str) -> bool:
        taken = self._peek() == sign
        self._at += taken
        return taken

    def _take_word(self, word: str) -> bool:
        self._skip()
        found = _WORD.match(self._text, self._at)
        if found is None or found[1] != word:
            return False
        self._at = found.end()
        return True

    def _error(self) -> CloudError:
        line = self._text.count("\n", 0, self._at) + 1
        token = (_BARE.match(self._text, self._at) or [self._text[self._at : self._at + 1] or "end of filter"])[0]
        return CloudError.field(
            "filter", f"Unparseable filter: syntax error at line {line}, column {self._at + 1}, token '{token}'"
        )


def _comparing(sign: str, wanted: str, steps: list[str]) -> _Compare:
    """Return a comparison with one value. The caller negates for the negated signs, after the lists are joined."""
    if sign in {"=~", "!~"}:
        try:
            pattern = re.compile(wanted)
        except re.error:
            raise CloudError.field(
                "filter", f"Unparseable filter: regular expression '{wanted}' is not valid"
            ) from None
        return lambda value: any(pattern.search(text) for text in _texts(value))
    if sign in _COMPARISONS:
        return lambda value: _in_order(sign, _rank(value, steps), _rank(wanted, steps))
    if sign == ":":
        return lambda value: wanted == "*" or any(wanted.lower() in text.lower() for text in _texts(value))
    return lambda value: any(text.lower() == wanted.lower() for text in _texts(value))


def _in_order(sign: str, left: object, right: object) -> bool:
    return type(left) is type(right) and _COMPARISONS[sign](left, right)


def _rank(value: object, steps: list[str]) -> float | datetime | str:
    """Return a severity or a number as a number, a time as a time, other text unchanged. A time without a time zone is in UTC."""
    text = str(value)
    if steps == ["severity"]:
        return float(_SEVERITIES.index(text.upper())) if text.upper() in _SEVERITIES else text
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _field(entry: JsonObject, steps: list[str]) -> object | None:
    """Return the value at a path, or None. Label keys can contain dots, so the rest of a path is first tried as one key."""
    if steps == ["severity"]:
        return entry.get("severity", _SEVERITIES[0])
    whole = ".".join(steps)
    if whole in entry:
        return entry[whole]
    below = entry.get(steps[0])
    return _field(cast("JsonObject", below), steps[1:]) if len(steps) > 1 and isinstance(below, dict) else None


def _texts(value: object) -> list[str]:
    """Return every text below a value, and the keys of its objects."""
    if isinstance(value, dict):
        found = cast("JsonObject", value)
        return [*found, *(text for item in found.values() for text in _texts(item))]
    if isinstance(value, list):
        return [text for item in cast("list[object]", value) for text in _texts(item)]
    return [str(value).lower() if isinstance(value, bool) else str(value)]
