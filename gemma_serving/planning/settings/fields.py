"""One walk over the blocks of settings: keys in the file, types, effects of a change, checks, and values as text.

A path is the attribute path, such as `tpu.max_run_duration_s`; its key in the file is `tpu.maxRunDuration`.
"""

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Final, NamedTuple, cast

from gemma_serving.contracts.fields import camel_case
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.numbers import is_number
from gemma_serving.planning.settings.annotations import (
    Consistent,
    Constraint,
    EffectName,
    HasProblems,
    Key,
    Limit,
    OnChange,
    Quantity,
)

_NAMES_WITH_UNIT: Final = ("_per_s", "audio_s", "ttft_s")
"""Ends of names whose seconds are a rate or a measured number, not a duration with a unit in the file."""


class SettingField(NamedTuple):
    """One field of a block."""

    path: str
    """Attribute path, such as `tpu.max_run_duration_s`."""
    key: str
    """Key in the file, such as `tpu.maxRunDuration`."""
    hint: object
    """Its type, without None and without annotations."""
    is_optional: bool
    annotations: tuple[object, ...]
    """Annotations of the value, then of the field (`planning.settings.annotations`)."""
    effect: EffectName | None
    """Effect of a change, from the field or its block. None: the server changes."""
    default: object
    """Value of a field that is not set. MISSING: it has to be set."""

    @property
    def quantity(self) -> Quantity | None:
        """How the file spells the number with its unit; None for a value without a unit."""
        return next((annotation for annotation in self.annotations if isinstance(annotation, Quantity)), None)

    @property
    def limit(self) -> Limit | None:
        """Limits of a number; None without limits."""
        return next((annotation for annotation in self.annotations if isinstance(annotation, Limit)), None)

    @property
    def has_number(self) -> bool:
        """True for a number that the file spells without a unit."""
        return self.quantity is None and (self.hint is int or self.hint is float)

    @property
    def allowed(self) -> str:
        """The allowed numbers in words, such as "a whole number of 1 or more"."""
        kind = "a whole number" if self.hint is int else "a number"
        limit = self.limit
        if limit is None:
            return kind
        return f"{kind} of {limit}" if limit.at_least is not None or limit.one_of else f"{kind} {limit}"

    def problem(self, value: object) -> str | None:
        """Return what a value has to be, such as "it must be a number above 0"; None if its type and annotations allow it."""
        if self.has_number and not self._is_number(value):
            return f"it must be {self.allowed}"
        for annotation in self.annotations:
            if isinstance(annotation, Constraint) and not isinstance(annotation, Consistent):
                try:
                    annotation.check(value)
                except ValueError as error:
                    return str(error)
        return None

    def _is_number(self, value: object) -> bool:
        is_kind = is_number(value) and (self.hint is float or isinstance(value, int))
        return is_kind and (self.limit is None or self.limit.allows(value))

    @property
    def block(self) -> type | None:
        """The block that the field holds; None for a value."""
        return self.hint if isinstance(self.hint, type) and is_dataclass(self.hint) else None


def setting_key(name: str) -> str:
    """Return the key of a field in the file. A duration or a size has its unit in the value: `memory_mib` is `memory`."""
    if name.endswith("_mib"):
        return camel_case(name.removesuffix("_mib"))
    return camel_case(name.removesuffix("_s") if is_duration(name) else name)


def is_duration(path: str) -> bool:
    """Return whether a field holds a duration, which the file spells with its unit."""
    return path.endswith("_s") and not path.endswith(_NAMES_WITH_UNIT)


def block_fields(
    block: type, path: str = "", key: str = "", effect: EffectName | None = None
) -> Iterator[SettingField]:
    """Yield the fields of a block, each followed by the fields of its own block. `path`, `key` and `effect` are those of the block."""
    for field in _own_fields(block):
        found = field._replace(
            path=f"{path}.{field.path}".removeprefix("."),
            key=f"{key}.{field.key}".removeprefix("."),
            effect=field.effect or effect,
        )
        yield found
        if found.block is not None:
            yield from block_fields(found.block, found.path, found.key, found.effect)


@cache
def _own_fields(block: type) -> Sequence[SettingField]:
    return tuple(
        own_field(
            field.name, field.type, field.default if field.default_factory is MISSING else field.default_factory()
        )
        for field in fields(cast("Any", block))
    )


def own_field(name: str, hint: object, default: object = MISSING) -> SettingField:
    """Return a field by its annotation. Its path is its name."""
    value, is_optional, annotations = split_annotations(hint)
    return SettingField(
        path=name,
        key=next((annotation.name for annotation in annotations if isinstance(annotation, Key)), setting_key(name)),
        hint=value,
        is_optional=is_optional,
        annotations=annotations,
        effect=next((annotation.name for annotation in annotations if isinstance(annotation, OnChange)), None),
        default=default,
    )


def split_annotations(hint: object) -> tuple[object, bool, tuple[object, ...]]:
    """Return a type without None and annotations, whether None is allowed, and the annotations from inside out."""
    if typing.get_origin(hint) is typing.Annotated:
        inner, *annotations = typing.get_args(hint)
        value, is_optional, own = split_annotations(inner)
        return value, is_optional, (*own, *annotations)
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        members = [member for member in typing.get_args(hint) if member is not types.NoneType]
        value, _, annotations = split_annotations(members[0])
        return value, True, annotations
    return hint, False, ()


_MOST_ACCEPTED: Final = 4_096
_ACCEPTED: Final[dict[int, HasProblems]] = {}
"""Blocks without a problem, by identity: a plan asks for its alternatives hundreds of times, mostly with the same frozen blocks."""


def check_block(block: HasProblems, path: str = "") -> None:
    """Raise PlanningError for the first value of a block that its annotations reject, and for keys that contradict each other.

    A value that equals its default is not checked, nor is an empty text or 0, which a question has for what nobody set.
    The message names fields by path in backticks, as messages of the planner do.
    """
    if _ACCEPTED.get(id(block)) is block:
        return
    for problem in _problems(block, path):
        raise PlanningError(problem)
    if len(_ACCEPTED) == _MOST_ACCEPTED:
        _ACCEPTED.clear()
    _ACCEPTED[id(block)] = block


def _problems(block: HasProblems, path: str) -> Iterator[str]:
    for field in _own_fields(type(block)):
        value: object = getattr(block, field.path)
        if value is None or value == field.default or (field.default is MISSING and not value):
            continue
        place = f"{path}.{field.path}".removeprefix(".")
        if field.block is not None:
            yield from _problems(cast("HasProblems", value), place)
        yield from _sentence(field, value, place)
        item = _item_of(field.hint)
        for one in cast("tuple[object, ...]", value) if item is not None else ():
            yield from _sentence(item, one, place)
    if hasattr(block, "problems"):
        yield from (f"`{path}`: {problem}." if path else f"{problem}." for problem in block.problems())


@cache
def _item_of(hint: object) -> SettingField | None:
    """Return the items of a list as a field with the annotations of their type; None for another type."""
    return own_field("", typing.get_args(hint)[0]) if typing.get_origin(hint) is tuple else None


def _sentence(field: SettingField | None, value: object, path: str) -> Iterator[str]:
    problem = None if field is None else field.problem(value)
    if problem is not None:
        shown = f'"{value}"' if isinstance(value, str) else value
        yield f"`{path}` is {shown}; {problem}."


def defaults_as_text(block: type) -> Mapping[str, str]:
    """Return the default of each number with a unit as the file spells it, by key."""
    return {
        field.key: field.quantity.spell(field.default)
        for field in _own_fields(block)
        if field.quantity is not None and isinstance(field.default, int)
    }
