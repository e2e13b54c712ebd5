"""The option `--set`: keys as in a settings file, and values of a command line."""

import json
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from functools import cache
from typing import Final, cast

from gemma_serving.contracts.spelling import did_you_mean, did_you_mean_path
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.settings.fields import SettingField
from gemma_serving.planning.settings.paths import ENDED, question_fields
from gemma_serving.planning.settings.reading import list_items, read_text
from gemma_serving.planning.settings.vllm_blocks import BLOCKS
from gemma_serving.scripts.plan.plan_options import NONE

OWN_OPTION: Final = {
    **{name: f"--{name}" for name in ("model", "accelerator", "platform", "quantization")},
    "image.version": "--vllm",
    "tpu.accelerator_type": "--accelerator",
    "cloud_run.gpu": "--accelerator",
}
"""Fields that have their own option."""
OF_NAMED_IMAGE: Final = frozenset({"image.audio", "image.gid", "image.supports", "image.uid"})
"""Keys that change the image of a plan, even one that the file names: only an image with a repository is a block there."""
_OPTIONAL_BLOCKS: Final = {
    "cloudRun.startupProbe": "cloud_run.startup_probe",
    "tpu.existingNetwork": "tpu.existing_network",
}
"""Blocks that `none` removes, with their paths."""


@cache
def set_keys() -> Mapping[str, SettingField]:
    """Return the fields that `--set` takes, by key: all fields without their own option."""
    return {field.key: field for path, field in question_fields().items() if path not in OWN_OPTION}


@cache
def set_blocks() -> frozenset[str]:
    """Return the blocks of settings whose keys `--set` takes, such as `tpu.existingNetwork`."""
    parents = {field.key.rpartition(".")[0] for field in question_fields().values()}
    return frozenset(parents - {""} | {f"vllm.{name}" for name in BLOCKS})


def is_of_vllm_block(pair: str) -> bool:
    """Return whether a key is of a block of `vllm` that a file's reader turns into options, such as `vllm.speculative.method`, or removes one."""
    key, _, text = parts_of(pair)
    block, _, name = key.partition(".")
    is_of_block = block == "vllm" and key not in set_keys() and name.partition(".")[0] in BLOCKS
    return is_of_block and ("." in name or text == NONE)


def parse_set(pairs: Iterable[str], *, other_keys: Iterable[str] = ()) -> dict[str, object]:
    """Return the values of `key=value` pairs by path, parsed and checked. Raises PlanningError.

    `other_keys`: further keys that a wrong one may mean.
    """
    found: dict[str, object] = {}
    for pair in pairs:
        key, equals, text = parts_of(pair)
        block = _OPTIONAL_BLOCKS.get(key)
        if block is not None and text == NONE:
            found = {path: value for path, value in found.items() if not path.startswith(f"{block}.")} | {block: None}
            continue
        field = set_keys().get(key)
        if field is None:
            raise _unknown_key(key, other_keys)
        if not equals or not text:
            raise no_value(key)
        for removed in [path for path in _OPTIONAL_BLOCKS.values() if field.path.startswith(f"{path}.")]:
            found.pop(removed, None)
        found[field.path] = read_value(key, field, text)
    mode = found.get("cloud_run.mount.mode")
    return found if mode is None else {"weights_mode": mode, **found}


def parts_of(pair: str) -> tuple[str, str, str]:
    """Return the key, the `=` and the value of `key=value`, without blanks around them; without `=`, the last two are empty."""
    key, equals, value = pair.partition("=")
    return key.strip(), equals, value.strip()


def no_value(given: str) -> PlanningError:
    """Return the error about a key without `=`, or with a colon in its place."""
    key = given.partition(":")[0]
    return PlanningError(f"--set {given} has no value. Write --set {key if key in set_keys() else given}=VALUE.")


def _unknown_key(given: str, other_keys: Iterable[str]) -> PlanningError:
    """Return the error about a key that `--set` does not have, with the option or the key that is meant."""
    options = {field.key: OWN_OPTION[path] for path, field in question_fields().items() if path in OWN_OPTION}
    option = "--image" if given == "image" else options.get(given)
    if option is not None:
        return PlanningError(f'--set has no key "{given}". Use the option {option}.')
    if given in set_blocks():
        removed = (
            f", or remove it with --set {given}={NONE}"
            if given in _OPTIONAL_BLOCKS or given.startswith("vllm.")
            else ""
        )
        return PlanningError(
            f"--set {given} is a block. Set its keys{removed}. docs/reference/settings.md lists the keys."
        )
    if given in ENDED:
        return PlanningError(f'--set has no key "{given}". {ENDED[given]}')
    known = list(dict.fromkeys((*set_keys(), *other_keys)))
    hint = did_you_mean(given, known) if "." in given else ""
    hint = hint or did_you_mean_path(given, dict.fromkeys((*known, *sorted(set_blocks()))))
    return PlanningError(f'--set has no key "{given}".{hint} docs/reference/settings.md lists the keys.')


def read_value(key: str, field: SettingField, text: str) -> object:
    """Return the value of a command-line text. Raises PlanningError with the key, the text and what is allowed."""
    may_be_empty = typing.get_origin(field.hint) is tuple and field.default in ((), MISSING)
    if text == NONE and (field.is_optional or may_be_empty):
        return None if field.is_optional else ()
    try:
        return read_text(field, text)
    except ValueError as error:
        raise PlanningError(f'--set {key} is "{text}"; {error}.') from None


def option_value(field: SettingField, value: object) -> str:
    """Return a value in the form that `read_value` parses."""
    if value is None:
        return NONE
    if isinstance(value, bool | Mapping):
        return json.dumps(value, separators=(",", ":"))
    if field.quantity is not None:
        return field.quantity.spell(cast("int", value))
    if isinstance(value, tuple):
        words = cast("tuple[str, ...]", value)
        text = " ".join(words) or ("[]" if field.is_optional else NONE)
        return text if _is_read_as(text, words) else json.dumps(words, ensure_ascii=False)
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _is_read_as(text: str, words: tuple[str, ...]) -> bool:
    """Return whether a list's text has these items."""
    try:
        return tuple(() if text == NONE else list_items(text)) == words
    except ValueError:
        return False
