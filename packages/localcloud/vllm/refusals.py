"""What vLLM, its libraries and Google refuse, as rows of conditions with their words.

`data/refusals.toml` has them by kind. `data/validators.json`, of vLLM's own configuration, is a copy of the project's table, which a test compares.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from localcloud.json_values import JsonObject, packaged, parts


@cache
def _table(name: str) -> JsonObject:
    """Return a table. The local cloud imports this module and reads none."""
    return packaged("localcloud.vllm", name)


class EngineStartError(Exception):
    """The engine cannot start. The message is the last line of vLLM's traceback; `late_s` is the time until then, after the imports."""

    def __init__(self, message: str, late_s: float = 0.0) -> None:
        self.late_s = late_s
        super().__init__(message)


def refusal_of(kind: str, facts: Mapping[str, Any]) -> JsonObject | None:
    """Return the first row of a kind whose conditions hold, with its words completed; None if none does. A fact that is None is absent."""
    return _first(parts(_table("refusals.toml"), kind), facts)


def refuse(kind: str, facts: Mapping[str, Any]) -> None:
    """Raise EngineStartError with the words of the first row whose conditions hold."""
    row = refusal_of(kind, facts)
    if row is not None:
        raise EngineStartError(row["words"], row.get("late_s", 0.0))


def configuration_refusal(facts: Mapping[str, Any]) -> str:
    """Return vLLM's sentence for arguments that contradict each other; empty if none do."""
    table = _table("validators.json")
    row = _first(table["rows"], {**table["defaults"], **facts})
    return "" if row is None else row["words"]


def _first(rows: Sequence[JsonObject], facts: Mapping[str, Any]) -> JsonObject | None:
    present = {name: value for name, value in facts.items() if value is not None}
    row = next((row for row in rows if all_hold(row.get("if", ()), present)), None)
    if row is None:
        return None
    return {key: _completed(value, present) if isinstance(value, str) else value for key, value in row.items()}


def _completed(words: str, facts: Mapping[str, Any]) -> str:
    for name, value in facts.items():
        words = words.replace(f"{{{name}}}", str(value))
    return words


def all_hold(conditions: Sequence[Sequence[Any]], facts: Mapping[str, Any]) -> bool:
    """Return whether all conditions of a row hold. Of an absent fact only `is absent` and what begins with `is not` hold."""
    return all(_holds(facts, *condition) for condition in conditions)


def _holds(facts: Mapping[str, Any], name: str, comparison: str, value: Any = None) -> bool:  # noqa: ANN401 - JSON is any value
    if name not in facts:
        return comparison in {"is absent", "is not", "is not in"}
    left: Any = facts[name]
    right: Any = facts.get(value, value) if isinstance(value, str) else value
    if comparison == "is present":
        return True
    if comparison in _ORDERS:
        return isinstance(right, int | float) and _ORDERS[comparison](left, right)  # else a fact that is not known here
    return comparison in _COMPARISONS and _COMPARISONS[comparison](left, right)


_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "is at least": operator.ge,
    "is indivisible by": lambda left, right: left % right != 0,
}
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "is": lambda left, right: left == right and isinstance(left, bool) is isinstance(right, bool),
    "is not": operator.ne,
    "is in": lambda left, right: left in right,
    "is not in": lambda left, right: left not in right,
    "ends in": lambda left, right: str(left).endswith(right),
    "has other than": lambda left, right: not set(left) <= set(right),
}
