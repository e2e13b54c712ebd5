"""Annotations of a setting's type beside pydantic's `words`: checks, the form in the file, and the effect of a change.

`Annotated[int, Field(ge=1, le=LARGEST), OnChange("update")]` is a number from 1 whose change updates other resources.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast

from msgspec import Struct

from gemma_serving.planning import numbers
from gemma_serving.planning.settings.words import AfterValidator, Field, WrapValidator

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, ValidationInfo
    from pydantic_core import CoreSchema

T = TypeVar("T")
LARGEST: Final = round(numbers.LARGEST)
"""Limit of every number, so sums and products of two stay finite. Messages leave it out."""
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


class Matching(Struct, frozen=True):
    """Text that matches a pattern. `what` and `example` describe it in messages and editors."""

    pattern: str
    what: str
    example: str = ""

    def __call__(self, text: str) -> str:
        """Return the text. Raises ValueError."""
        if re.fullmatch(self.pattern, text):
            return text
        raise ValueError(f"expected {self.what}" + (f" such as {self.example}" if self.example else ""))

    def in_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON schema with the pattern."""
        return {**schema, **({"examples": [self.example]} if self.example else {}), "pattern": self.pattern}


def matching(pattern: str, what: str, example: str = "") -> "AfterValidator":
    """Return the check of text that matches a pattern."""
    return AfterValidator(Matching(pattern, what, example))


class Distinct(Struct, frozen=True):
    """A list with at least one item, each of them once. pydantic would also count the items that are valid, and report a wrong one twice."""

    def __call__(self, items: Collection[object]) -> Collection[object]:
        """Return the items. Raises ValueError."""
        if not items:
            raise ValueError("expected 1 item or more")
        if len(set(items)) != len(items):
            raise ValueError("expected each item once")
        return items

    def in_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON schema with the least number of items."""
        return {**schema, "minItems": 1}


DISTINCT: Final = AfterValidator(Distinct())


class OneOf(Struct, frozen=True):
    """One of some words or whole numbers: a tuple, or the keys of a table, which is read at the first use."""

    values: Collection[object]

    def __call__(self, value: T) -> T:
        """Return the value. Raises ValueError."""
        if value not in self.values:
            raise ValueError(f"expected {one_of(self.values)}")
        return value

    def in_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON schema with the values."""
        return {**schema, "enum": list(self.values)}


class Quantity(Struct, frozen=True):
    """A whole number that the file has as text with a unit, such as "4h" or "32Gi"."""

    read: Callable[[object], int]
    """Returns the number of a text. Raises ValueError."""
    spell: Callable[[int], str]
    pattern: str
    examples: tuple[str, ...]

    def __call__(self, value: object, info: "ValidationInfo") -> object:
        """Return the number of a file's text. A program has the number itself. Raises ValueError."""
        return self.read(value) if info.mode == "json" else value

    def in_schema(self, _: object) -> dict[str, Any]:
        """Return the JSON schema of the text."""
        return {"type": "string", "pattern": self.pattern, "examples": list(self.examples)}


class WordOrList(Struct, frozen=True):
    """A list of words that the file can also have as its only word, without brackets."""

    example: str
    """A word, for messages."""

    def __call__(self, value: object, info: "ValidationInfo") -> object:
        """Return the list of a file's value. Raises ValueError."""
        if info.mode != "json":
            return value
        items = cast("list[object]", value) if isinstance(value, list) else [value]
        if not all(isinstance(item, str) for item in items):
            raise ValueError(f"expected a word or a list of words, such as {self.example}, without a space")
        return items

    def in_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON schema of a word or a list."""
        return {"anyOf": [schema["items"], schema]}


class Named(Struct, frozen=True):
    """Names that the file may have in place of a block."""

    values: Mapping[str, Any]
    """The value of each name."""
    read: Callable[[Any], object]
    """Returns the block of such a value."""
    keys: str
    """The required keys of a block, for messages."""

    def __call__(self, value: object, read_block: Callable[[object], object]) -> object:
        """Return the block of a name or of an object. Raises ValueError."""
        if isinstance(value, Mapping):
            return read_block(cast("object", value))
        if not isinstance(value, str) or value not in self.values:
            raise ValueError(f"expected {' or '.join(self.values)}, or a block with {self.keys}")
        return self.read(self.values[value])

    def in_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON schema of a name or a block."""
        return {"anyOf": [{"type": "string", "enum": list(self.values)}, schema]}


class InFile(Struct, frozen=True):
    """Another block in the file, which is converted into the value. pydantic has no word for a type that differs between JSON and Python."""

    block: type
    convert: Callable[[Any], object]
    """Returns the value. Raises ValueError."""

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":  # noqa: ANN401 - any type
        """Return the schema of the block in JSON, and of the value in Python."""
        from pydantic_core import core_schema  # noqa: PLC0415 - as in words

        in_file = core_schema.no_info_after_validator_function(self.convert, handler.generate_schema(self.block))
        return core_schema.json_or_python_schema(in_file, handler(source))


ListOf: TypeAlias = Annotated[tuple[T, ...], Field(strict=False)]
"""A list in the file, and a tuple that a program may pass as a list."""


def _unless_output(value: object, check: Callable[[object], object]) -> object:
    is_output = issubclass(type(value), Awaitable) or hasattr(value, "apply")  # Pulumi's, which no planner imports
    return value if is_output else check(value)


MAY_BE_OUTPUT: Final = WrapValidator(_unless_output)
"""Annotation of a value that a program may pass as an output, which is checked only if it is known."""


def one_of(values: Iterable[object]) -> str:
    """Return values in words: 4, 6 or 8."""
    *most, last = map(repr, values)
    return f"{', '.join(most)} or {last}" if most else last
