"""Frozen dataclasses as JSON objects: camelCase keys, checked types, and a description per field."""

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, Union, cast

T = TypeVar("T")


class Doc(NamedTuple):
    """Description of a field for the generated pages: `field: Annotated[int, Doc("...")]`."""

    text: str
    is_detail: bool = False
    """An output that `gemma up` does not print."""


_WORDS: Mapping[object, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list",
    Mapping: "an object",
}


class ContractError(ValueError):
    """A JSON value violates its contract. The message names the key and the expected value."""


def as_mapping(value: object) -> Mapping[str, object]:
    """Return a JSON object. Any other value yields an empty one."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def as_sequence(value: object) -> Sequence[object]:
    """Return a JSON array. Any other value yields an empty one."""
    return cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()


def json_object(text: str | bytes) -> Mapping[str, object]:
    """Return the JSON object in a text. Any other text yields an empty one."""
    try:
        return as_mapping(json.loads(text))
    except ValueError:
        return {}


def camel_case(name: str) -> str:
    """Return a Python field name as its JSON key: `kv_tokens` becomes `kvTokens`."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def to_json(value: object) -> Any:  # noqa: ANN401 - JSON is any of its types
    """Return a contract as JSON types. Keys become camelCase; None and values other than dataclasses are unchanged."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {camel_case(f.name): to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [to_json(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in cast("Mapping[str, object]", value).items()}
    return value


def from_json(kind: type[T], value: object, *, path: str = "") -> T:
    """Parse a JSON object as a contract. Unknown keys are ignored, so documents of newer writers can be read.

    Raises ContractError for a missing key or a value of another type. The message names the full path of the key.
    """
    if not isinstance(value, Mapping):
        raise ContractError(f"{path or 'the value'} is {repr(value)[:60]}; it must be an object.")
    hints, raw = typing.get_type_hints(kind), cast("Mapping[str, object]", value)
    found: dict[str, object] = {}
    for field in dataclasses.fields(cast("Any", kind)):
        key = camel_case(field.name)
        where = f"{path}.{key}" if path else key
        if key in raw:
            found[field.name] = _checked(hints[field.name], raw[key], where)
        elif field.default is dataclasses.MISSING:
            raise ContractError(f"{where} is missing.")
    return kind(**found)


def detail_fields(kind: type[object]) -> Iterator[str]:
    """Yield the names of a contract's fields whose description says `is_detail`."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if any(isinstance(one, Doc) and one.is_detail for one in typing.get_args(hint)[1:]):
            yield name


def documented(kind: type[object]) -> Iterator[tuple[str, str]]:
    """Yield the JSON key and the description of each field, in declaration order."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        yield camel_case(name), "".join(one.text for one in getattr(hint, "__metadata__", ()) if isinstance(one, Doc))


def _checked(hint: object, value: object, path: str) -> object:  # noqa: PLR0911 - one return for each kind of type
    """Return the value as its type. Raises ContractError for another type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {Union, types.UnionType}:
        return None if value is None else _checked(arguments[0], value, path)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return from_json(cast("type[object]", hint), value, path=path)
    if origin is tuple and isinstance(value, list | tuple):
        items = enumerate(cast("Sequence[object]", value))
        return tuple(_checked(arguments[0], item, f"{path}[{index}]") for index, item in items)
    if origin is Mapping and isinstance(value, Mapping):
        entries = cast("Mapping[str, object]", value)
        return {key: _checked(arguments[1], item, f"{path}.{key}") for key, item in entries.items()}
    if hint is float and type(value) is int:
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():  # the engine keeps every number as a float
        return int(value)
    if hint in {object, type(value)} or (origin is Literal and value in arguments):
        return value
    wanted = f"one of {', '.join(map(str, arguments))}" if origin is Literal else _WORDS[cast("object", origin or hint)]
    raise ContractError(f"{path} is {repr(value)[:60]}; it must be {wanted}.")
