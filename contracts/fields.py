"""Frozen dataclasses as JSON objects: camelCase keys, checked types, and a description per field."""

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, cast

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Doc:
    """Description of a field for the generated pages: `field: Annotated[int, Doc("...")]`."""

    text: str


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

    Raises:
        ContractError: for a missing key or a value of another type. The message names the full path of the key.
    """
    if not isinstance(value, Mapping):
        raise ContractError(f"{path or 'the value'} is {_shown(value)}; it must be an object.")
    raw = cast("Mapping[str, object]", value)
    found: dict[str, object] = {}
    for name, (hint, _, default) in _fields(kind).items():
        key = camel_case(name)
        where = f"{path}.{key}" if path else key
        if key in raw:
            found[name] = _checked(hint, raw[key], where)
        elif default is dataclasses.MISSING:
            raise ContractError(f"{where} is missing.")
    return kind(**found)


def documented(kind: type[object]) -> Iterator[tuple[str, str]]:
    """Yield the JSON key and the description of each field, in declaration order."""
    for name, (_, text, _) in _fields(kind).items():
        yield camel_case(name), text


def _fields(kind: type[object]) -> Mapping[str, tuple[object, str, object]]:
    """Return the type without markers, the description and the default of each field."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found: dict[str, tuple[object, str, object]] = {}
    for field in dataclasses.fields(cast("Any", kind)):
        hint: object = hints[field.name]
        texts = [item.text for item in getattr(hint, "__metadata__", ()) if isinstance(item, Doc)]
        found[field.name] = (getattr(hint, "__origin__", hint) if texts else hint, "".join(texts), field.default)
    return found


def _checked(hint: object, value: object, path: str) -> object:
    """Return the value as its type. Raises ContractError for another type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {Union, types.UnionType}:
        if value is None and type(None) in arguments:
            return None
        return _checked(next(item for item in arguments if item is not type(None)), value, path)
    if origin is Literal:
        if value not in arguments:
            raise ContractError(f"{path} is {_shown(value)}; it must be one of {', '.join(map(str, arguments))}.")
        return value
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return from_json(cast("type[object]", hint), value, path=path)
    if origin is tuple or (origin is not None and issubclass(origin, Mapping)):
        return _container(arguments[0 if origin is tuple else 1], value, path, is_list=origin is tuple)
    return _scalar(cast("object", hint), value, path)


def _container(item_hint: object, value: object, path: str, *, is_list: bool) -> object:
    if is_list:
        if not isinstance(value, list | tuple):
            _refuse("a list", value, path)
        items = cast("Sequence[object]", value)
        return tuple(_checked(item_hint, item, f"{path}[{i}]") for i, item in enumerate(items))
    if not isinstance(value, Mapping):
        _refuse("an object", value, path)
    entries = cast("Mapping[str, object]", value)
    return {key: _checked(item_hint, item, f"{path}.{key}") for key, item in entries.items()}


def _scalar(hint: object, value: object, path: str) -> object:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():  # the engine keeps every number as a float
        return int(value)
    if hint is object or (isinstance(hint, type) and type(value) is hint):
        return value
    words = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
    return _refuse(words.get(cast("Any", hint), str(hint)), value, path)


def _refuse(wanted: str, value: object, path: str) -> typing.NoReturn:
    raise ContractError(f"{path} is {_shown(value)}; it must be {wanted}.")


def _shown(value: object) -> str:
    return repr(value)[:60]
