"""The fields of a `Deployment` by path, such as `vllm.max_model_len`: list them, read them, change them."""

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

from planning.types import Deployment, StartupProbe

T = TypeVar("T")

_NOT_SETTABLE = frozenset({"model_spec", "prices", "cloud_run.cuda13_image"})
"""Objects of the program, and what follows from other fields."""


class FieldType(NamedTuple):
    """What a field holds."""

    hint: object
    """Its type without None."""
    is_optional: bool


@cache
def field_types() -> Mapping[str, FieldType]:
    """Return the type of each field that can be set, by path."""
    return {path: kind for path, kind in _leaves(Deployment, "") if path not in _NOT_SETTABLE}


def is_duration(path: str) -> bool:
    """Return whether a field holds seconds."""
    return path.endswith("_s") and not path.endswith("_per_s")


def value_at(deployment: Deployment, path: str) -> object:
    """Return the value of a field; None also where the block that holds it is left out."""
    found: object = deployment
    for name in path.split("."):
        found = getattr(found, name) if found is not None else None
    return found


def changed(deployment: Deployment, changes: Mapping[str, object]) -> Deployment:
    """Return the deployment with new values of some fields, by path."""
    return _changed(deployment, changes)


def differing(deployment: Deployment, changes: Mapping[str, object]) -> Mapping[str, object]:
    """Return the changes that change something."""
    return {path: value for path, value in changes.items() if value != value_at(deployment, path)}


def _changed(owner: T, changes: Mapping[str, object]) -> T:
    own: dict[str, object] = {}
    inner: dict[str, dict[str, object]] = {}
    for path, value in changes.items():
        name, dot, rest = path.partition(".")
        if dot:
            inner.setdefault(name, {})[rest] = value
        else:
            own[name] = value
    for name, values in inner.items():
        block = getattr(owner, name)
        own[name] = _changed(StartupProbe() if block is None else block, values)
    return cast("T", replace(cast("Any", owner), **own))


def _leaves(owner: type, prefix: str) -> Iterator[tuple[str, FieldType]]:
    hints = typing.get_type_hints(owner)
    for field in fields(owner):
        kind = _field_type(hints[field.name])
        path = prefix + field.name
        if isinstance(kind.hint, type) and is_dataclass(kind.hint) and path not in _NOT_SETTABLE:
            yield from _leaves(kind.hint, f"{path}.")
        else:
            yield path, kind


def _field_type(hint: object) -> FieldType:
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        members = typing.get_args(hint)
        return FieldType(next(member for member in members if member is not types.NoneType), types.NoneType in members)
    return FieldType(hint, is_optional=False)
