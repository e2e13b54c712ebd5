"""Refusals of vLLM's own configuration: conditions on the words of a server, read from a table.

The simulated server has a copy of the table. `make -C dev/judges configurations` asks vLLM itself, and a test compares its answers with the plan.
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, Final, cast

from msgspec import Struct

from gemma_serving.planning.data.tables import typed_file
from gemma_serving.planning.numbers import is_number, read_json
from gemma_serving.planning.question.server_flags import ServerArgument, read_number
from gemma_serving.planning.settings.vllm_args import OPTIONS, VllmOptions

SPECULATIVE: Final = "speculative_config"
ASYNC: Final = "async_scheduling"
Facts = Mapping[str, object]
"""Values of a server by the name of their flag, and of each key of its speculation, such as `speculative_config.method`; no absent one."""
_FLAGS: Final[Mapping[str, str]] = {option.flag: option.name for option in OPTIONS.values() if option.shape is None}


class Validator(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"conditions": "if"}):
    """One check of vLLM's configuration."""

    name: str
    conditions: tuple[tuple[Any, ...], ...]
    """It refuses if all hold: the name of a fact, a comparison, and a value or the name of another fact."""
    words: str
    """vLLM's sentence, with facts in braces."""
    source: str
    """File of vLLM's package that says it."""
    advice: str = ""
    """Another change that removes the refusal; empty if only other settings do."""
    first: str = "0.19.0"
    """First release that says it, of those that serve Gemma 4."""

    def refuses(self, facts: Facts) -> bool:
        """Return whether all conditions hold."""
        return all(_holds(facts, *condition) for condition in self.conditions)

    def sentence(self, facts: Facts) -> str:
        """Return vLLM's sentence about a server."""
        words = self.words
        for name, value in facts.items():
            words = words.replace(f"{{{name}}}", str(value))
        return words


class _Validators(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    defaults: Mapping[str, Any]
    rows: tuple[Validator, ...]


_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    ">": operator.gt,
    "is at least": operator.ge,
    "is indivisible by": lambda left, right: left % right != 0,
}
"""Comparisons of two numbers; with any other value they do not hold."""
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "is": lambda left, right: left == right and isinstance(left, bool) is isinstance(right, bool),
    "is not": operator.ne,
    "is not in": lambda left, right: left not in right,
    "is in": lambda left, right: left in right,
    "ends in": lambda left, right: str(left).endswith(right),
    "has other than": lambda left, right: not set(left) <= set(right),
}


def _holds(facts: Facts, name: str, comparison: str, value: object = None) -> bool:
    """Return whether a condition holds. Of an absent fact only `is absent` and what begins with `is not` hold."""
    if name not in facts:
        return comparison in {"is absent", "is not", "is not in"}
    left = facts[name]
    right = facts.get(value, value) if isinstance(value, str) else value
    if comparison in _ORDERS:
        return is_number(left) and is_number(right) and _ORDERS[comparison](left, right)
    return comparison == "is present" or (comparison in _COMPARISONS and _COMPARISONS[comparison](left, right))


@cache
def _table() -> _Validators:
    return typed_file("validators.json", _Validators)


@cache
def _about_schedules() -> tuple[Validator, ...]:
    """Return the checks of an asynchronous schedule. Each candidate of a search is read with them, so the others are left out."""
    return tuple(row for row in _table().rows if ASYNC in (name for name, *_ in row.conditions))


def refused_by(facts: Facts) -> tuple[Validator, ...]:
    """Return the checks that refuse a server."""
    return tuple(row for row in _table().rows if row.refuses(facts))


def facts_of(options: VllmOptions, arguments: Sequence[ServerArgument] = (), **model: object) -> Facts:
    """Return the facts of a server: its options, then the arguments after them. `model`: facts that no word of the server states."""
    facts: dict[str, object] = {**_table().defaults, **model, **dict(_given(options))}
    facts |= {name: value for argument in arguments for name, value in _argued(argument)}
    config = facts.get(SPECULATIVE)
    if isinstance(config, Mapping):
        parts = cast("Mapping[str, object]", config)
        facts |= {f"{SPECULATIVE}.{key}": value for key, value in parts.items()}
    else:
        facts.pop(SPECULATIVE, None)
    sizes = [facts[f"{name}_parallel_size"] for name in ("tensor", "pipeline", "prefill_context")]
    if all(map(is_number, sizes)):
        facts["world_size"] = math.prod(filter(is_number, sizes))
    sequences, proposed = facts.get("max_num_seqs"), facts.get(f"{SPECULATIVE}.num_speculative_tokens")
    if is_number(sequences) and is_number(proposed):
        facts["proposed_tokens"] = sequences * (proposed + 1)
    return facts


def taken_together(given: VllmOptions, base: VllmOptions) -> VllmOptions:
    """Return the given options over the recommended ones, without a recommended asynchronous schedule if vLLM refuses it beside the given ones."""
    merged = given.merged_over(base)
    facts = facts_of(merged)
    is_refused = any(row.refuses(facts) for row in _about_schedules())
    return replace(merged, async_scheduling=given.async_scheduling) if is_refused else merged


def _given(options: VllmOptions) -> Iterator[tuple[str, object]]:
    for name in _FLAGS.values():
        value = getattr(options, name)
        if value is not None:
            yield name, value
    if options.lora_adapters is not None:
        yield "enable_lora", True


def _argued(argument: ServerArgument) -> Iterator[tuple[str, object]]:
    """Yield the fact of an argument that vLLM's parser accepts."""
    if argument.flag is None or argument.problem or argument.key:
        return
    yield (
        fact_of(argument.name),
        not argument.is_off if argument.flag.kind in {"switch", "toggle"} else _value_of(argument),
    )


def _value_of(argument: ServerArgument) -> object:
    """Return the value of an argument as vLLM's parser reads it."""
    text = " ".join(argument.value)
    number = argument.flag.number if argument.flag is not None else ""
    with suppress(ValueError):
        return read_number(text, number) if number else read_json(text)
    return text


def fact_of(flag: str) -> str:
    """Return the name of the fact that a flag states."""
    return _FLAGS.get(flag, flag.removeprefix("--").replace("-", "_"))
