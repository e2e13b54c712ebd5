"""Read settings: a block from the JSON of a file, or one value from the text of a command line; check blocks that a program made.

pydantic reads and checks each value. Its error types become sentences here, by the field at the error's place.
"""

import contextlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, is_dataclass
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args, get_origin

from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.numbers import read_json
from gemma_serving.planning.settings.annotations import LARGEST, Unusable
from gemma_serving.planning.settings.fields import BLOCK, Block, SettingField, own_field, own_fields, setting_key
from gemma_serving.planning.settings.stored import stored_validator
from gemma_serving.planning.settings.words import Word

if TYPE_CHECKING:
    from pydantic import ConfigDict
    from pydantic_core import ErrorDetails, SchemaValidator

T = TypeVar("T")
Place: TypeAlias = tuple[str | int, ...]
"""Keys of blocks and maps, and indexes of lists, from the outside in."""
_NUMBER: Final = re.compile(r"\$?(\d+(?:[.,]\d+)?)%?")
_THOUSANDS: Final = re.compile(r"(\d{1,9}) ?[kK]i?")
_OF_KEY: Final = "[key]"
"""Last step of pydantic's place of a map's key."""
_Kind = Literal["value", "unknown", "missing"]
_KINDS: Final[Mapping[str, _Kind]] = {"missing": "missing", "unexpected_keyword_argument": "unknown"}
"""Kinds of problems by pydantic's error type."""


class Problem(NamedTuple):
    """A problem with a value."""

    place: Place
    text: str
    """The expected value, or the contradiction, as a clause; empty for an unknown or a missing key."""
    kind: _Kind = "value"


class InvalidBlockError(ValueError):
    """Invalid values. The message is the first problem's."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        """Keep every problem."""
        super().__init__(problems[0].text)
        self.problems = problems


@cache
def _of_block(block: type) -> "SchemaValidator":
    """Return pydantic's reader of a block."""
    return stored_validator(block) or _of_type(block)


def _of_type(hint: Any, config: "ConfigDict | None" = None) -> "SchemaValidator":  # noqa: ANN401 - any type
    from pydantic import TypeAdapter  # noqa: PLC0415 - a plan of a model checks no value, and one of a stack has a file

    return cast("SchemaValidator", TypeAdapter(hint, config=config).validator)


def _checked(owner: SettingField, values: object, read: "Callable[[SchemaValidator], T]") -> T:
    """Return what pydantic reads from the values of a field. Raises InvalidBlockError with every problem, each once."""
    from pydantic_core import ValidationError  # noqa: PLC0415 - as above

    try:
        block = owner.block
        return read(_of_type(owner.annotated, Block.__pydantic_config__) if block is None else _of_block(block))
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise
        found = [_problem(one, owner, values) for one in error.errors(include_url=False)]
        raise InvalidBlockError(list(dict.fromkeys(found))) from None


def read_block(block: type[T], text: str) -> T:
    """Return a block of a file's values as JSON. Raises InvalidBlockError with every problem, and ValueError for values too deep inside each other."""
    return _checked(
        own_field("", block), json.loads(text), lambda of: of.validate_json(text, by_alias=True, by_name=False)
    )


def read_values(block: type[T], values: Mapping[str, object]) -> T:
    """Return the arguments of a component from values by key, which may be outputs. Raises InvalidBlockError with every problem."""
    fields = {field.file_key: field for field in own_fields(block)}
    missing = [key for key, field in fields.items() if key not in values and field.default is MISSING]
    found = [Problem((key,), "", "missing") for key in missing]
    found += [Problem((key,), "", "unknown") for key in values if key not in fields]
    if found:
        raise InvalidBlockError(found)
    made = block(**{fields[key].path: value for key, value in values.items()})
    try:
        return _check_made(made)
    except InvalidBlockError as error:  # in places with names of fields
        keys = [(*map(setting_key, map(str, one.place[:1])), *one.place[1:]) for one in error.problems]
        found = [one._replace(place=place) for one, place in zip(error.problems, keys, strict=True)]
        raise InvalidBlockError(found) from None


