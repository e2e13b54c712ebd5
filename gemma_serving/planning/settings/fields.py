"""One walk over the blocks of settings: keys in the file, types, effects of a change, and values as text.

A path is the attribute path, such as `tpu.max_run_duration_s`; its key in the file is `tpu.maxRunDuration`.
"""

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from gemma_serving.contracts.fields import camel_case
from gemma_serving.planning.settings.annotations import (
    LARGEST,
    EffectName,
    InFile,
    Key,
    OnChange,
    OneOf,
    Quantity,
    WordOrList,
    one_of,
)
from gemma_serving.planning.settings.words import Word

if TYPE_CHECKING:
    from pydantic import ConfigDict, GetCoreSchemaHandler
    from pydantic_core import CoreSchema

T = TypeVar("T")
_NAMES_WITH_UNIT: Final = ("_per_s", "audio_s", "ttft_s")
"""Ends of names whose seconds are a rate or a measured number, not a duration with a unit in the file."""


BLOCK: Final = "a block of settings"
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
_LIMITS: Final = {"ge": "of {} or more", "gt": "above {}", "le": "at most {}"}
"""Limits of a number by pydantic's names, in messages."""
_WITH_SEPARATORS: Final = 1_000
"""Numbers from which digits are grouped."""


class SettingField(NamedTuple):
    """One field of a block."""

    path: str
    """Attribute path, such as `tpu.max_run_duration_s`."""
    key: str
    """Key in the file, such as `tpu.maxRunDuration`."""
    annotated: object
    """Its type with everything, as pydantic reads it."""
    hint: object
    """Its type, without None and without annotations."""
    is_optional: bool
    annotations: tuple[object, ...]
    """Annotations of the value, then of the field (`planning.settings.annotations`), those of pydantic also with their arguments."""
    effect: EffectName | None
    """Effect of a change, from the field or its block. None: the server changes."""
    default: object
    """Value of a field that is not set. MISSING: it has to be set."""

    def annotation(self, kind: type[T]) -> T | None:
        """Return the annotation of a kind; None without one."""
        return next((one for one in self.annotations if isinstance(one, kind)), None)

    @property
    def quantity(self) -> Quantity | None:
        """How the file spells the number with its unit; None for a value without a unit."""
        return self.annotation(Quantity)

    @property
    def file_key(self) -> str:
        """Key in the block. An option whose key is inside another block has its own there, until the reader converts that block."""
        return setting_key(self.path) if "." in self.key else self.key

    @property
    def allowed(self) -> str:
        """The values that the type and its limits allow, such as "a whole number of 1 or more"."""
        choices, limits, quantity = self.annotation(OneOf), self.words, self.quantity
        if choices is not None:
            return one_of(choices.values)
        if "multiple_of" in limits:
            return f"a multiple of {limits['multiple_of']}"
        origin = typing.get_origin(self.hint) or self.hint
        if origin is typing.Literal:
            return one_of(typing.get_args(self.hint))
        if bool in typing.get_args(self.hint):
            return "text, a number, true or false"
        stated = [name for name in _LIMITS if limits.get(name, LARGEST) != LARGEST]
        words = " and ".join(
            _LIMITS[name].format((quantity.spell if quantity else _figure)(limits[name])) for name in stated
        )
        return words.removeprefix("of ") if quantity else f"{_WORDS.get(origin, BLOCK)} {words}".rstrip()

    @property
    def words(self) -> "Mapping[str, Any]":
        """The keywords of pydantic's annotations, such as limits of a number."""
        return {name: one for word in self.annotations if isinstance(word, Word) for name, one in word.keywords.items()}

    @property
    def parts(self) -> "tuple[SettingField | None, SettingField | None]":
        """The keys of a map as a field, and its values or the items of a list; None for another type."""
        arguments, origin = typing.get_args(self.hint), typing.get_origin(self.hint)
        if origin in {tuple, Sequence}:
            return None, own_field("", arguments[0])
        return (own_field("", arguments[0]), own_field("", arguments[1])) if origin in {Mapping, dict} else (None, None)

    def in_file(self, value: object) -> object:
        """Return a value as the file has it: a number with its unit, a list, or its only word without brackets."""
        if self.quantity is not None and isinstance(value, int):
            return self.quantity.spell(value)
        if not isinstance(value, tuple):
            return value
        items = list(cast("tuple[object, ...]", value))
        return items[0] if len(items) == 1 and self.annotation(WordOrList) else items

    @property
    def block(self) -> type | None:
        """The block that the field holds; None for a value."""
        return self.hint if isinstance(self.hint, type) and is_dataclass(self.hint) else None

    @property
    def block_in_file(self) -> type | None:
        """The block that the file has for it; None for a value."""
        in_file = self.annotation(InFile)
        return self.block if in_file is None else in_file.block


def setting_key(name: str) -> str:
    """Return the key of a field in the file. A duration or a size has its unit in the value: `memory_mib` is `memory`."""
    if name.endswith("_mib"):
        return camel_case(name.removesuffix("_mib"))
    return camel_case(name if name.endswith(_NAMES_WITH_UNIT) else name.removesuffix("_s"))


_CONFIG: Final["ConfigDict"] = {
    "alias_generator": setting_key,
    "allow_inf_nan": False,
    "arbitrary_types_allowed": True,
    "extra": "forbid",
    "revalidate_instances": "always",
    "strict": True,
}
"""pydantic's configuration of a block: it converts no value, and ignores no key."""


class Block:
    """A block of settings, or the arguments of a component. pydantic's word for its contradictions, a decorated method, would import pydantic here."""

    __slots__ = ()
    __pydantic_config__ = _CONFIG

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":  # noqa: ANN401 - a type
        """Return the schema of the fields, with the contradictions after it, which count only if each value is valid."""
        from pydantic_core import core_schema  # noqa: PLC0415 - as in annotations

        return core_schema.no_info_after_validator_function(_consistent, handler(source))

    def problems(self) -> Iterator[str]:
        """Yield each contradiction between keys of the block, and what to change."""
        return iter(())


def _consistent(block: Block) -> Block:
    for problem in block.problems():
        raise ValueError(problem)
    return block


def file_key(path: str) -> str:
    """Return the key in the file of an attribute path: `tpu.max_run_duration_s` is `tpu.maxRunDuration`."""
    return ".".join(map(setting_key, path.split(".")))


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
    value, is_optional, annotations = _split(hint)
    field = SettingField(name, setting_key(name), hint, value, is_optional, annotations, None, default)
    key, change = field.annotation(Key), field.annotation(OnChange)
    return field._replace(key=key.name if key else field.key, effect=change.name if change else None)


def _split(hint: object) -> tuple[object, bool, tuple[object, ...]]:
    """Return a type without None and annotations, whether None is allowed, and the annotations from inside out."""
    if typing.get_origin(hint) is typing.Annotated:
        inner, *annotations = typing.get_args(hint)
        value, is_optional, inside = _split(inner)
        arguments = (one for word in annotations if isinstance(word, Word) for one in word.arguments)
        return value, is_optional, (*inside, *annotations, *arguments)
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        every = typing.get_args(hint)
        members = [one for one in every if one is not types.NoneType]
        if members[1:]:
            plain = tuple(_split(one)[0] for one in members)
            return typing.Union[plain], types.NoneType in every, ()  # noqa: UP007 - the members are known at run time only
        value, _, annotations = _split(members[0])
        return value, types.NoneType in every, annotations
    return hint, False, ()


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= _WITH_SEPARATORS else f"{number:g}"
