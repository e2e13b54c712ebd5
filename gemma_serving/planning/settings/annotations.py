"""Annotations of a setting's type: its limits, its form in the file, and the effect of a change.

`Annotated[int, Limit(at_least=1), OnChange("update")]` is a number from 1 whose change updates other resources.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

from msgspec import Struct

from gemma_serving.planning.numbers import LARGEST

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
    from pydantic_core import CoreSchema

T = TypeVar("T")

_WITH_SEPARATORS: Final = 1_000
"""Numbers from which digits are grouped."""
EffectName = Literal["nothing", "update", "revision", "capacity", "service"]


class OnChange(Struct, frozen=True):
    """Effect of a change to a setting, or to one below it, on the deployed stack. Without one, the server itself changes.

    `nothing`: only the plan, outputs or a wait change; if the server changes, its arguments or environment differ too. `update`: resources
    other than the server change. `revision`: the template of a Cloud Run service changes; a TPU VM does not restart its server.
    `capacity`: the inputs of the provider `gcp-tpu` whose change replaces the queued resource. `service`: a different Cloud Run service.
    """

    name: EffectName


class Key(NamedTuple):
    """The key of a field inside another block of the file, such as `lora.rank`. Its flag may also be in `extraArgs`, but not together with the key."""

    name: str


class Rule:
    """What pydantic does with a value, as one annotation: it iterates over its parts, and imports what they need."""

    __slots__ = ()
    __is_annotated_types_grouped_metadata__ = True

    def __iter__(self) -> Iterator[object]:
        """Yield annotations of pydantic."""
        raise NotImplementedError


class Constraint(Rule):
    """A check of each value but None."""

    __slots__ = ()

    def __iter__(self) -> Iterator[object]:
        """Yield the check, and its keywords in the schema."""
        from pydantic import AfterValidator, Field  # noqa: PLC0415 - a plan of a model checks no value, and loads no pydantic

        yield AfterValidator(self._checked)
        yield Field(json_schema_extra=self.keywords())

    def keywords(self) -> dict[str, Any]:
        """Return keywords of a value's JSON schema in addition to its type."""
        return {}

    def _checked(self, value: object) -> object:
        if value is not None:
            self.check(value)
        return value

    def check(self, value: Any) -> None:  # noqa: ANN401 - each annotation has a type of its own
        """Raise ValueError with what is expected, if the value is invalid."""
        raise NotImplementedError


class Matching(Constraint, Struct, frozen=True):
    """Text that matches a pattern. `what` and `example` describe it in messages and editors."""

    pattern: str
    what: str
    example: str = ""

    def check(self, value: str) -> None:
        """Raise ValueError with the form of the text."""
        if not re.fullmatch(self.pattern, value):
            raise ValueError(f"expected {self.what}" + (f" such as {self.example}" if self.example else ""))

    def keywords(self) -> dict[str, Any]:
        """Return the pattern."""
        examples = {"examples": [self.example]} if self.example else {}
        return {**examples, "pattern": self.pattern}


class InFile(Struct, frozen=True):
    """Another block in the file, which is converted into the value."""

    block: type
    convert: Callable[[Any], object]
    """Returns the value. Raises ValueError."""

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":  # noqa: ANN401 - any type
        """Return the schema of the block in JSON, and of the value in Python."""
        from pydantic_core import core_schema  # noqa: PLC0415 - as in Constraint

        in_file = core_schema.no_info_after_validator_function(self.convert, handler.generate_schema(self.block))
        return core_schema.json_or_python_schema(in_file, handler(source))


class Named(Struct, frozen=True):
    """Names that the file may have in place of a block."""

    values: Mapping[str, Any]
    """What each name stands for."""
    read: Callable[[Any], object]
    """Returns the block of such a value."""
    keys: str
    """The required keys of a block, for messages."""

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":  # noqa: ANN401 - any type
        """Return the schema of a block for an object, and of a name for anything else."""
        from pydantic_core import core_schema  # noqa: PLC0415 - as in Constraint

        kinds = {"name": core_schema.no_info_plain_validator_function(self._named), "block": handler(source)}
        return core_schema.tagged_union_schema(kinds, _kind_of_named)

    def __get_pydantic_json_schema__(self, _schema: "CoreSchema", handler: "GetJsonSchemaHandler") -> dict[str, Any]:
        """Return the schema of a name or a block."""
        block = handler(_schema)["oneOf"][-1]
        return {"anyOf": [{"enum": list(self.values), "type": "string"}, block]}

    def _named(self, value: object) -> object:
        found = self.values.get(value) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"expected {' or '.join(self.values)}, or a block with {self.keys}")
        return self.read(found)


def _kind_of_named(value: object) -> str:
    return "block" if isinstance(value, Mapping) or hasattr(value, "__dataclass_fields__") else "name"


class Quantity(Rule, Struct, frozen=True):
    """A whole number that the file has as text with a unit, such as "4h" or "32Gi"."""

    read: Callable[[object], int]
    """Returns the number of a text. Raises ValueError."""
    spell: Callable[[int], str]
    pattern: str
    examples: tuple[str, ...]

    def __iter__(self) -> Iterator[object]:
        """Yield the reader of the file's text, and the least number."""
        from pydantic import BeforeValidator, Field, WithJsonSchema  # noqa: PLC0415 - as in Constraint

        yield Field(ge=0)
        yield BeforeValidator(self._from_file)
        yield WithJsonSchema({"examples": list(self.examples), "pattern": self.pattern, "type": "string"})

    def _from_file(self, value: object, info: "ValidationInfo") -> object:
        return self.read(value) if info.mode == "json" else value