def _check_made(block: T) -> T:
    return _checked(
        own_field("", type(block)), block, lambda of: of.validate_python(block, by_alias=False, by_name=True)
    )


def problem_with(hint: object, value: object) -> str | None:
    """Return what a value of an annotated type has to be, such as "expected a region such as us-east4"; None if it is valid."""
    field = own_field("", hint)
    try:
        if not _is_plain(field, value):
            _checked(field, value, lambda of: of.validate_python(value))
    except InvalidBlockError as error:
        return str(error)
    return None


_QUOTED_WORD: Final = re.compile(r"""(?:^|[\s=])['"]""")
"""Start of a quoted word, or of the quoted value of a flag."""


def list_items(text: str) -> list[str]:
    """Return the items of a command line's list: `a b` with a shell's quotes around an item, or in brackets as in a file. Raises ValueError."""
    expected = "expected a list such as [a, b], with quotes around an item that has a comma, a space or a brace"
    if not text.startswith("["):
        return _words(text, expected)
    import yaml  # noqa: PLC0415 - takes 0.04 s, and few options have a list

    try:
        items = yaml.load(text, yaml.BaseLoader)  # noqa: S506 - BaseLoader makes texts alone
    except yaml.YAMLError:
        items = None
    if not isinstance(items, list) or not all(isinstance(item, str) for item in cast("list[object]", items)):
        raise ValueError(expected)
    return cast("list[str]", items)


def _words(text: str, expected: str) -> list[str]:
    """Return the words of a text, as a shell reads them if one begins with a quote. Raises ValueError for an open quote and for JSON in parts."""
    try:
        words = shlex.split(text) if _QUOTED_WORD.search(text) else text.split()
    except ValueError:
        raise ValueError(expected) from None
    if any(word.count(opening) != word.count(closing) for word in words for opening, closing in ("{}", "[]")):
        raise ValueError(expected)
    return words


def read_text(field: SettingField, text: str) -> object:
    """Return the value of a field that a command line has as text: words of a list, JSON, or the text itself. Raises ValueError with what is expected."""
    value: object = text
    if get_origin(field.hint) is tuple:
        value = list_items(text)
    elif field.hint is not str and field.quantity is None:
        with contextlib.suppress(ValueError):
            value = read_json(text)
    if _is_plain(field, value):
        plain = tuple(as_sequence(value)) if get_origin(field.hint) is tuple else value
        return float(cast("float", plain)) if field.hint is float else plain
    return _checked(field, value, lambda of: of.validate_json(json.dumps(value), by_alias=True, by_name=False))


def _is_plain(field: SettingField, value: object) -> bool:
    """Return whether a value is certainly valid: a word, a switch or a number within its limits. Loading pydantic takes a third of a plan."""
    limits, pairs, items = field.words, as_mapping(value), as_sequence(value)
    if any(isinstance(one, Word) and one.arguments for one in field.annotations):
        return False
    if isinstance(value, list | dict):
        key, item = field.parts
        if item is None or isinstance(value, dict) != (key is not None):
            return False
        is_named = key is None or all(_is_plain(key, one) for one in pairs)
        return is_named and all(_is_plain(item, one) for one in (*items, *pairs.values()))
    if not isinstance(value, int | float) or isinstance(value, bool):
        is_choice = get_origin(field.hint) is Literal and isinstance(value, str) and value in get_args(field.hint)
        is_word = field.hint is str and isinstance(value, str) and value.isprintable()
        return is_choice or is_word or (field.hint is bool and isinstance(value, bool))
    is_within = limits.get("ge", value) <= value <= limits.get("le", LARGEST) and not value <= limits.get("gt", -inf)
    is_kind = field.hint is float or (field.hint is int and isinstance(value, int))
    return is_kind and is_within and ("multiple_of" not in limits or value % limits["multiple_of"] == 0)


