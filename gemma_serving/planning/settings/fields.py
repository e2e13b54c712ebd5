"""One walk over the blocks of settings: keys in the file, types, effects of a change, checks, and values as text.

A path is the attribute path, such as `tpu.max_run_duration_s`; its key in the file is `tpu.maxRunDuration`.
"""

import json
import types
import typing
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from gemma_serving.contracts.fields import camel_case
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.numbers import is_number
from gemma_serving.planning.settings.annotations import (
    Constraint,
    EffectName,
    HasProblems,
    Key,
    Limit,
    OnChange,
    OneOf,
    Quantity,
    Unusable,
    WordOrList,
    one_of,
)

_NAMES_WITH_UNIT: Final = ("_per_s", "audio_s", "ttft_s")
"""Ends of names whose seconds are a rate or a measured number, not a duration with a unit in the file."""


MAY_BE_OUTPUT: Final = "may be an output"  # a pulumi.Input, which is checked only if it is known
_BLOCK: Final = "a block of settings"
_WORDS: Final[Mapping[object, str]] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list",
    Sequence: "a list",
    Mapping: "a map",
}
"""Types in messages."""
Place: TypeAlias = tuple[str | int, ...]
"""Keys of blocks and maps, and indexes of lists, from the outside in."""


class Problem(NamedTuple):
    """A problem with a value."""

    place: Place
    text: str
    """The expected value, or the contradiction, as a clause; empty for an unknown or a missing key."""
    kind: Literal["value", "unknown", "missing"] = "value"


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
    def file_key(self) -> str:
        """Key in the block. An option whose key is inside another block has its own there, until the reader converts that block."""
        return setting_key(self.path) if "." in self.key else self.key

    @property
    def allowed(self) -> str:
        """The values that the type and its limits allow, such as "a whole number of 1 or more"."""
        origin = typing.get_origin(self.hint) or self.hint
        if origin is typing.Literal:
            return one_of(typing.get_args(self.hint))
        if origin is typing.Union or origin is types.UnionType:
            return "text, a number, true or false" if bool in typing.get_args(self.hint) else _BLOCK
        kind = _WORDS.get(origin, _BLOCK)
        limit = self.limit
        if limit is None:
            return kind
        if limit.multiple_of > 1:
            return f"{limit}"
        return f"{kind} {limit}" if limit.at_least is None else f"{kind} of {limit}"

    def problems(self, value: object, place: Place = ()) -> Iterator[Problem]:
        """Yield what a value or a part of it has to be, such as "expected a number above 0"; nothing if its type and annotations allow it."""
        if MAY_BE_OUTPUT in self.annotations and (isinstance(value, Awaitable) or hasattr(value, "apply")):
            return  # an output of Pulumi, which the planner does not import
        problem = self._of_type(value)
        parts = [] if problem else list(self._of_parts(value, place))
        yield from parts
        if not parts:
            problem = problem or self._of_annotations(value)
        if problem is not None:
            yield Problem(place, problem)

    def problem(self, value: object) -> str | None:
        """Return the first of these problems, without its place; None if there is none."""
        return next((problem.text for problem in self.problems(value)), None)

    def _of_type(self, value: object) -> str | None:
        choices = next((annotation for annotation in self.annotations if isinstance(annotation, OneOf)), None)
        if _has_type(self.hint, value) and (self.limit is None or self.limit.allows(value)):
            return None
        if choices is not None:
            return f"expected {choices}"
        unusable = [one.reasons for one in self.annotations if isinstance(one, Unusable)]
        why = next((f". {one[str(value)].rstrip('.')}" for one in unusable if str(value) in one), "")
        return f"expected {self.allowed}{why}"

    def _of_annotations(self, value: object) -> str | None:
        for annotation in self.annotations:
            if isinstance(annotation, Constraint):
                try:
                    annotation.check(value)
                except ValueError as error:
                    return str(error)
        return None

    def _of_parts(self, value: object, place: Place) -> Iterator[Problem]:
        name, part = self.parts
        if isinstance(value, Mapping) and part is not None:
            for key, one in cast("Mapping[str, object]", value).items():
                yield from name.problems(key, (*place, key)) if name else ()
                yield from part.problems(one, (*place, key))
        elif part is not None:
            for index, one in enumerate(cast("Sequence[object]", value)):
                yield from part.problems(one, (*place, index))

    @property
    def parts(self) -> "tuple[SettingField | None, SettingField | None]":
        """The keys of a map as a field, and its values or the items of a list; None for another type."""
        return _parts(self.hint)

    def in_file(self, value: object) -> object:
        """Return a value as the file has it: a number with its unit, a list, or its only word without brackets."""
        if self.quantity is not None and isinstance(value, int):
            return self.quantity.spell(value)
        if not isinstance(value, tuple):
            return value
        items = list(cast("tuple[object, ...]", value))
        is_word = len(items) == 1 and any(isinstance(annotation, WordOrList) for annotation in self.annotations)
        return items[0] if is_word else items

    @property
    def block(self) -> type | None:
        """The block that the field holds; None for a value."""
        return self.hint if isinstance(self.hint, type) and is_dataclass(self.hint) else None


def setting_key(name: str) -> str:
    """Return the key of a field in the file. A duration or a size has its unit in the value: `memory_mib` is `memory`."""
    if name.endswith("_mib"):
        return camel_case(name.removesuffix("_mib"))
    return camel_case(name.removesuffix("_s") if is_duration(name) else name)


