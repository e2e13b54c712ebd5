"""Annotations of a setting's type: its limits, its form in the file, and the effect of a change.

`Annotated[int, Limit(at_least=1), OnChange("update")]` is a number from 1 whose change updates other resources. `check` is the only check
of a value: the parser of files calls it through pydantic's protocol, and `planning.settings.fields.check_block` for every other caller.
"""

import re
from collections.abc import Callable, Collection, Iterator
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
    """A check of one value, in the protocol of pydantic for annotations: a core schema is a plain dictionary."""

    __slots__ = ()

    def check(self, value: Any) -> None:  # noqa: ANN401 - each annotation has a type of its own
        """Raise ValueError with what is expected, if the value is invalid."""
        raise NotImplementedError

    @property
    def json_schema(self) -> dict[str, Any]:
        """What the JSON schema of a value states in addition to its type, or in place of it."""
        return {}

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], object]) -> dict[str, object]:
        return {
            "type": "function-after",
            "function": {"type": "no-info", "function": self._checked},
            "schema": handler(source),
        }

    def __get_pydantic_json_schema__(self, core: object, handler: Callable[[object], dict[str, Any]]) -> dict[str, Any]:
        return {**handler(core), **self.json_schema}

    def _checked(self, value: object) -> object:
        if value is not None:
            self.check(value)
        return value


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
        return {"type": "string", "pattern": self.pattern, **examples}


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
        """The text with its unit."""
        return {"type": "string", "pattern": self.pattern, "examples": list(self.examples)}

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], object]) -> dict[str, object]:
        return {
            "type": "function-before",
            "function": {"type": "no-info", "function": self.read},
            "schema": handler(source),
        }


class OneOf(Constraint, Struct, frozen=True):
    """One of some words or whole numbers: a tuple, or the keys of a table, which is read at the first use."""

    values: Collection[object]

    def __str__(self) -> str:
        """Return the values in words: 4, 6 or 8."""
        *most, last = map(repr, self.values)
        return f"{', '.join(most)} or {last}"

    def check(self, value: object) -> None:
        """Raise ValueError with all values."""
        if all(value != one for one in self.values):
            raise ValueError(f"expected {self}")

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], object]) -> dict[str, object]:
        # Before the check of the type, whose message does not list the values.
        return {
            "type": "function-before",
            "function": {"type": "no-info", "function": self._checked},
            "schema": handler(source),
        }

    @property
    def json_schema(self) -> dict[str, Any]:
        """The values."""
        return {"enum": list(self.values)}


class Items(Constraint, Struct, frozen=True):
    """A list with at least one item, each of them once. `noun` and `key` name it in the message."""

    noun: str
    key: str

    def check(self, value: tuple[object, ...] | str) -> None:
        """Raise ValueError for a text, for an empty list, and for one with duplicates."""
        if isinstance(value, str):
            raise ValueError(f'expected a list, such as ("{value}",) in Python')  # noqa: TRY004 - as of any other annotation
        if not value:
            raise ValueError("expected 1 item or more")
        if len(set(value)) != len(value):
            raise ValueError(f"{self.key} has duplicates; list each {self.noun} once")

    @property
    def json_schema(self) -> dict[str, Any]:
        """The least number of items."""
        return {"minItems": 1}


class WordOrList(Constraint, Struct, frozen=True):
    """A list of words that the file can also have as its only word, without brackets."""

    example: str
    """A word, for messages."""

    def check(self, value: object) -> None:
        """Accept any value: the annotations of the list and of its items check it."""

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], object]) -> dict[str, object]:
        return {
            "type": "function-before",
            "function": {"type": "no-info", "function": self._as_items},
            "schema": handler(source),
        }

    def __get_pydantic_json_schema__(self, core: object, handler: Callable[[object], dict[str, Any]]) -> dict[str, Any]:
        of_list = handler(core)
        return {"anyOf": [of_list["items"], of_list]}

    def _as_items(self, value: object) -> tuple[str, ...]:
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


class Consistent(Constraint, Struct, frozen=True):
    """A block whose keys do not contradict each other."""

    def check(self, value: HasProblems) -> None:
        """Raise ValueError with the first contradiction."""
        problem = next(value.problems(), None)
        if problem is not None:
            raise ValueError(problem)


class Limit(Struct, frozen=True, kw_only=True):
    """Allowed numbers. Follows the protocol of `annotated_types`, so pydantic checks the same limits."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    one_of: tuple[int, ...] = ()
    """The only allowed numbers; empty for any within the limits."""
    multiple_of: int = 1

    def __str__(self) -> str:
        """Return the limits in words: "1 or more", "above 0 and at most 1", "8 or 16", "a multiple of 16"."""
        if self.multiple_of > 1:
            return f"a multiple of {self.multiple_of}"
        if self.one_of:
            return f"{', '.join(map(str, self.one_of[:-1]))} or {self.one_of[-1]}"
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
            and (not self.one_of or value in self.one_of)
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
    def __is_annotated_types_grouped_metadata__(self) -> Literal[True]:
        return True

    def __iter__(self) -> Iterator[object]:
        """Yield the limits as `annotated_types` constraints."""
        from annotated_types import Interval  # noqa: PLC0415 - 10 ms, and only pydantic needs it

        yield from Interval(
            ge=self.at_least, gt=self.above, le=round(LARGEST) if self.at_most is None else self.at_most
        )
        if self.multiple_of > 1:
            from annotated_types import MultipleOf  # noqa: PLC0415 - as above

            yield MultipleOf(self.multiple_of)
        if self.one_of:
            from annotated_types import Predicate  # noqa: PLC0415 - as above

            yield Predicate(self.one_of.__contains__)


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= _WITH_SEPARATORS else f"{number:g}"


CONSISTENT: Final = Consistent()
"""The check of a block."""
