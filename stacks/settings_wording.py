"""Fields of a `Question` as settings: keys, spelled values, and the file changes of a remedy."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING
from math import inf
from typing import Any, Final, cast

import yaml

from gemma_serving.planning.data.images import DEFAULT_IMAGES, built_name
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.fields import file_key, own_fields
from gemma_serving.planning.settings.paths import for_its_model, in_blocks, question_fields, value_at, with_changes
from gemma_serving.planning.settings.question import Platform, Question
from gemma_serving.planning.settings.tpu import TpuSettings
from gemma_serving.planning.settings.vllm_blocks import block_changes
from gemma_serving.planning.solve.remedy_wording import NO_STACK

TARGETS: Final = {"tpu-vm": "tpu", "cloud-run": "cloud-run"}
BLOCKS: Final = {"tpu": "tpu", "cloud-run": "cloudRun"}
_SHOWN: Final = ("provisioning", "max_run_duration_s")
"""Fields of a new block that are stated like those without a default, because they set what a machine costs."""
_NO_SETTING: Final = frozenset({"platform", "accelerator"})
"""Fields of a question for machines without a stack."""
_ADAPTERS: Final = "vllm.lora.adapters"
_SOURCES: Final = {"hub": "hub", "image": "prefetched-image"}
"""Modes with their own source of weights. The others read the bucket."""
_NUMBER: Final = re.compile(r"([-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?|0o[0-7]+)$")
"""Text that YAML 1.2 reads as a number, and YAML 1.1 as text."""


def settings_key(path: str) -> str:
    """Return the settings key of a field: `vllm.maxModelLen` for `vllm.max_model_len`."""
    field = question_fields().get(path)
    return file_key(path) if field is None else field.key


def value_in_file(path: str, value: object) -> object:
    """Return the value of a field as written in the settings file. None stays None."""
    if value is None:
        return None
    field = question_fields().get(path)
    return value if field is None else field.in_file(value)


def file_changes(question: Question, changes: Mapping[str, object]) -> Mapping[str, object]:
    """Return the new values by settings key that match changes of a deployment; None removes a key.

    A change of platform replaces the target's block and the image, because both belong to the target.
    """
    after = with_changes(question, changes)
    before_target, target = _target(question), _target(after)
    (foreign,) = {*BLOCKS.values()} - {BLOCKS[target]}
    paths = [path for path in in_blocks(question, for_its_model(question, changes)) if path not in _NO_SETTING]
    found: dict[str, object] = {}
    image = built_name(after.settings.image.version) or DEFAULT_IMAGES[target]
    if target != before_target:
        found |= {"target": target, "image": image, foreign: None}
        name = "tpu" if target == "tpu" else "cloud_run"
        block = TpuSettings if target == "tpu" else CloudRunSettings
        required = (one.path for one in own_fields(block) if one.default is MISSING or one.path in _SHOWN)
        paths += [f"{name}.{path}" for path in required]
    elif "image" in changes:
        found["image"] = image
    source = _source(after)
    for path in dict.fromkeys(paths):
        value = value_at(after, path)
        if path == "weights_mode":
            found |= {} if _source(question) == source else {"weights": source}
        elif path == "cloud_run.mount.mode" and source != "bucket":
            found["cloudRun.mount.mode"] = None
        elif path == "provider_keys":
            found |= dict.fromkeys(question.settings.provider_keys)
        elif (in_block := block_changes(path, value, question.settings.vllm_in_blocks)) is not None:
            found |= in_block
        elif path != "image" and settings_key(path).partition(".")[0] != foreign:
            found[settings_key(path)] = value_in_file(path, value)
    if found.get(_ADAPTERS, "") is None:  # no block without them
        found = {**{key: value for key, value in found.items() if not key.startswith("vllm.lora.")}, "vllm.lora": None}
    return found


class StackWording:
    """Fields as keys of a stack's settings file."""

    def __init__(self, question: Question, stack: str = NO_STACK) -> None:
        """Use the settings keys of the deployment's target, and the name of the stack in commands."""
        self._question = question
        self.stack = stack

    def change(self, changes: Mapping[str, object]) -> str | None:
        """Return the keys to set and to remove; None if the settings cannot express the change."""
        after = with_changes(self._question, changes)
        if after.facts.platform not in TARGETS:
            return None
        text = " and ".join(phrases(file_changes(self._question, changes)))
        is_other = after.settings.model != self._question.settings.model or changes.get("model_revision")
        stages = text and is_other and _source(after) == "bucket"
        return f"{text}, then run gemma stage_model {self.stack}" if stages else text or None


def phrases(found: Mapping[str, object]) -> Iterator[str]:
    """Yield what to set and what to remove."""
    given = ", ".join(f"{key}: {inline_yaml(value)}" for key, value in found.items() if value is not None)
    removed = ", ".join(key for key, value in found.items() if value is None)
    if given:
        yield f"set {given}"
    if removed:
        yield f"remove {removed}"


def stated(block: object, *, always: Collection[str] = ()) -> dict[str, object]:
    """Return the values of a block that differ from its defaults, and those of the fields `always`, by key and as a file has them."""
    found: dict[str, object] = {}
    for field in own_fields(type(block)):
        value: object = getattr(block, field.path)
        if value is not None and (value != field.default or field.path in always):
            found[field.file_key] = stated(value) if field.block is not None else field.in_file(value)
    return found


class _OneLine(yaml.SafeDumper):
    """Writes a text with line breaks in double quotes, and one that reads as another type in single quotes."""


def _text(dumper: Any, text: str) -> yaml.ScalarNode:  # noqa: ANN401 - PyYAML has no types
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_OneLine.add_representer(str, _text)
cast("Any", _OneLine).add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, [*"-+.0123456789"])


def inline_yaml(value: object) -> str:
    """Return a value as YAML on one line."""
    text = yaml.dump(value, Dumper=_OneLine, default_flow_style=True, width=inf, sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _target(question: Question) -> str:
    return TARGETS[cast("Platform", question.facts.platform)]


def _source(question: Question) -> str | None:
    mode = question.facts.weights_mode
    return mode and _SOURCES.get(mode, "bucket")
