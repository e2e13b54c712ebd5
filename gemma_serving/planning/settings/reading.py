"""Read settings: a block from the JSON of a file, or one value from the text of a command line; check blocks that a program made.

pydantic reads and checks each value. Its error types become sentences here, by the field at the error's place.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args, get_origin

from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.numbers import read_json
from gemma_serving.planning.settings.annotations import Unusable
from gemma_serving.planning.settings.fields import BLOCK, Block, SettingField, own_field, own_fields, setting_key

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import ErrorDetails
    from pydantic_core.core_schema import DictSchema, LiteralSchema

T = TypeVar("T")
Place: TypeAlias = tuple[str | int, ...]
"""Keys of blocks and maps, and indexes of lists, from the outside in."""
_NUMBER: Final = re.compile(r"\$?(\d+(?:[.,]\d+)?)%?")
_THOUSANDS: Final = re.compile(r"(\d{1,9}) ?[kK]i?")
_OF_KEY: Final = "[key]"
"""Last step of pydantic's place of a map's key."""


class Problem(NamedTuple):
    """A problem with a value."""

    place: Place
    text: str
    """The expected value, or the contradiction, as a clause; empty for an unknown or a missing key."""
    kind: Literal["value", "unknown", "missing"] = "value"


_KINDS: Final[Mapping[str, Literal["value", "unknown", "missing"]]] = {
    "missing": "missing",
    "unexpected_keyword_argument": "unknown",
}
"""Kinds of problems by pydantic's error type."""


class InvalidBlockError(ValueError):
    """Values of a file that are no block of settings."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        """Keep every problem."""
        super().__init__("; ".join(problem.text for problem in problems))
        self.problems = problems


@cache
def _of_block(block: type[T]) -> "TypeAdapter[T]":
    from pydantic import TypeAdapter  # noqa: PLC0415 - a plan of a model checks no value, and loads no pydantic

    return TypeAdapter(block)


def _of_value(hint: Any) -> "TypeAdapter[Any]":  # noqa: ANN401 - any type
    from pydantic import TypeAdapter  # noqa: PLC0415 - as above

    return TypeAdapter(hint, config=Block.__pydantic_config__)


def read_block(block: type[T], text: str) -> T:
    """Return a block of a file's values as JSON. Raises InvalidBlockError with every problem, and ValueError for values too deep inside each other."""
    from pydantic import ValidationError  # noqa: PLC0415 - as above

    try:
        return _of_block(block).validate_json(text, by_alias=True, by_name=False)
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise
        raise InvalidBlockError(tuple(_problems(error, block, json.loads(text)))) from None


def schema_of(block: type) -> dict[str, Any]:
    """Return the JSON schema of a block in a file, by key, without a title at each key."""
    from pydantic.json_schema import GenerateJsonSchema  # noqa: PLC0415 - as above

    class _Schema(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: object) -> bool:
            del schema
            return False

        def literal_schema(self, schema: "LiteralSchema") -> dict[str, Any]:
            return {"type": "string", "enum": schema["expected"]}

        def dict_schema(self, schema: "DictSchema") -> dict[str, Any]:
            made = super().dict_schema(schema)
            if "patternProperties" in made:
                made.pop("propertyNames", None)
                made["additionalProperties"] = False
            return made

    return _of_block(block).json_schema(by_alias=True, schema_generator=_Schema)


def read_values(block: type[T], values: Mapping[str, object]) -> T:
    """Return the arguments of a component from values by key, which may be outputs. Raises InvalidBlockError with every problem."""
    fields = {field.file_key: field for field in own_fields(block)}
    missing = [key for key, field in fields.items() if key not in values and field.default is MISSING]
    found = [Problem((key,), "", "missing") for key in missing]
    found += [Problem((key,), "", "unknown") for key in values if key not in fields]
    if found:
        raise InvalidBlockError(tuple(found))
    made = block(**{fields[key].path: value for key, value in values.items()})
    found = [*_made_problems(cast("Block", made))]
    found = found or [Problem((), text) for text in cast("Block", made).problems()]
    if found:
        raise InvalidBlockError(tuple(one._replace(place=_by_key(one.place)) for one in found))
    return made


def _by_key(place: Place) -> Place:
    """Return a place in a component's arguments with the key of the argument instead of its name."""
    return (*(setting_key(str(name)) for name in place[:1]), *place[1:])