def file_key(path: str) -> str:
    """Return the key in the file of an attribute path: `tpu.max_run_duration_s` is `tpu.maxRunDuration`."""
    return ".".join(map(setting_key, path.split(".")))


def is_duration(path: str) -> bool:
    """Return whether a field holds a duration, which the file spells with its unit."""
    return path.endswith("_s") and not path.endswith(_NAMES_WITH_UNIT)


def block_fields(
    block: type, path: str = "", key: str = "", effect: EffectName | None = None
) -> Iterator[SettingField]:
    """Yield the fields of a block, each followed by the fields of its own block. `path`, `key` and `effect` are those of the block."""
    for field in own_fields(block):
        found = field._replace(
            path=f"{path}.{field.path}".removeprefix("."),
            key=f"{key}.{field.key}".removeprefix("."),
            effect=field.effect or effect,
        )
        yield found
        if found.block is not None:
            yield from block_fields(found.block, found.path, found.key, found.effect)


@cache
def own_fields(block: type) -> Sequence[SettingField]:
    """Return the fields of a block, without those of its blocks."""
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
        value, is_optional, inside = split_annotations(inner)
        return value, is_optional, (*inside, *annotations)
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        every = typing.get_args(hint)
        known = [one for one in every if (typing.get_origin(one) or type(one)) not in {Awaitable, typing.ForwardRef}]
        mark = () if known == list(every) else (MAY_BE_OUTPUT,)
        members = [one for one in known if one is not types.NoneType]
        if members[1:]:
            return typing.Union[tuple(members)], types.NoneType in every, mark  # noqa: UP007 - the members are known at run time only
        value, _, annotations = split_annotations(members[0])
        return value, types.NoneType in every, (*annotations, *mark)
    return hint, False, ()


def check_block(block: object, name: str, *, in_python: bool = False) -> None:
    """Raise PlanningError for the first value of a block that its annotations reject, and for keys that contradict each other.

    A value that equals its default is not checked, nor is an empty text or 0, which a question has for a value that is not set. With `in_python`
    both are, and the message names attributes in backticks instead of keys of a file, below `name`.
    """
    for problem in _problems(block, name, in_python=in_python):
        raise PlanningError(problem)


def _problems(block: object, name: str, *, in_python: bool) -> Iterator[str]:
    tick = "`" if in_python else ""
    for field in own_fields(type(block)):
        value: object = getattr(block, field.path)
        place = f"{name}.{field.path if in_python else field.key}".removeprefix(".")
        is_empty = field.default is MISSING and not value and type(value) not in {bool, dict}
        if is_empty and in_python:
            yield f"`{place}` is {value!r}, but it is required. Set it."
        is_unset = (value is None and field.is_optional) if in_python else (value is None or value == field.default)
        if is_empty or is_unset:
            continue
        for problem in field.problems(value):
            yield _sentence(field, value, f"{tick}{place}", problem, in_python=in_python)
        for one in cast("Sequence[object]", value) if isinstance(value, list | tuple) else (value,):
            if is_dataclass(one):
                yield from _problems(one, place, in_python=in_python)
    yield from (f"{tick}{name}{tick}: {problem}.".removeprefix("``: ") for problem in contradictions(block))


def _sentence(field: SettingField, value: object, place: str, problem: Problem, *, in_python: bool) -> str:
    """Return a problem as a sentence. In Python it shows no value of a map or of an object, which may hold a secret, and names a class."""
    shown = part_at(value, problem.place)
    words = json.dumps(shown) if isinstance(shown, str) else f"{shown}"
    if not in_python:
        return f"{place} is {words}; {problem.text}."
    if isinstance(value, Mapping):
        place += "".join(f"[{key!r}]" for key in problem.place)
        words = "invalid"
    elif not isinstance(shown, str | int | float | list | tuple | None):
        words = f"a {type(shown).__name__}"
    hint: Any = field.parts[1].hint if problem.place and field.parts[1] else field.hint
    classes = " or ".join(one.__name__ for one in typing.get_args(hint) or (hint,)) if _BLOCK in problem.text else ""
    return f"{place}` is {words}; {problem.text.replace(_BLOCK, classes)}."


def contradictions(block: object) -> Iterator[str]:
    """Return the contradictions between keys of a block, and what to change."""
    return cast("HasProblems", block).problems() if hasattr(block, "problems") else iter(())


def part_at(value: object, place: Place) -> object:
    """Return the part of a value at a place; None if it has none. The place of a map's key is that of its value."""
    for step in place:
        if isinstance(value, Mapping):
            value = cast("Mapping[str | int, object]", value).get(step)
        elif isinstance(value, list | tuple) and isinstance(step, int):
            value = cast("Sequence[object]", value)[step]
        else:
            return None
    return value


@cache
def _parts(hint: object) -> tuple[SettingField | None, SettingField | None]:
    arguments, origin = typing.get_args(hint), typing.get_origin(hint)
    if origin in {tuple, Sequence}:
        return None, own_field("", arguments[0])
    return (own_field("", arguments[0]), own_field("", arguments[1])) if origin in {Mapping, dict} else (None, None)


def _has_type(hint: object, value: object) -> bool:
    origin = typing.get_origin(hint) or hint
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if origin is typing.Union or origin is types.UnionType:
        return any(_has_type(one, value) for one in typing.get_args(hint))
    if origin is int or origin is float:
        return is_number(value) and (origin is float or isinstance(value, int))
    return isinstance(value, list | tuple if origin in {tuple, Sequence} else cast("type", origin))
