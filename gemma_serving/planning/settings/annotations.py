"""Annotations of a setting's type: its limits, its form in the file, and the effect of a change.

`Annotated[int, Limit(ge=1), OnChange("update")]` is a number from 1 whose change updates other resources. pydantic reads them by their
hooks, and is imported by the first one that it calls: a plan of a model checks no value.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

from msgspec import Struct

from gemma_serving.planning.numbers import LARGEST

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

T = TypeVar("T")

_WITH_SEPARATORS: Final = 1_000
"""Numbers from which digits are grouped."""
EffectName = Literal["nothing", "update", "revision", "capacity", "service"]


class OnChange(NamedTuple):
    """Effect of a change to a setting, or to one below it, on the deployed stack. Without one, the server itself changes.

    `nothing`: only the plan, outputs or a wait change; if the server changes, its arguments or environment differ too. `update`: resources
    other than the server change. `revision`: the template of a Cloud Run service changes; a TPU VM does not restart its server.
    `capacity`: the inputs of the provider `gcp-tpu` whose change replaces the queued resource. `service`: a different Cloud Run service.
    """

    name: EffectName


class Key(NamedTuple):
    """The key of a field inside another block of the file, such as `lora.rank`. Its flag may also be in `extraArgs`, but not together with the key."""

    name: str


class Unusable(NamedTuple):
    """Values that vLLM has but this project rejects, each with the reason as a sentence."""

    reasons: Mapping[str, str]


def _with(schema: "CoreSchema", **keywords: object) -> "CoreSchema":
    return cast("CoreSchema", {**schema, **keywords})


def _core() -> ModuleType:
    from pydantic_core import core_schema  # noqa: PLC0415 - see the module

    return core_schema


class Limit(Struct, frozen=True, kw_only=True):
    """Allowed numbers, by pydantic's names. No number is above LARGEST, so sums and products of two stay finite."""

    ge: float | None = None
    gt: float | None = None
    le: float = round(LARGEST)
    multiple_of: int | None = None

    def __str__(self) -> str:
        """Return the limits in words: "of 1 or more", "above 0 and at most 1"."""
        words = (
            None if self.ge is None else f"of {_figure(self.ge)} or more",
            None if self.gt is None else f"above {_figure(self.gt)}",
            None if self.le == LARGEST else f"at most {_figure(self.le)}",
        )
        return " and ".join(word for word in words if word)

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":  # noqa: ANN401 - any type
        """Return the schema of a number with the limits."""
        stated = {name: getattr(self, name) for name in self.__struct_fields__}
        return _with(handler(source), **{name: limit for name, limit in stated.items() if limit is not None})


class Rule(Struct, frozen=True, eq=False):
    """A check of each value but None."""

    problem: Callable[[Any], str | None]
    """Returns what is wrong, and what to set; None if nothing is."""
    keywords: Mapping[str, Any] = {}
    """Keywords of the value's JSON schema in addition to its type."""

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":  # noqa: ANN401 - any type
        """Return the schema of the type with the check after it."""
        return _core().no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: "CoreSchema", handler: "GetJsonSchemaHandler") -> dict[str, Any]:
        """Return the schema of the type with the keywords."""
        return {**handler(schema), **self.keywords}

    def _checked(self, value: object) -> object:
        problem = None if value is None else self.problem(value)
        if problem is not None:
            raise ValueError(problem)
        return value


def matching(pattern: str, what: str, example: str = "") -> Rule:
    """Return the rule of text that matches a pattern. `what` and `example` describe it in messages and editors."""
    expected = f"expected {what}" + (f" such as {example}" if example else "")
    examples = {"examples": [example]} if example else {}
    return Rule(lambda text: None if re.fullmatch(pattern, text) else expected, {**examples, "pattern": pattern})


def distinct(noun: str, key: str) -> Rule:
    """Return the rule of a list with at least one item, each of them once. `noun` and `key` name it in the message."""

    def problem(items: tuple[object, ...]) -> str | None:
        if not items:
            return "expected 1 item or more"
        return f"{key} has duplicates; list each {noun} once" if len(set(items)) != len(items) else None

    return Rule(problem, {"minItems": 1})


class OneOf(Struct, frozen=True):
    """One of some words or whole numbers: a tuple, or the keys of a table, which is read at the first use."""

    values: Collection[object]

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":  # noqa: ANN401 - any type
        """Return the schema of the type with the check after it."""
        rule = Rule(lambda value: None if value in self.values else f"expected {one_of(self.values)}")
        return rule.__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, schema: "CoreSchema", handler: "GetJsonSchemaHandler") -> dict[str, Any]:
        """Return the schema of the type with the values."""
        return {**handler(schema), "enum": list(self.values)}


