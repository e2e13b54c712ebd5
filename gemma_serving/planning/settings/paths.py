"""Fields of a `Question` by path, such as `vllm.max_model_len`: list, read, check and change them."""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Final, cast

from gemma_serving.planning.machine.hardware import CLOUD_RUN_GPUS, find_accelerator
from gemma_serving.planning.settings.cloud_run import MountMode, MountSettings, ProbeSettings
from gemma_serving.planning.settings.fields import Block, SettingField, block_fields, file_key, own_field
from gemma_serving.planning.settings.image import NO_IMAGE
from gemma_serving.planning.settings.question import FACTS, Facts, Question
from gemma_serving.planning.settings.reading import require_consistent
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.tpu import ExistingNetworkSettings
from gemma_serving.planning.settings.workload import Workload

ENDED: Final = {
    "tpu.renewBefore": "Remove it: `gemma up STACK --yes`, also from cron, starts a run that expired again (docs/get-started.md)."
}
"""Former keys, and what answers in their place, as a sentence."""

OF_A_STACK: Final = frozenset(
    {"project", "target", "model_revision", "model_config", "draft_config", "weights", "docker_hub", "bucket"}
    | {"prices", "labels", "hf_token_secret", "api_key_secret", "secrets", "provider_keys", "vllm_in_blocks"}
)
"""Settings that only a stack has."""
_EMPTY: Final[Mapping[str, object]] = {
    "workload": Workload(),
    "image": NO_IMAGE,
    "startup_probe": ProbeSettings(),
    "existing_network": ExistingNetworkSettings(network="", subnetwork="", private_google_access=False),
}
"""Initial value of an omitted block when one of its fields is set."""


@cache
def question_fields() -> Mapping[str, SettingField]:
    """Return each field of a question that can be set, by path: the fields of its blocks, and its own."""
    hints = typing.get_type_hints(Facts, include_extras=True)
    facts = (own_field(name, hints[name]) for name in ("accelerator", "platform", "weights_mode"))
    settings = (one for one in block_fields(Settings) if one.path.partition(".")[0] not in OF_A_STACK)
    return {field.path: field for field in (*facts, *settings) if field.block is None}


def require_consistent_blocks(question: Question) -> None:
    """Raise PlanningError for a block of a question whose keys contradict each other. Each value was checked where it was read."""
    named = find_accelerator(question.facts.accelerator)  # of a question, whose block has none
    of_name = {"accelerator_type": named.name} if named and named.is_tpu else {}
    require_consistent(dataclasses.replace(question.tpu, **of_name), "tpu")
    for path in ("vllm", "cloud_run", "alerts", "metrics", "workload"):
        block = cast("Block | None", value_at(question, path))
        if block is not None:
            require_consistent(block, file_key(path))


def value_at(question: Question, path: str) -> object:
    """Return the value of a field; None if it or its block is omitted. The accelerator may be in a block."""
    if path == "accelerator":
        return question.accelerator_name
    name, *rest = path.split(".")
    owner = question.facts if name in FACTS else question if name in {"tpu", "cloud_run"} else question.settings
    found: object = getattr(owner, name)
    for name in rest:
        found = getattr(found, name) if found is not None else None
    return None if found == NO_IMAGE else found


def with_changes(question: Question, changes: Mapping[str, object]) -> Question:
    """Return the question with new values for some fields, by path."""
    changes = for_its_model(question, changes)
    if question.tpu.accelerator_type or question.cloud_run.gpu:
        cleared = {"accelerator": ""} if "accelerator" in changes else {}
        changes = {**cleared, **in_blocks(question, changes)}
    if "image" in changes:
        changes = {**changes, "image": changes["image"] or NO_IMAGE}
    return question.changed(**_values(changes, lambda name: value_at(question, name)))


def in_blocks(question: Question, changes: Mapping[str, object]) -> Mapping[str, object]:
    """Return the changes with a stack's accelerator as a change of its block, which a platform without a stack does not have, and those of the mount."""
    platform = changes.get("platform", question.facts.platform)
    name = changes.get("accelerator")
    found = find_accelerator(str(name)) if name is not None else None
    own: dict[object, tuple[str, object]] = {
        "cloud-run": ("cloud_run.gpu", CLOUD_RUN_GPUS.get(found.name if found else "", str(name))),
        "tpu-vm": ("tpu.accelerator_type", name),
    }
    named = dict(own.get(platform, one) if one[0] == "accelerator" else one for one in changes.items())
    return {**named, **_of_mount(question, changes), **named}


def _of_mount(question: Question, changes: Mapping[str, object]) -> Mapping[str, object]:
    """Return the changes of the mount for another mode. Without the bucket, only a mode that reads it without a mount is removed."""
    mode = changes.get("weights_mode")
    if "weights_mode" not in changes or changes.get("platform", question.facts.platform) != "cloud-run":
        return {}
    if mode not in typing.get_args(MountMode):
        is_unmounted = question.facts.weights_mode in {"streamer", "memory"}
        return {"cloud_run.mount.mode": MountSettings().mode} if is_unmounted else {}
    drops_size = mode != "fuse-cached" and question.cloud_run.mount.cache_size_mib is not None
    size = {"cloud_run.mount.cache_size_mib": None} if drops_size else {}
    return {"cloud_run.mount.mode": mode, **size}


def effective_changes(question: Question, changes: Mapping[str, object]) -> Mapping[str, object]:
    """Return the changes that differ from the current values, with the removal of the commit of another model."""
    changes = for_its_model(question, changes)
    different = {path for path, value in changes.items() if value != value_at(question, path)}
    stated = {"model_revision"} if "model" in different else set[str]()
    return {path: value for path, value in changes.items() if path in different | stated}


def for_its_model(question: Question, changes: Mapping[str, object]) -> Mapping[str, object]:
    """Return the changes; those to another model without the commit, which belongs to one repository."""
    is_other = changes.get("model", question.settings.model) != question.settings.model
    return {"model_revision": None, **changes} if is_other and question.settings.model_revision else changes


def _values(changes: Mapping[str, object], present: Callable[[str], object]) -> dict[str, object]:
    """Return the new values by name, a block with the changes of its fields. `present` returns the present value of a name."""
    found: dict[str, object] = {}
    inner: dict[str, dict[str, object]] = {}
    for path, value in changes.items():
        name, dot, rest = path.partition(".")
        if dot:
            inner.setdefault(name, {})[rest] = value
        else:
            found[name] = value
    for name, values in inner.items():
        block: Any = present(name) or _EMPTY[name]
        found[name] = dataclasses.replace(block, **_values(values, partial(getattr, block)))
    return found
