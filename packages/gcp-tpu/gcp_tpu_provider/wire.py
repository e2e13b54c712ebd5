"""Engine property values: protobuf structs to Python and back, with secrets and unknown values."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, TypeAlias, cast

from google.protobuf import json_format, struct_pb2

Value: TypeAlias = Any
"""A property value: None, bool, int, float, str, list, dict, or one of the two markers below."""
Properties: TypeAlias = dict[str, Value]

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""Engine's marker for an unknown value, which only the update determines (pulumi/sdk, resource/plugin: UnknownStringValue)."""
SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105 - the marker of a secret on the wire, not one


def read(struct: struct_pb2.Struct) -> Properties:
    """Return a struct as Python values. Whole numbers become int; null properties are omitted at every level."""
    return cast("Properties", _tidy(json_format.MessageToDict(struct)))


def write(properties: Mapping[str, Value]) -> struct_pb2.Struct:
    """Return properties as a struct without None values."""
    struct = struct_pb2.Struct()
    json_format.ParseDict(_tidy(dict(properties)), struct)
    return struct


def _tidy(value: Value) -> Value:
    if isinstance(value, dict):
        items = cast("dict[str, Value]", value).items()
        return {key: _tidy(item) for key, item in items if item is not None}
    if isinstance(value, list | tuple):
        return [_tidy(item) for item in cast("list[Value]", value)]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def is_secret(value: Value) -> bool:
    """Return whether the value itself is a secret."""
    return isinstance(value, dict) and cast("dict[str, Value]", value).get(SIGNATURE) == SECRET


def leaves(value: Value, *, is_hidden: bool = False) -> Iterator[tuple[Value, bool]]:
    """Yield each plain value inside a value, with whether a secret contains it."""
    if isinstance(value, dict):
        items = list(cast("dict[str, Value]", value).values())
    elif isinstance(value, list):
        items = cast("list[Value]", value)
    else:
        yield value, is_hidden
        return
    for item in items:
        yield from leaves(item, is_hidden=is_hidden or is_secret(value))


def has_secret(value: Value) -> bool:
    """Return whether the value is or contains a secret."""
    return any(is_hidden for _, is_hidden in leaves(value))


def has_unknown(value: Value) -> bool:
    """Return whether the value is or contains an unknown value."""
    return any(leaf == UNKNOWN for leaf, _ in leaves(value))


def reveal(value: Value) -> Value:
    """Return the value with all secrets unwrapped."""
    if is_secret(value):
        return reveal(cast("dict[str, Value]", value).get("value"))
    if isinstance(value, dict):
        return {key: reveal(item) for key, item in cast("dict[str, Value]", value).items()}
    if isinstance(value, list):
        return [reveal(item) for item in cast("list[Value]", value)]
    return value


def cover(value: Value, like: Value) -> Value:
    """Return the value with those parts marked secret that are secret in `like`."""
    if is_secret(like):
        return {SIGNATURE: SECRET, "value": value}
    if isinstance(value, dict) and isinstance(like, dict):
        named = cast("dict[str, Value]", like)
        return {key: cover(item, named.get(key)) for key, item in cast("dict[str, Value]", value).items()}
    if isinstance(value, list) and isinstance(like, list):
        items, marks = cast("list[Value]", value), cast("list[Value]", like)
        return [cover(item, mark) for item, mark in zip_longest(items, marks[: len(items)])]
    return cast("Value", value)
