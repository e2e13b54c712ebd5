"""Annotations of a setting's type: its limits, its form in the file, and the effect of a change.

`Annotated[int, Limit(at_least=1), OnChange("update")]` is a number from 1 whose change updates other resources.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

from msgspec import Struct

from gemma_serving.planning.numbers import LARGEST, is_number

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


class HasProblems(Protocol):
    """A block of settings that can contradict itself."""

    def problems(self) -> Iterator[str]:
        """Yield each contradiction between keys of the block, and what to change."""
        ...


class Constraint:
    """A check of one value."""

    __slots__ = ()

    def check(self, value: Any) -> None:  # noqa: ANN401 - each annotation has a type of its own
        """Raise ValueError with what is expected, if the value is invalid."""
        raise NotImplementedError

    @property
    def json_schema(self) -> dict[str, Any]:
        """Keywords of a value's JSON schema in addition to its type."""
        return {}


class Matching(Constraint, Struct, frozen=True):
    """Text that matches a pattern. `what` and `example` describe it in messages and editors."""

    pattern: str
    what: str
    example: str = ""

    def check(self, value: str) -> None:
        """Raise ValueError with the form of the text."""
        if not re.fullmatch(self.pattern, value):
            raise ValueError(f"expected {self.what}" + (f" such as {self.example}" if self.example else ""))

    @property
    def json_schema(self) -> dict[str, Any]:
        """The pattern."""
        examples = {"examples": [self.example]} if self.example else {}
        return {**examples, "pattern": self.pattern}


class InFile(Struct, frozen=True):
    """Another form of a value in the file."""

    read: Callable[[Any], object]
    """Returns the value. Raises ValueError."""
    words: Collection[str] = ()
    """Words that the file may have in place of a block."""


class Quantity(Constraint, Struct, frozen=True):
    """A whole number that the file has as text with a unit, such as "4h" or "32Gi"."""

    read: Callable[[object], int]
    """Returns the number of a text. Raises ValueError."""
    spell: Callable[[int], str]
    pattern: str
    examples: tuple[str, ...]

    def check(self, value: int) -> None:
        """Raise ValueError for a number below 0."""
        if value < 0:
            raise ValueError("expected 0 or more")

    @property
    def json_schema(self) -> dict[str, Any]:
        """The text with its unit, in place of the number."""
        return {"examples": list(self.examples), "pattern": self.pattern, "type": "string"}


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

    @property
    def json_schema(self) -> dict[str, Any]:
        """The values."""
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

    @property
    def json_schema(self) -> dict[str, Any]:
        """The least number of items."""
        return {"minItems": 1}


class WordOrList(Struct, frozen=True):
    """A list of words that the file can also have as its only word, without brackets."""

    example: str
    """A word, for messages."""

    def read(self, value: object) -> tuple[str, ...]:
        """Return the words. Raises ValueError."""
        items = tuple(cast("list[object]", value)) if isinstance(value, list | tuple) else (value,)
        words = tuple(item for item in items if isinstance(item, str))
        if words != items:
            raise ValueError(f"expected a word or a list of words, such as {self.example}, without a space")
        return words


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


class Limit(Constraint, Struct, frozen=True, kw_only=True):
    """Allowed numbers."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    multiple_of: int = 1

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

    def allows(self, value: object) -> bool:
        """Return whether the value is a number within the limits; nan, inf and booleans are not."""
        return (
            is_number(value)
            and (self.multiple_of == 1 or value % self.multiple_of == 0)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )

    def check(self, value: object) -> None:
        """Raise ValueError with the limits."""
        if not self.allows(value):
            raise ValueError(f"expected {self}")

    @property
    def json_schema(self) -> dict[str, Any]:
        """The limits."""
        stated = {
            "exclusiveMinimum": self.above,
            "minimum": self.at_least,
            "maximum": round(LARGEST) if self.at_most is None else self.at_most,
            "multipleOf": self.multiple_of if self.multiple_of > 1 else None,
        }
        return {key: value for key, value in stated.items() if value is not None}


def one_of(values: Iterable[object]) -> str:
    """Return values in words: 4, 6 or 8."""
    *most, last = map(repr, values)
    return f"{', '.join(most)} or {last}" if most else last


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= _WITH_SEPARATORS else f"{number:g}"
