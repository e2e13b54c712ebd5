"""What vLLM's own configuration refuses, as conditions on the arguments: a copy of the project's table, which a test compares."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from localcloud.json_values import JsonObject, packaged
from localcloud.vllm.arguments import Arguments

_SPECULATIVE = "speculative_config"


@cache
def _table() -> JsonObject:
    return packaged("localcloud.vllm", "validators.json")


def refusal(arguments: Arguments, *, gpus: int | None = None) -> str:
    """Return vLLM's sentence for arguments that contradict each other; empty if none do. `gpus`: devices of a GPU machine, None for a TPU."""
    known = {"is_tpu": gpus is None, **({} if gpus is None else {"gpus": gpus})}
    return first_refusal(_table()["rows"], {**_table()["defaults"], **facts_of(arguments), **known})


def first_refusal(rows: Sequence[JsonObject], facts: Mapping[str, Any]) -> str:
    """Return the words of the first row whose conditions hold; empty if none does. A fact that is None is absent."""
    present = {name: value for name, value in facts.items() if value is not None}
    for row in rows:
        if all(_holds(present, *condition) for condition in row["if"]):
            words: str = row["words"]
            for name, value in present.items():
                words = words.replace(f"{{{name}}}", str(value))
            return words
    return ""


def facts_of(arguments: Arguments) -> JsonObject:
    """Return the given values by flag, and those of each key of the speculation."""
    values = {each.name: getattr(arguments, each.name) for each in fields(Arguments)}
    facts: JsonObject = {**values.pop("unused"), **values}
    config: JsonObject = facts[_SPECULATIVE]
    facts[_SPECULATIVE] = config or None
    facts |= {f"{_SPECULATIVE}.{key}": value for key, value in config.items()}
    facts["world_size"] = facts["tensor_parallel_size"] * facts.get("pipeline_parallel_size", 1)
    proposed, sequences = config.get("num_speculative_tokens"), facts["max_num_seqs"]
    if isinstance(proposed, int) and sequences is not None:
        facts["proposed_tokens"] = sequences * (proposed + 1)
    return {name: value for name, value in facts.items() if value is not None}


def _holds(facts: Mapping[str, Any], name: str, comparison: str, value: Any = None) -> bool:  # noqa: ANN401 - JSON is any value
    """Return whether a condition of the table holds. Of an absent fact only `is absent` and what begins with `is not` hold."""
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
