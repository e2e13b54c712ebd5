"""Check: errors in a resource's inputs, and defaults for inputs that the program does not set."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from localcloud.plugins.schema import PropertySpec, PropertySpecs, ValueKind
from localcloud.plugins.values import Path, Properties, UnknownValue, Value, is_list, is_object, render_path

DEFAULTS_KEY: Final = "__defaults"
"""The input in which the real provider lists the defaults that Check set. It distinguishes a chosen name from one that the program set."""

_NAME_SUFFIX_LENGTH: Final = 7
_ENGINE_KEYS: Final = frozenset({DEFAULTS_KEY, "__internal"})

_TYPES: Final[Mapping[ValueKind, type | tuple[type, ...]]] = {
    ValueKind.TEXT: str,
    ValueKind.FLAG: bool,
    ValueKind.WHOLE: int,
    ValueKind.NUMBER: (int, float),
    ValueKind.TEXTS_BY_KEY: dict,
    ValueKind.BLOCK: dict,
    ValueKind.LIST: list,
    ValueKind.SET: list,
}
_NAMES: Final[Mapping[type | tuple[type, ...], str]] = {
    bool: "true or false",
    (int, float): "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One error: the property's path and a sentence."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Inputs for choosing a name: the resource's name in the program, and the engine's random bytes."""

    name: str
    seed: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReply:
    """Inputs with all defaults set, and their errors."""

    inputs: Properties
    failures: tuple[Failure, ...]


def check(token: str, fields: PropertySpecs, news: Properties, olds: Mapping[str, Value], naming: Naming) -> CheckReply:
    """Check the inputs of a resource of the type `token`. `olds` are its last inputs, whose chosen name is kept."""
    written = {name: value for name, value in news.items() if name not in _ENGINE_KEYS and value is not None}
    defaulted: list[Value] = []
    inputs = with_defaults(fields, written)
    defaulted.extend(name for name in inputs if name not in written)
    for name, each in fields.items():
        if each.autoname and name not in inputs:
            inputs[name] = _kept_name(name, olds) or choose_name(naming)
            defaulted.append(name)
    failures = (*problems(token, fields, inputs), *exclusions(fields, inputs, naming.name))
    inputs[DEFAULTS_KEY] = sorted(defaulted, key=str)
    return CheckReply(inputs=inputs, failures=failures)


def with_defaults(fields: PropertySpecs, values: Mapping[str, Value]) -> Properties:
    """Set defaults, including inside objects and lists of objects. A property that excludes a given one gets none."""
    given = {name: value for name, value in values.items() if name not in _ENGINE_KEYS and value is not None}
    filled: Properties = {}
    for name, value in given.items():
        each = fields.get(name)
        filled[name] = value if each is None else each.inside(value, with_defaults)
    written = {each.terraform for name, each in fields.items() if name in given}
    for name, each in fields.items():
        if each.chosen is not None and name not in filled and not written & {*each.conflicts, *each.one_of}:
            filled[name] = each.chosen
    return filled


def _kept_name(name: str, olds: Mapping[str, Value]) -> Value:
    defaults = olds.get(DEFAULTS_KEY)
    return olds.get(name) if is_list(defaults) and name in defaults else None


def choose_name(naming: Naming) -> str:
    """Choose a name as pulumi-gcp does: the resource's name, a hyphen and seven hexadecimal digits, the same for the same seed."""
    digits = hashlib.sha256(naming.seed or naming.name.encode()).hexdigest()[:_NAME_SUFFIX_LENGTH]
    return f"{naming.name.lower()}-{digits}"


def problems(token: str, fields: PropertySpecs, inputs: Mapping[str, Value]) -> Iterator[Failure]:
    """Find errors in inputs: unknown properties, missing ones, wrong types."""
    yield from _object_problems(token, fields, inputs, ())


def exclusions(fields: PropertySpecs, inputs: Properties, name: str) -> Iterator[Failure]:
    """Find top-level properties that exclude each other, with the real provider's message. `name` is the resource's name in the program."""
    given = {each.terraform for property_name, each in fields.items() if inputs.get(property_name) is not None}
    for property_name, each in fields.items():
        where = f"Examine values at '{name}.{property_name}'."
        group = sorted({*each.one_of, each.terraform}) if each.one_of else []
        chosen = [member for member in group if member in given]
        if len(chosen) > 1 and each.terraform in given:
            only = f"only one of `{','.join(group)}` can be specified, but `{','.join(chosen)}` were specified."
            yield Failure(path="", reason=f'Invalid combination of arguments. "{each.terraform}": {only}. {where}')
        elif group and not chosen and not any("." in member for member in group):
            one = f"one of `{','.join(group)}` must be specified"
            yield Failure(path="", reason=f'Invalid combination of arguments. "{each.terraform}": {one}. {where}')
        for other in each.conflicts:
            if each.terraform in given and other in given:
                conflict = f'"{each.terraform}": conflicts with {other}'
                yield Failure(path="", reason=f"Conflicting configuration arguments. {conflict}. {where}")


def _object_problems(token: str, fields: PropertySpecs, values: Mapping[str, Value], at: Path) -> Iterator[Failure]:
    for name, value in values.items():
        path = (*at, name)
        each = fields.get(name)
        if each is None or each.output:
            yield _unknown_property(token, path, each)
        else:
            yield from _value_problems(token, each, value, path)
    for name, each in fields.items():
        if each.required and values.get(name) is None:
            path = render_path((*at, name))
            yield Failure(path=path, reason=f"missing required property {path!r} of {token}")


def _unknown_property(token: str, path: Path, each: PropertySpec | None) -> Failure:
    rendered = render_path(path)
    if each is not None:
        return Failure(path=rendered, reason=f"{rendered!r} of {token} is computed by Google Cloud and cannot be set")
    reason = (
        f"the local stand-in does not support the property {rendered!r} of {token}. Check its spelling. If a newer provider has it, "
        "run with --providers real"
    )
    return Failure(path=rendered, reason=reason)


def _value_problems(token: str, each: PropertySpec, value: Value, path: Path) -> Iterator[Failure]:
    if value is None or isinstance(value, UnknownValue):
        return
    if not _is_of_kind(each.kind, value):
        rendered = render_path(path)
        yield Failure(
            path=rendered, reason=f"{rendered!r} of {token} must be {each.kind.value}, got {_kind_name(value)}"
        )
    elif each.kind is ValueKind.BLOCK and is_object(value):
        yield from _object_problems(token, each.fields, value, path)
    elif each.item is not None and is_list(value):
        for index, member in enumerate(value):
            yield from _value_problems(token, each.item, member, (*path, index))
    elif each.kind is ValueKind.TEXTS_BY_KEY and is_object(value):
        entry = PropertySpec(kind=ValueKind.TEXT)
        for key, member in value.items():
            yield from _value_problems(token, entry, member, (*path, key))


def _is_of_kind(kind: ValueKind, value: Value) -> bool:
    # Python's bool is an int as well.
    return isinstance(value, _TYPES[kind]) and (kind is ValueKind.FLAG or not isinstance(value, bool))


def _kind_name(value: Value) -> str:
    return next((name for types, name in _NAMES.items() if isinstance(value, types)), "something else")
