"""Property values in the stand-ins, and their encoding in the engine's protobuf structs.

Secret marks are removed on the way in (`plain`) and restored on the way out (`conceal`), so the resource tables use ordinary values.
Nothing in this module prints or formats a value, so an exception here never contains one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias, TypeGuard, cast

from google.protobuf import struct_pb2


class UnknownValue(Enum):
    """A value that is unknown until the resource that computes it exists."""

    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SecretValue:
    """A value that the engine encrypts in the state and hides in its output. Its repr does not show it."""

    value: "Value"

    def __repr__(self) -> str:
        return "SecretValue(...)"


Value: TypeAlias = None | bool | int | float | str | UnknownValue | SecretValue | list["Value"] | dict[str, "Value"]
Properties: TypeAlias = dict[str, Value]
Path: TypeAlias = tuple[str | int, ...]

UNKNOWN: Final = UnknownValue.UNKNOWN

# Signatures of the Pulumi wire format (github.com/pulumi/pulumi, sdk/go/common/resource/sig and plugin/rpc.go).
_SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
_SECRET: Final = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105 - the wire format's marker of a secret, not one itself
_UNSUPPORTED: Final = {
    "c44067f5952c0a294b673a41bacd8c17": "an asset",
    "0def7320c3a5731c473e5ecbe6d01bc7": "an archive",
}
_RESOURCE: Final = "5cf8f73096256a8f31e491e813e4eb8e"
_OUTPUT: Final = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
_UNKNOWN_OUT: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
_UNKNOWNS: Final = frozenset(
    {
        _UNKNOWN_OUT,
        "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",
        "3eeb2bf0-c639-47a8-9e75-3b44932eb421",
        "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",
        "030794c1-77ac-496b-92df-f27374a8bd58",
        "e48ece36-62e2-4504-bad9-02848725956a",
        "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",
    }
)

# Shorter texts are hidden only by their location: marking every "1" or "on" hides half of the state.
_MIN_SECRET_LENGTH: Final = 6


class UnsupportedValueError(Exception):
    """The engine sent a kind of value that the stand-ins do not support."""


def is_object(value: Value) -> TypeGuard[dict[str, Value]]:
    """Return whether a value is an object."""
    return isinstance(value, dict)


def is_list(value: Value) -> TypeGuard[list[Value]]:
    """Return whether a value is a list."""
    return isinstance(value, list)


def from_struct(struct: struct_pb2.Struct) -> Properties:
    """Read a protobuf struct: integral numbers become ints, unknowns and secrets their own types, nulls are omitted."""
    fields = {name: _from_value(value) for name, value in struct.fields.items()}
    return {name: value for name, value in fields.items() if value is not None}


def to_struct(properties: Properties) -> struct_pb2.Struct:
    """Return properties as a protobuf struct, the inverse of `from_struct`."""
    return struct_pb2.Struct(fields={name: _to_value(value) for name, value in properties.items()})


def _from_value(value: struct_pb2.Value) -> Value:
    match value.WhichOneof("kind"):
        case "bool_value":
            return value.bool_value
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "string_value":
            return UNKNOWN if value.string_value in _UNKNOWNS else value.string_value
        case "list_value":
            return [_from_value(item) for item in value.list_value.values]
        case "struct_value":
            return _from_object(value.struct_value)
        case _:
            return None


def _from_object(struct: struct_pb2.Struct) -> Value:
    if _SIGNATURE not in struct.fields:
        return cast("Value", from_struct(struct))
    signature = struct.fields[_SIGNATURE].string_value
    if signature == _SECRET:
        return SecretValue(_from_value(struct.fields["value"]))
    if signature == _OUTPUT:
        inner = _from_value(struct.fields["value"]) if "value" in struct.fields else UNKNOWN
        return SecretValue(inner) if struct.fields["secret"].bool_value else inner
    if signature == _RESOURCE:
        return struct.fields["id"].string_value if "id" in struct.fields else UNKNOWN
    kind = _UNSUPPORTED.get(signature, "a value of an unknown kind")
    raise UnsupportedValueError(f"the stand-in providers do not support {kind}. Pass plain values")


def _to_value(value: Value) -> struct_pb2.Value:  # noqa: PLR0911 - one return per kind of value
    match value:
        case None:
            return struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)
        case bool():
            return struct_pb2.Value(bool_value=value)
        case int() | float():
            return struct_pb2.Value(number_value=float(value))
        case str():
            return struct_pb2.Value(string_value=value)
        case UnknownValue():
            return struct_pb2.Value(string_value=_UNKNOWN_OUT)
        case SecretValue():
            fields = {_SIGNATURE: struct_pb2.Value(string_value=_SECRET), "value": _to_value(value.value)}
            return struct_pb2.Value(struct_value=struct_pb2.Struct(fields=fields))
        case list():
            return struct_pb2.Value(list_value=struct_pb2.ListValue(values=[_to_value(item) for item in value]))
        case dict():
            return struct_pb2.Value(struct_value=to_struct(value))


@dataclass(frozen=True, slots=True)
class Secrets:
    """Locations and values of secrets in a set of properties. Its repr shows neither."""

    paths: frozenset[Path] = frozenset()
    texts: frozenset[str] = frozenset()

    def __or__(self, other: "Secrets") -> "Secrets":
        return Secrets(self.paths | other.paths, self.texts | other.texts)

    def __repr__(self) -> str:
        return f"Secrets({len(self.paths)} places)"


def plain(properties: Properties) -> tuple[Properties, Secrets]:
    """Return the properties without secret marks, and the locations of the marks."""
    paths: set[Path] = set()
    texts: set[str] = set()

    def strip(value: Value, path: Path) -> Value:
        if not isinstance(value, SecretValue):
            return _members(value, path, strip)
        paths.add(path)
        bare = strip(value.value, path)
        texts.update(leaf for leaf in _leaves(bare) if isinstance(leaf, str) and len(leaf) >= _MIN_SECRET_LENGTH)
        return bare

    bare = {name: strip(value, (name,)) for name, value in properties.items()}
    return bare, Secrets(frozenset(paths), frozenset(texts))


def conceal(properties: Properties, secrets: Secrets) -> Properties:
    """Return the properties with secret marks: at the secrets' locations, and on every text that equals one of them."""

    def mark(value: Value, path: Path) -> Value:
        is_secret = path in secrets.paths or (isinstance(value, str) and value in secrets.texts)
        return SecretValue(value) if is_secret else _members(value, path, mark)

    return {name: mark(value, (name,)) for name, value in properties.items()}


