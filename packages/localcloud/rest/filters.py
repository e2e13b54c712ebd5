"""List filters: the supported subset.

`field=value`, `field:value`, `field!=value`, `field eq value`, `field>=value` and the other comparisons; dotted fields, quoted values; joined
by AND or a blank, optionally in parentheses.
"""

import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

from localcloud.json_values import JsonObject
from localcloud.rest.errors import CloudError

_TERM = re.compile(
    r"""\s*\(?\s*(?P<field>[A-Za-z_][\w.\-]*)\s*(?P<op>!=|<=|>=|=|<|>|:|\beq\b|\bne\b)\s*(?P<value>"[^"]*"|'[^']*'|[^\s()]+)\s*\)?\s*(?:AND\b|$)?"""
)

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SEVERITIES = ("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY")
"""Severities of log entries in ascending order (logging.v2, LogSeverity). An entry without one has DEFAULT."""


def chosen(items: list[tuple[str, JsonObject]], expression: str | None) -> list[tuple[str, JsonObject]]:
    """Return the items that match a filter. Raise 400 for an expression outside the supported part."""
    if not expression or not expression.strip():
        return items
    terms: list[tuple[str, str, str]] = []
    at = 0
    while at < len(expression):
        found = _TERM.match(expression, at)
        if found is None or found.end() == at:
            raise CloudError.field(
                "filter",
                f"Invalid filter '{expression}': supported are field=value, field:value, field!=value and comparisons (<, <=, >, >=), joined by AND.",
            )
        terms.append((found["field"], found["op"], found["value"].strip("\"'")))
        at = found.end()
    return [(key, item) for key, item in items if all(_holds(item, *term) for term in terms)]


def _holds(item: JsonObject, field: str, sign: str, wanted: str) -> bool:
    value = _value(item, field.split("."))
    if sign in COMPARISONS:
        left, right = _comparable(_text(value)), _comparable(wanted)
        return value is not None and type(left) is type(right) and COMPARISONS[sign](left, right)
    if sign == ":":
        if wanted == "*":
            return value is not None
        if isinstance(value, dict):
            return wanted in value
        if isinstance(value, list):
            return wanted in [_text(entry) for entry in cast("list[Any]", value)]
        return value is not None and wanted in _text(value)
    same = value is not None and _text(value) == wanted
    return same if sign in {"=", "eq"} else not same


def _comparable(text: str) -> float | datetime | str:
    """Return a severity or a number as a number, a time as a time, other text unchanged."""
    if text in SEVERITIES:
        return float(SEVERITIES.index(text))
    return number_or_time(text)


def number_or_time(text: str) -> float | datetime | str:
    """Return a number as a number, a time as a time (UTC if it has no time zone), other text unchanged."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(item: JsonObject, steps: list[str]) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value at a path. Label keys can contain dots and dashes, so the rest of the path is first tried as one key."""
    whole = ".".join(steps)
    if whole in item:
        return item[whole]
    below = item.get(steps[0])
    if len(steps) > 1 and isinstance(below, dict):
        return _value(cast("JsonObject", below), steps[1:])
    return None