def _problem(error: "ErrorDetails", owner: SettingField, values: object) -> Problem:
    """Return one of pydantic's errors as a problem, by its type and the field at its place."""
    place, field = _placed(error["loc"], owner, values)
    kind: _Kind = _KINDS.get(error["type"], "value")
    if kind != "value":
        return Problem(place, "", kind)
    if error["type"] == "value_error":
        return Problem(place, str(error.get("ctx", {})["error"]))
    value: object = error["input"]
    return Problem(place, _number_hint(field, value) or f"expected {field.allowed}{_why(field, value)}")


def _placed(location: Place, owner: SettingField, values: object) -> tuple[Place, SettingField]:
    """Return the place in the values, and its field. pydantic's place also has the types of a union, and the index of a list's only word."""
    place: Place = ()
    field = outer = owner
    for step in location:
        block = field.block_in_file
        inside = _fields_by_name(block).get(step) if block else field.parts[1] if _has_part(values, step) else None
        if step == _OF_KEY:
            return place, outer.parts[0] or outer
        if inside is None and block is None:
            continue
        place, values = (*place, step), part_at(values, (step,))
        outer, field = field, inside or field
    return place, field


@cache
def _fields_by_name(block: type) -> Mapping[object, SettingField]:
    """Return the fields of a block by key in the file, and by name in Python."""
    return {name: field for field in own_fields(block) for name in (field.path, field.file_key)}


def _has_part(value: object, step: str | int) -> bool:
    return step in value if isinstance(value, Mapping) else isinstance(step, int) and not isinstance(value, str)


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
    if not (field.hint is int or field.hint is float) or not isinstance(value, str):
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
    unusable = field.annotation(Unusable)
    reason = unusable.reasons.get(str(value)) if unusable else None
    return f". {reason.rstrip('.')}" if reason else ""


def require_consistent(block: Block, name: str) -> None:
    """Raise PlanningError for keys that contradict each other in a block or in the blocks in it."""
    for field in own_fields(type(block)):
        value: object = getattr(block, field.path)
        if isinstance(value, Block):
            require_consistent(value, f"{name}.{field.key}")
    for problem in block.problems():
        raise PlanningError(f"{name}: {problem}.")


def check_arguments(arguments: Block) -> None:
    """Raise PlanningError for the first invalid argument, or for arguments that contradict each other. It names attributes in backticks."""
    for sentence in _missing(arguments, ""):
        raise PlanningError(sentence)
    try:
        _check_made(arguments)
    except InvalidBlockError as error:
        values = [one for one in error.problems if not isinstance(part_at(arguments, one.place), Block)]
        raise PlanningError(_argument_sentence(arguments, next(iter(values or error.problems)))) from None


def _missing(block: object, name: str) -> Iterator[str]:
    """Yield a sentence for each required argument that is an empty text or list, or 0."""
    for field in own_fields(type(block)):
        value, path = getattr(block, field.path), f"{name}.{field.path}".removeprefix(".")
        if field.default is MISSING and not value and type(value) not in {bool, dict}:
            yield f"`{path}` is {value!r}, but it is required. Set it."
        elif is_dataclass(value):
            yield from _missing(value, path)


def _argument_sentence(arguments: Block, problem: Problem) -> str:
    """Return a problem as a sentence. It shows no value of a map or of an object, which may hold a secret, and names a class."""
    path, value, is_in_map = "", cast("object", arguments), False
    for step in problem.place:
        path += f".{step}" if isinstance(value, Block) else f"[{step!r}]" if isinstance(value, Mapping) else ""
        value = part_at(cast("object", value), (step,))
        is_in_map = is_in_map or isinstance(value, Mapping)
    name = f"`{path.removeprefix('.')}`"
    if isinstance(value, Block):
        return f"{name}: {problem.text}.".removeprefix("``: ")
    words = json.dumps(value) if isinstance(value, str) else f"{value}"
    if is_in_map:
        words = "invalid"
    elif not isinstance(value, str | int | float | list | tuple | None):
        words = f"a {type(cast('object', value)).__name__}"
    _, field = _placed(problem.place, own_field("", type(arguments)), arguments)
    hint: Any = field.hint
    classes = " or ".join(one.__name__ for one in get_args(hint) or (hint,)) if BLOCK in problem.text else ""
    return f"{name} is {words}; {problem.text.replace(BLOCK, classes)}."
