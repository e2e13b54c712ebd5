"""Read settings: a block from the values of a file, or one value from the text of a command line.

A file has camelCase keys and quantities with a unit. No other value is converted.
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any, Final, TypeVar, cast, get_origin

from gemma_serving.planning.numbers import read_json
from gemma_serving.planning.settings.annotations import InFile, Quantity, WordOrList
from gemma_serving.planning.settings.fields import Place, Problem, SettingField, contradictions, own_fields

T = TypeVar("T")
_NUMBER: Final = re.compile(r"\$?(\d+(?:[.,]\d+)?)%?")
_THOUSANDS: Final = re.compile(r"(\d{1,9}) ?[kK]i?")


class InvalidBlockError(ValueError):
    """Values of a file that are no block of settings."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        """Keep every problem."""
        super().__init__("; ".join(problem.text for problem in problems))
        self.problems = problems


def read_block(block: type[T], values: Mapping[str, object]) -> T:
    """Return a block of a file's values. Raises InvalidBlockError with every problem."""
    found: list[Problem] = []
    read = _block(block, values, (), found)
    if read is None:
        raise InvalidBlockError(tuple(found))
    return read


def _block(block: type[T], values: Mapping[str, object], place: Place, found: list[Problem]) -> T | None:
    """Return the block; None after adding its problems. Keys that contradict each other count only if each value is valid."""
    known, rest, read = len(found), dict(values), dict[str, Any]()
    for field in own_fields(block):
        key = field.file_key
        if key in rest:
            read[field.path] = _value(field, rest.pop(key), (*place, key), found)
        elif field.default is MISSING:
            found.append(Problem((*place, key), "", "missing"))
    found += [Problem((*place, key), "", "unknown") for key in rest]
    if len(found) > known:
        return None
    made = block(**read)
    problem = next(contradictions(made), None)
    if problem is None:
        return made
    found.append(Problem(place, problem))
    return None


def _value(field: SettingField, value: object, place: Place, found: list[Problem]) -> object:
    """Return the value of a field; any other value after adding its problems."""
    if value is None and field.is_optional:
        return None
    given = value
    try:
        for annotation in field.annotations:
            if isinstance(annotation, InFile | Quantity | WordOrList):
                value = annotation.read(value)
    except InvalidBlockError as error:
        found += [problem._replace(place=(*place, *problem.place)) for problem in error.problems]
        return None
    except ValueError as error:
        found.append(Problem(place, str(error)))
        return None
    known, (_, item) = len(found), field.parts
    if field.block is not None and isinstance(value, Mapping):
        value = _block(cast("type[object]", field.block), cast("Mapping[str, object]", value), place, found)
    elif isinstance(value, list):
        items = cast("list[object]", value)
        if item is not None and item.block is not None:
            items = [_value(item, one, (*place, index), found) for index, one in enumerate(items)]
        value = tuple(items)
    if len(found) == known:
        hint = _hint(field, value)
        wrong = field.problems(value, place) if hint is None else [Problem(place, hint)]
        found += [problem if isinstance(given, list | Mapping) else Problem(place, problem.text) for problem in wrong]
    return value


def _hint(field: SettingField, value: object) -> str | None:
    """Return what to write for a text that stands for a number; None for any other value."""
    if not field.has_number or not isinstance(value, str):
        return None
    thousands = _THOUSANDS.fullmatch(value)
    if field.hint is int and thousands:
        return f"expected a whole number without a unit; write {int(thousands[1]) * 1024} or {int(thousands[1]) * 1000}"
    written = _NUMBER.fullmatch(value)
    if written is None:
        return None
    number = float(written[1].replace(",", "" if field.hint is int else ".")) / (100 if value.endswith("%") else 1)
    kind = "int" if field.hint is int else "float"
    return f"expected a number, not text; write {number:.12g} without quotes, or set it again with `pulumi config set --type {kind}`"


def list_items(text: str) -> list[str]:
    """Return the items of a command line's list: `a b`, or in brackets as in a file. Raises ValueError."""
    if not text.startswith("["):
        return text.split()
    import yaml  # noqa: PLC0415 - takes 0.04 s, and few options have a list

    try:
        items = yaml.load(text, yaml.BaseLoader)  # noqa: S506 - BaseLoader makes texts alone
    except yaml.YAMLError:
        items = None
    if not isinstance(items, list) or not all(isinstance(item, str) for item in cast("list[object]", items)):
        raise ValueError("expected a list such as [a, b], with quotes around an item that has a comma or a brace")
    return cast("list[str]", items)


def read_text(field: SettingField, text: str) -> object:
    """Return the value of a field that a command line has as text: words of a list, JSON, or the text itself. Raises ValueError with what is expected."""
    value: object = text
    if get_origin(field.hint) is tuple:
        value = list_items(text)
    elif field.hint is not str and field.quantity is None:
        with contextlib.suppress(ValueError):
            value = read_json(text)
    problems = list[Problem]()
    read = _value(field, value, (), problems)
    for problem in problems:
        raise ValueError(problem.text)
    return read