def _members(value: Value, path: Path, change: Callable[[Value, Path], Value]) -> Value:
    """Return a list or object with a function applied to its members. Anything else is returned unchanged."""
    match value:
        case list():
            return [change(member, (*path, index)) for index, member in enumerate(value)]
        case dict():
            return {name: change(member, (*path, name)) for name, member in value.items()}
        case _:
            return value


def _leaves(value: Value) -> Iterator[Value]:
    """Yield everything inside that is neither a list nor an object."""
    match value:
        case SecretValue():
            yield from _leaves(value.value)
        case list():
            for member in value:
                yield from _leaves(member)
        case dict():
            for member in value.values():
                yield from _leaves(member)
        case _:
            yield value


def has_unknown(value: Value) -> bool:
    """Return whether any nested value is unknown."""
    return any(leaf is UNKNOWN for leaf in _leaves(value))


def text_of(properties: Mapping[str, Value], name: str) -> str:
    """Return a text property, or the empty string if it is missing or not a text."""
    value = properties.get(name)
    return value if isinstance(value, str) else ""


def render_path(path: Iterable[str | int]) -> str:
    """Return a property path in the engine's format: `template.containers[0].image`, `labels["managed-by"]`."""
    rendered = ""
    for step in path:
        if isinstance(step, int):
            rendered += f"[{step}]"
        elif step.replace("_", "a").replace("$", "a").isalnum() and not step[0].isdigit():
            rendered += f".{step}" if rendered else step
        else:
            quoted = step.replace("\\", "\\\\").replace('"', '\\"')
            rendered += f'["{quoted}"]'
    return rendered