def problem_with(hint: object, value: object) -> str | None:
    """Return what a value of an annotated type has to be, such as "expected a region such as us-east4"; None if it is valid."""
    from pydantic import ValidationError  # noqa: PLC0415 - as above

    try:
        _of_value(hint).validate_python(value)
    except ValidationError as error:
        return next(_problems(error, own_field("", hint), value)).text
    return None


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
    from pydantic import ValidationError  # noqa: PLC0415 - as above

    value: object = text
    if get_origin(field.hint) is tuple:
        value = list_items(text)
    elif field.hint is not str and field.quantity is None:
        with contextlib.suppress(ValueError):
            value = read_json(text)
    try:
        return _of_value(field.annotated).validate_json(json.dumps(value), by_alias=True, by_name=False)
    except ValidationError as error:
        raise ValueError(next(_problems(error, field, value)).text) from None


def _problems(error: "ValidationError", owner: type | SettingField, values: object) -> Iterator[Problem]:
    """Yield each problem once. `owner`: the block of the values, or the field of one value."""
    found = (_problem(one, owner, values) for one in error.errors(include_url=False))
    yield from dict.fromkeys(found)


def _problem(error: "ErrorDetails", owner: type | SettingField, values: object) -> Problem:
    kind: Literal["value", "unknown", "missing"] = _KINDS.get(error["type"], "value")
    place, field = _placed(error["loc"], owner, values, kind)
    if kind != "value":
        return Problem(place, "", kind)
    if error["type"] == "value_error":
        return Problem(place, str(error.get("ctx", {})["error"]))
    if field is None:
        return Problem(place, f"expected {BLOCK}")
    return Problem(
        place, _number_hint(field, error["input"]) or f"expected {field.allowed}{_why(field, error['input'])}"
    )


def _placed(
    location: Place, owner: type | SettingField, values: object, kind: str
) -> tuple[Place, SettingField | None]:
    """Return the place in the values, and its field. pydantic's place also has the tags of a union, and the index of a list's only word."""
    field, block = (None, owner) if isinstance(owner, type) else (owner, owner.block_in_file)
    place: Place = ()
    outer = field
    for step in location:
        inside = _fields_by_name(block).get(step) if block is not None else None
        if inside is not None:
            outer, field = None, inside
        elif block is not None:
            if kind == "unknown" and step == location[-1]:
                return (*place, step), None
            continue
        elif field is not None and _has_part(values, step):
            outer, field = field, field.parts[1]
        elif step == _OF_KEY and outer is not None:
            return place, outer.parts[0]
        else:
            continue
        place, values = (*place, step), part_at(values, (step,))
        block = None if field is None else field.block_in_file
    return place, field


@cache
def _fields_by_name(block: type) -> Mapping[object, SettingField]:
    """Return the fields of a block by key in the file, and by name in Python."""
    return {name: field for field in own_fields(block) for name in (field.path, field.file_key)}


def _has_part(value: object, step: str | int) -> bool:
    if isinstance(value, Mapping):
        return step in value
    return isinstance(value, Sequence) and not isinstance(value, str) and isinstance(step, int)


def part_at(value: object, place: Place) -> object:
    """Return the part of a value at a place; None if it has none. The place of a map's key is that of its value."""
    for step in place:
        if isinstance(value, Mapping):
            value = cast("Mapping[str | int, object]", value).get(step)
        elif isinstance(value, list | tuple) and isinstance(step, int):
            value = cast("Sequence[object]", value)[step]
        elif isinstance(value, Block) and isinstance(step, str):
            value = getattr(value, step)
        else:
            return None
    return value


def _number_hint(field: SettingField, value: object) -> str | None:
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


def _why(field: SettingField, value: object) -> str:
    """Return why a value of vLLM is rejected, as a second sentence; empty for any other value."""
    reasons = [one.reasons for one in field.annotations if isinstance(one, Unusable)]
    return next((f". {one[str(value)].rstrip('.')}" for one in reasons if str(value) in one), "")


