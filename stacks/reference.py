"""`python -m stacks.reference`: every setting with its type, default and meaning, from the models themselves; docs/settings.md is its output."""

import types
import typing
from collections.abc import Iterator
from typing import cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from planning.vllm_args import OPTION_FLAG, OPTION_HELP
from stacks import settings
from stacks.units import format_duration, format_memory

_BLOCKS = {
    "gemma-serving": settings.Settings,
    "gemma-serving:image": settings.ImageSettings,
    "gemma-serving:vllm": settings.VllmSettings,
    "gemma-serving:tpu": settings.TpuSettings,
    "gemma-serving:cloudRun": settings.CloudRunSettings,
    "gemma-serving:cloudRun.startupProbe": settings.ProbeSettings,
    "gemma-serving:cloudRun.mount": settings.MountSettings,
    "gemma-serving:bucket": settings.BucketSettings,
    "gemma-serving:smoke": settings.SmokeSettings,
}
_NOT_IN_FILE = {"project", "hasHfToken"}
_LAST_ROW = (
    "| `hfToken` | secret | none | Hugging Face token, for checkpoints that need one: `pulumi config set --secret hfToken`. "
    "It goes to Secret Manager. |"
)

_INTRODUCTION = """# Settings

Written by `python -m stacks.reference`; a test fails when this page is out of date.

All keys stand in `Pulumi.<stack>.yaml` under `gemma-serving:`, but for `gcp:project`, which names the Google Cloud project (else `GOOGLE_CLOUD_PROJECT`).
Quantities carry their unit (`4h`, `32Gi`). An unknown key, a wrong unit or a contradiction is one sentence, and nothing is declared.
"""


def page() -> str:
    """Return the whole page."""
    parts = [_INTRODUCTION]
    for name, model in _BLOCKS.items():
        parts.append(
            f"\n## `{name}`\n\n{_first_sentence(model)}\n\n| key | type | default | meaning |\n| --- | --- | --- | --- |"
        )
        parts.extend(f"\n{row}" for row in _rows(model))
        parts.append("\n")
    return "".join(parts)


def _rows(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        alias = field.alias or name
        if alias in _NOT_IN_FILE:
            continue
        meaning = _meaning(model, name, field)
        yield f"| `{alias}` | {_type(name, field.annotation)} | {_default(name, field)} | {meaning} |"
    if model is settings.Settings:
        yield _LAST_ROW


def _meaning(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    if model is settings.VllmSettings:
        flag = OPTION_FLAG.get(name)
        return OPTION_HELP[name] + (f" (`{flag}`)" if flag else "")
    return " ".join((field.description or "").split())


def _first_sentence(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value in ([], {}) or isinstance(value, BaseModel):
        return "none"
    if name.endswith("_s") and isinstance(value, int):
        return f"`{format_duration(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(name: str, annotation: object) -> str:
    if name.endswith("_s") and int in _members(annotation):
        return "duration"
    if name.endswith("_mib"):
        return f"memory, as in `{format_memory(32 * 1024)}`"
    words = [_word(member) for member in _members(annotation) if member is not types.NoneType]
    return " or ".join(dict.fromkeys(words))


def _members(annotation: object) -> tuple[object, ...]:
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        return tuple(inner for member in typing.get_args(annotation) for inner in _members(member))
    if typing.get_origin(annotation) is typing.Annotated:
        return _members(typing.get_args(annotation)[0])
    return (annotation,)


def _word(member: object) -> str:
    origin = typing.get_origin(member)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(member))
    if origin in {list, dict}:
        return "list" if origin is list else "map"
    if isinstance(member, type) and issubclass(member, BaseModel):
        return "block"
    plain = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`"}
    for kind, word in plain.items():
        if member is kind:
            return word
    return str(cast("object", member)).rpartition(".")[2]


if __name__ == "__main__":
    print(page(), end="")