class Quantity(Struct, frozen=True):
    """A whole number that the file has as text with a unit, such as "4h" or "32Gi"."""

    read: Callable[[object], int]
    """Returns the number of a text. Raises ValueError."""
    spell: Callable[[int], str]
    pattern: str
    examples: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":  # noqa: ANN401 - any type
        """Return the schema of the text in JSON, and of the number in Python."""
        in_file = _core().no_info_plain_validator_function(self.read)
        return _core().json_or_python_schema(in_file, _with(handler(source), ge=0))

    def __get_pydantic_json_schema__(self, *_: object) -> dict[str, Any]:
        """Return the schema of the text."""
        return {"type": "string", "pattern": self.pattern, "examples": list(self.examples)}


class InFile(Struct, frozen=True):
    """Another block in the file, which is converted into the value."""

    block: type
    convert: Callable[[Any], object]
    """Returns the value. Raises ValueError."""

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":  # noqa: ANN401 - any type
        """Return the schema of the block in JSON, and of the value in Python."""
        in_file = _core().no_info_after_validator_function(self.convert, handler.generate_schema(self.block))
        return _core().json_or_python_schema(in_file, handler(source))


class Named(Struct, frozen=True):
    """Names that the file may have in place of a block."""

    values: Mapping[str, Any]
    """The value of each name."""
    read: Callable[[Any], object]
    """Returns the block of such a value."""
    keys: str
    """The required keys of a block, for messages."""

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":  # noqa: ANN401 - any type
        """Return the schema of the block, or of a name for a value that is not an object."""
        return _core().no_info_wrap_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(self, schema: "CoreSchema", handler: "GetJsonSchemaHandler") -> dict[str, Any]:
        """Return the schema of a name or a block."""
        return {"anyOf": [{"type": "string", "enum": list(self.values)}, handler(schema)]}

    def _read(self, value: object, read_block: Callable[[object], object]) -> object:
        if isinstance(value, Mapping):
            return read_block(cast("object", value))
        if not isinstance(value, str) or value not in self.values:
            raise ValueError(f"expected {' or '.join(self.values)}, or a block with {self.keys}")
        return self.read(self.values[value])


class WordOrList(Struct, frozen=True):
    """A list of words that the file can also have as its only word, without brackets."""

    example: str
    """A word, for messages."""

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":  # noqa: ANN401 - any type
        """Return the schema of the list, in JSON with its only word as an alternative."""
        words = handler(source)
        return _core().json_or_python_schema(_core().no_info_before_validator_function(self._items, words), words)

    def __get_pydantic_json_schema__(self, schema: "CoreSchema", handler: "GetJsonSchemaHandler") -> dict[str, Any]:
        """Return the schema of a word or a list."""
        listed = handler(schema)
        return {"anyOf": [listed["items"], listed]}

    def _items(self, value: object) -> list[object]:
        items = cast("list[object]", value) if isinstance(value, list) else [value]
        if not all(isinstance(item, str) for item in items):
            raise ValueError(f"expected a word or a list of words, such as {self.example}, without a space")
        return items


class FromAnyList:
    """A tuple's form as a list. It checks nothing."""

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":  # noqa: ANN401 - any type
        """Return the schema that takes a list, too."""
        return _with(handler(source), strict=False)


ListOf: TypeAlias = Annotated[tuple[T, ...], FromAnyList()]
"""A list in the file, and a tuple that a program may pass as a list."""


class _MayBeOutput:
    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":  # noqa: ANN401 - any type
        known = handler.generate_schema(get_args(source)[0])
        return _core().no_info_wrap_validator_function(_unless_output, known)


def _unless_output(value: object, check: Callable[[object], object]) -> object:
    is_output = issubclass(type(value), Awaitable) or hasattr(value, "apply")  # Pulumi's, which no planner imports
    return value if is_output else check(value)


MAY_BE_OUTPUT: Final = _MayBeOutput()
"""Annotation of `pulumi.Input`: a value that a program may pass as an output, which is checked only if it is known."""


def one_of(values: Iterable[object]) -> str:
    """Return values in words: 4, 6 or 8."""
    *most, last = map(repr, values)
    return f"{', '.join(most)} or {last}" if most else last


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= _WITH_SEPARATORS else f"{number:g}"