class OneOf(Constraint, Struct, frozen=True):
    """One of some words or whole numbers: a tuple, or the keys of a table, which is read at the first use."""

    values: Collection[object]

    def __str__(self) -> str:
        """Return the values in words: 4, 6 or 8."""
        return one_of(self.values)

    def check(self, value: object) -> None:
        """Raise ValueError with all values."""
        if all(value != one for one in self.values):
            raise ValueError(f"expected {self}")

    def keywords(self) -> dict[str, Any]:
        """Return the values."""
        return {"enum": list(self.values)}


class Items(Constraint, Struct, frozen=True):
    """A list with at least one item, each of them once. `noun` and `key` name it in the message."""

    noun: str
    key: str

    def check(self, value: tuple[object, ...]) -> None:
        """Raise ValueError for an empty list, and for one with duplicates."""
        if not value:
            raise ValueError("expected 1 item or more")
        if len(set(value)) != len(value):
            raise ValueError(f"{self.key} has duplicates; list each {self.noun} once")

    def keywords(self) -> dict[str, Any]:
        """Return the least number of items."""
        return {"minItems": 1}


class _FromAnyList(Rule):
    """A tuple that a program may pass as a list."""

    def __iter__(self) -> Iterator[object]:
        """Yield the permission."""
        from pydantic import Strict  # noqa: PLC0415 - as in Constraint

        yield Strict(strict=False)


ListOf: TypeAlias = Annotated[tuple[T, ...], _FromAnyList()]
"""A list in the file."""


class WordOrList(Rule, Struct, frozen=True):
    """A list of words that the file can also have as its only word, without brackets."""

    example: str
    """A word, for messages."""

    def __iter__(self) -> Iterator[object]:
        """Yield the reader of the file's value, and its schema."""
        from pydantic import BeforeValidator, Field  # noqa: PLC0415 - as in Constraint

        yield BeforeValidator(self._from_file)
        yield Field(json_schema_extra=_or_one_item)

    def _from_file(self, value: object, info: "ValidationInfo") -> object:
        return self.read(value) if info.mode == "json" else value

    def read(self, value: object) -> tuple[str, ...]:
        """Return the words. Raises ValueError."""
        items = tuple(cast("list[object]", value)) if isinstance(value, list | tuple) else (value,)
        words = tuple(item for item in items if isinstance(item, str))
        if words != items:
            raise ValueError(f"expected a word or a list of words, such as {self.example}, without a space")
        return words


def _or_one_item(schema: dict[str, Any]) -> None:
    """Change the schema of a list into that of a list or of its only item."""
    listed = dict(schema)
    schema.clear()
    schema["anyOf"] = [listed["items"], listed]


class Checked(Constraint, Struct, frozen=True):
    """A value that a function accepts. `problem` returns what is wrong, and what to set; None if nothing is."""

    problem: Callable[[Any], str | None]

    def check(self, value: object) -> None:
        """Raise ValueError with the problem."""
        problem = self.problem(value)
        if problem is not None:
            raise ValueError(problem)


class Unusable(NamedTuple):
    """Values that vLLM has but this project rejects, each with the reason as a sentence."""

    reasons: Mapping[str, str]


class Limit(Rule, Struct, frozen=True, kw_only=True):
    """Allowed numbers."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    multiple_of: int = 1

    def __iter__(self) -> Iterator[object]:
        """Yield the limits. No number is above LARGEST, so sums and products of two stay finite."""
        from pydantic import Field  # noqa: PLC0415 - as in Constraint

        most = round(LARGEST) if self.at_most is None else self.at_most
        step = self.multiple_of if self.multiple_of > 1 else None
        yield Field(ge=self.at_least, gt=self.above, le=most, multiple_of=step)

    def __str__(self) -> str:
        """Return the limits in words: "1 or more", "above 0 and at most 1", "a multiple of 16"."""
        if self.multiple_of > 1:
            return f"a multiple of {self.multiple_of}"
        words = (
            None if self.at_least is None else f"{_figure(self.at_least)} or more",
            None if self.above is None else f"above {_figure(self.above)}",
            None if self.at_most is None else f"at most {_figure(self.at_most)}",
        )
        return " and ".join(word for word in words if word)


class _MayBeOutput:
    """A value that a Pulumi program may pass as an output, which is checked only if it is known."""

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":  # noqa: ANN401 - any type
        """Return the schema of the known value."""
        from pydantic_core import core_schema  # noqa: PLC0415 - as in Constraint

        known = handler.generate_schema(get_args(source)[0])
        return core_schema.no_info_wrap_validator_function(_unless_output, known)


def _unless_output(value: object, check: Callable[[object], object]) -> object:
    is_output = issubclass(type(value), Awaitable) or hasattr(
        value, "apply"
    )  # Pulumi's, which the planner does not import
    return value if is_output else check(value)


MAY_BE_OUTPUT: Final = _MayBeOutput()
"""Annotation of `pulumi.Input`."""


def one_of(values: Iterable[object]) -> str:
    """Return values in words: 4, 6 or 8."""
    *most, last = map(repr, values)
    return f"{', '.join(most)} or {last}" if most else last


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= _WITH_SEPARATORS else f"{number:g}"
