"""Fields of a `Deployment` by path, such as `vllm.max_model_len`: list, read, check and change them."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, TypeVar, cast

from msgspec import Struct, structs

from gemma_serving.planning.machine.hardware import CLOUD_RUN_GPUS, find_accelerator
from gemma_serving.planning.settings.cloud_run import MountMode, MountSettings, ProbeSettings
from gemma_serving.planning.settings.deployment import OF_SETTINGS, Deployment
from gemma_serving.planning.settings.fields import Block, SettingField, block_fields, file_key, own_field
from gemma_serving.planning.settings.image import ImageSettings
from gemma_serving.planning.settings.reading import require_consistent
from gemma_serving.planning.settings.tpu import ExistingNetworkSettings
from gemma_serving.planning.settings.workload import Workload

ENDED: Final = {
    "tpu.renewBefore": "Remove it: `gemma up STACK --yes`, also from cron, starts a run that expired again (docs/get-started.md)."
}
"""Former keys, and what answers in their place, as a sentence."""

T = TypeVar("T")

_OF_A_STACK: Final = frozenset({"model_revision", "bucket", "provider_keys", "vllm_in_blocks"})
"""Settings that only a stack has."""
_EMPTY: Final[Mapping[str, object]] = {
    "workload": Workload(),
    "startup_probe": ProbeSettings(),
    "image": ImageSettings(repository="", digest=""),
    "existing_network": ExistingNetworkSettings(network="", subnetwork="", private_google_access=False),
}
"""Initial value of an omitted block when one of its fields is set."""


@cache
def question_fields() -> Mapping[str, SettingField]:
    """Return each field of a question that can be set, by path: the fields of its blocks, and its own."""
    return {field.path: field for field in _leaves() if field.block is None}


def _leaves() -> Iterator[SettingField]:
    hints = typing.get_type_hints(Deployment, include_extras=True)
    for name in ("accelerator", "platform", "weights_mode", *OF_SETTINGS):
        field = own_field(name, hints[name])
        if name not in _OF_A_STACK:
            yield field
            yield from block_fields(field.block, field.path, field.key) if field.block else ()


def require_consistent_blocks(deployment: Deployment) -> None:
    """Raise PlanningError for a block of a deployment whose keys contradict each other. Each value was checked where it was read."""
    named = find_accelerator(deployment.accelerator)  # of a question, whose block has none
    of_name = {"accelerator_type": named.name} if named and named.is_tpu else {}
    require_consistent(dataclasses.replace(deployment.tpu, **of_name), "tpu")
    for path in ("vllm", "cloud_run", "alerts", "metrics", "workload"):
        block: Block | None = getattr(deployment, path)
        if block is not None:
            require_consistent(block, file_key(path))


def value_at(deployment: Deployment, path: str) -> object:
    """Return the value of a field; None if it or its block is omitted. The accelerator may be in a block."""
    if path == "accelerator":
        return deployment.accelerator_name
    found: object = deployment
    for name in path.split("."):
        found = getattr(found, name) if found is not None else None
    return found


def with_changes(deployment: Deployment, changes: Mapping[str, object]) -> Deployment:
    """Return the deployment with new values for some fields, by path."""
    changes = for_its_model(deployment, changes)
    if deployment.tpu.accelerator_type or deployment.cloud_run.gpu:
        cleared = {"accelerator": ""} if "accelerator" in changes else {}
        changes = {**cleared, **in_blocks(deployment, changes)}
    return _changed(deployment, changes)


def in_blocks(deployment: Deployment, changes: Mapping[str, object]) -> Mapping[str, object]:
    """Return the changes with a stack's accelerator as a change of its block, which a platform without a stack does not have, and those of the mount."""
    platform = changes.get("platform", deployment.platform)
    name = changes.get("accelerator")
    found = find_accelerator(str(name)) if name is not None else None
    own: dict[object, tuple[str, object]] = {
        "cloud-run": ("cloud_run.gpu", CLOUD_RUN_GPUS.get(found.name if found else "", str(name))),
        "tpu-vm": ("tpu.accelerator_type", name),
    }
    named = dict(own.get(platform, one) if one[0] == "accelerator" else one for one in changes.items())
    return {**named, **_of_mount(deployment, changes), **named}


def _of_mount(deployment: Deployment, changes: Mapping[str, object]) -> Mapping[str, object]:
    """Return the changes of the mount for another mode. Without the bucket, only a mode that reads it without a mount is removed."""
    mode = changes.get("weights_mode")
    if "weights_mode" not in changes or changes.get("platform", deployment.platform) != "cloud-run":
        return {}
    if mode not in typing.get_args(MountMode):
        is_unmounted = deployment.weights_mode in {"streamer", "memory"}
        return {"cloud_run.mount.mode": MountSettings().mode} if is_unmounted else {}
    drops_size = mode != "fuse-cached" and deployment.cloud_run.mount.cache_size_mib is not None
    size = {"cloud_run.mount.cache_size_mib": None} if drops_size else {}
    return {"cloud_run.mount.mode": mode, **size}


def effective_changes(deployment: Deployment, changes: Mapping[str, object]) -> Mapping[str, object]:
    """Return the changes that differ from the current values, with the removal of the commit of another model."""
    changes = for_its_model(deployment, changes)
    different = {path for path, value in changes.items() if value != value_at(deployment, path)}
    stated = {"model_revision"} if "model" in different else set[str]()
    return {path: value for path, value in changes.items() if path in different | stated}


def for_its_model(deployment: Deployment, changes: Mapping[str, object]) -> Mapping[str, object]:
    """Return the changes; those to another model without the commit, which belongs to one repository."""
    is_other = changes.get("model", deployment.model) != deployment.model
    return {"model_revision": "", **changes} if is_other and deployment.model_revision else changes


def _changed(owner: T, changes: Mapping[str, object]) -> T:
    direct: dict[str, object] = {}
    inner: dict[str, dict[str, object]] = {}
    for path, value in changes.items():
        name, dot, rest = path.partition(".")
        if dot:
            inner.setdefault(name, {})[rest] = value
        else:
            direct[name] = value
    for name, values in inner.items():
        block = getattr(owner, name)
        direct[name] = _changed(_EMPTY[name] if block is None else block, values)
    change = structs.replace if isinstance(owner, Struct) else dataclasses.replace
    return change(cast("Any", owner), **direct)
