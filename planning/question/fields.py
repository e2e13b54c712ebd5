"""Fields of a `Deployment` by path, such as `vllm.max_model_len`: list, read and change them."""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast

from msgspec import Struct, structs

from planning.errors import PlanningError
from planning.question.types import CloudRunOptions, Deployment, StartupProbe, TpuOptions, WatchOptions
from planning.question.vllm_args import Limit, VllmOptions
from planning.question.workload import Workload

T = TypeVar("T")

_NOT_SETTABLE = frozenset(
    {
        "model_spec",
        "model_revision",
        "draft_spec",
        "device",
        "prices",
        "today",
        "bucket_region",
        "existing_bucket",
        "has_api_key",
        "image_version",
        "image_digest",
        "image_audio",
        "vllm_in_blocks",
        "staged_parts",
        "cloud_run.cuda13_image",
        "cloud_run.rolls_out",
        "cloud_run.file_cache_gib",
    }
)
"""Objects of the program, and values that follow from other fields."""
_BLOCKS: Final[frozenset[object]] = frozenset(
    {VllmOptions, TpuOptions, CloudRunOptions, WatchOptions, StartupProbe, Workload}
)
_EMPTY: Mapping[str, object] = {"startup_probe": StartupProbe(), "workload": Workload()}
"""Initial value of an omitted block when one of its fields is set."""

_ABOVE_0 = Limit(above=0)
_LIMITS = {
    "host_memory_gib": _ABOVE_0,
    "vcpu": _ABOVE_0,
    "measured_tok_per_s": Limit(at_least=0.001),
    "max_usd": Limit(at_least=1),
    "cloud_run.concurrency": Limit(at_least=1),
    "cloud_run.max_instances": Limit(at_least=1),
}
"""Limits of numbers outside _OWN_LIMITS; all other numbers are 0 or more."""
_OWN_LIMITS = ("vllm.", "workload.")
"""Blocks whose fields have limits in their annotations."""
_FROM_0 = Limit(at_least=0)


class FieldType(NamedTuple):
    """Type and limits of a field."""

    hint: object
    """Its type without None."""
    is_optional: bool


@cache
def field_types() -> Mapping[str, FieldType]:
    """Return the type of each field that can be set, by path."""
    return {path: kind for path, kind in _leaves(Deployment, "") if path not in _NOT_SETTABLE}


@cache
def number_limits() -> Mapping[str, Limit]:
    """Return the limits of each numeric field outside `vllm` and `workload`, by path."""
    numbers = (path for path, kind in field_types().items() if kind.hint is int or kind.hint is float)
    return {path: _LIMITS.get(path, _FROM_0) for path in numbers if not path.startswith(_OWN_LIMITS)}


@cache
def choices() -> Mapping[str, tuple[str, ...]]:
    """Return the allowed values of each field with a fixed choice outside `vllm`, by path."""
    return {
        path: typing.get_args(kind.hint)
        for path, kind in field_types().items()
        if typing.get_origin(kind.hint) is typing.Literal and not path.startswith(_OWN_LIMITS)
    }


def check_values(deployment: Deployment) -> None:
    """Raise PlanningError for the first number of a deployment that is out of range, or word that is not one of its field's choices."""
    for path, limit in number_limits().items():
        value = value_at(deployment, path)
        if value is not None and not (isinstance(value, int | float) and limit.allows(value)):
            raise PlanningError(f"`{path}` is {value}; it must be {limit}.")
    for path, allowed in choices().items():
        value = value_at(deployment, path)
        if value is not None and value not in allowed:
            raise PlanningError(f'`{path}` is "{value}". Allowed: {", ".join(allowed)}.')


def is_duration(path: str) -> bool:
    """Return whether a field holds a duration. The length of a recording is a workload metric in seconds."""
    return path.endswith("_s") and not path.endswith(("_per_s", "audio_s"))


def value_at(deployment: Deployment, path: str) -> object:
    """Return the value of a field; None if it or its block is omitted."""
    found: object = deployment
    for name in path.split("."):
        found = getattr(found, name) if found is not None else None
    return found


def changed(deployment: Deployment, changes: Mapping[str, object]) -> Deployment:
    """Return the deployment with new values for some fields, by path. A commit belongs to one repository, so another model has none."""
    if "model" in changes and deployment.model_revision:
        changes = {"model_revision": "", **changes}
    return _changed(deployment, changes)


def differing(deployment: Deployment, changes: Mapping[str, object]) -> Mapping[str, object]:
    """Return the changes that differ from the current values."""
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
        own[name] = _changed(_EMPTY[name] if block is None else block, values)
    change = structs.replace if isinstance(owner, Struct) else dataclasses.replace
    return change(cast("Any", owner), **own)


def _leaves(owner: type, prefix: str) -> Iterator[tuple[str, FieldType]]:
    for name, hint in cast("Mapping[str, object]", typing.get_type_hints(owner)).items():
        kind = _field_type(hint)
        path = prefix + name
        if kind.hint in _BLOCKS:
            yield from _leaves(cast("type", kind.hint), f"{path}.")
        else:
            yield path, kind


def _field_type(hint: object) -> FieldType:
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        members = typing.get_args(hint)
        return FieldType(next(member for member in members if member is not types.NoneType), types.NoneType in members)
    return FieldType(hint, is_optional=False)