def check_block(block: Block, name: str, unset: Block) -> None:
    """Raise PlanningError for the first value of a question's block that is invalid, and for keys that contradict each other.

    A value is not checked if it is that of `unset`, or if it is empty in an inner block: a question may leave it out.
    """
    names = [field.path for field in own_fields(type(block))]
    values = {path: (getattr(block, path), getattr(unset, path)) for path in names}
    stated = {path for path, (value, other) in values.items() if value != other or type(value) is not type(other)}
    for problem in _made_problems(block) if stated else ():
        found = _found(block, problem.place)
        if problem.place[0] in stated and not any(_is_empty(field, owner) for owner, field in found):
            shown = part_at(block, problem.place)
            words = json.dumps(shown) if isinstance(shown, str) else f"{shown}"
            key = ".".join((name, *(field.key for _, field in found)))
            raise PlanningError(f"{key} is {words}; {problem.text}.")
    for sentence in _contradictions(block, name):
        raise PlanningError(sentence)


def check_arguments(arguments: Block) -> None:
    """Raise PlanningError for the first invalid argument, and for arguments that contradict each other. It names attributes in backticks."""
    for sentence in _missing(arguments, ""):
        raise PlanningError(sentence)
    for problem in _made_problems(arguments):
        raise PlanningError(_argument_sentence(arguments, problem))
    for sentence in _contradictions(arguments, "", "`"):
        raise PlanningError(sentence)


def _missing(block: object, name: str) -> Iterator[str]:
    """Yield a sentence for each required argument that is empty."""
    for field in own_fields(type(block)):
        value, path = getattr(block, field.path), f"{name}.{field.path}".removeprefix(".")
        if _is_empty(field, block):
            yield f"`{path}` is {value!r}, but it is required. Set it."
        elif is_dataclass(value):
            yield from _missing(value, path)


def _argument_sentence(arguments: Block, problem: Problem) -> str:
    """Return a problem as a sentence. It shows no value of a map or of an object, which may hold a secret, and names a class."""
    found = _found(arguments, problem.place)
    path, (owner, field) = ".".join(field.path for _, field in found), found[-1]
    value: object = getattr(owner, field.path)
    shown, inside = part_at(arguments, problem.place), problem.place[len(found) :]
    words = json.dumps(shown) if isinstance(shown, str) else f"{shown}"
    if isinstance(value, Mapping):
        path += "".join(f"[{key!r}]" for key in inside)
        words = "invalid"
    elif not isinstance(shown, str | int | float | list | tuple | None):
        words = f"a {type(shown).__name__}"
    hint: Any = field.parts[1].hint if inside and field.parts[1] else field.hint
    classes = " or ".join(one.__name__ for one in get_args(hint) or (hint,)) if BLOCK in problem.text else ""
    return f"`{path}` is {words}; {problem.text.replace(BLOCK, classes)}."


def _made_problems(block: Block) -> Iterator[Problem]:
    """Yield each problem of a block that a program made, without contradictions. Its places have names of fields."""
    from pydantic import ValidationError  # noqa: PLC0415 - as above

    try:
        _of_block(type(block)).validate_python(block, by_alias=False, by_name=True)
    except ValidationError as error:
        for problem in _problems(error, type(block), block):
            if not isinstance(part_at(block, problem.place), Block):
                yield problem


def _contradictions(block: Block, name: str, tick: str = "") -> Iterator[str]:
    """Yield the contradictions of the blocks in a block, and its own, as sentences. With a `tick`, the name is a path of attributes."""
    for field in own_fields(type(block)):
        value: object = getattr(block, field.path)
        if isinstance(value, Block):
            yield from _contradictions(value, f"{name}.{field.path if tick else field.key}".removeprefix("."), tick)
    yield from (f"{tick}{name}{tick}: {problem}.".removeprefix("``: ") for problem in block.problems())


def _found(block: Block, place: Place) -> Sequence[tuple[Block, SettingField]]:
    """Return the fields that lead to a place, each with its block."""
    found: list[tuple[Block, SettingField]] = []
    owner: object = block
    for step in place:
        if not isinstance(owner, Block):
            break
        found.append((owner, _fields_by_name(type(owner))[step]))
        owner = part_at(owner, (step,))
    return found


def _is_empty(field: SettingField, block: object) -> bool:
    """Return whether a required value is an empty text or list, or 0."""
    value: object = getattr(block, field.path)
    return field.default is MISSING and not value and type(value) not in {bool, dict}
