"""The parts of a boot that may be published: no project, bucket, host, path or secret reaches a file of the corpus.

Only numbers, switches and vLLM's own words are kept as they are. Free text is dropped, or reduced to what the planner needs.
"""

import re
import typing
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from contracts.masking import masked
from planning.data.checkpoints import id_of_folder
from planning.question.fields import changed, field_types, value_at
from planning.question.types import Deployment

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_NAMES: Final = frozenset({"model", "accelerator", "platform", "quantization", "vllm.limit_mm_per_prompt"})
"""Fields that are kept although they are not numbers: names that the planner knows, and counts by modality."""
_WORDS: Final = frozenset({"vllm.tool_call_parser", "vllm.reasoning_parser", "vllm.load_format"})
"""Text fields that are kept if they are a single word, as vLLM's own values are."""
_WORD: Final = re.compile(r"[a-z][a-z0-9_]{0,30}")
_PLAIN_FLAG: Final = re.compile(r"--[\w-]+(=-?[\d.]+|=true|=false)?")
_PLACES: Final = (
    (re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\",)\]]+", re.IGNORECASE), "[url]"),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "[address]"),
    (re.compile(r"(?<![\w.])(?:/[\w.@+-]+){2,}/?"), "[path]"),
    (re.compile(r"\b(?:projects|zones|buckets|instances)/[\w./-]+"), "[name]"),
    (re.compile(r"\b[\w-]+(?:\.[\w-]+)*\.(?:internal|local|lan|com|net|org|io|dev|cloud)(?::\d+)?\b"), "[host]"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "[address]"),
    (re.compile(r"\b(?:host(?:name)?|node|user|project|bucket)[=: ]+['\"]?[\w.-]+['\"]?", re.IGNORECASE), "[name]"),
)
"""Forms of names of places and people, with their replacement."""


def public_model(model: str | None) -> str | None:
    """Return the Hugging Face id of a model: of a folder or bucket path the id that its last part stands for."""
    if model is None or HUB_ID.fullmatch(model):
        return model
    return id_of_folder(PurePosixPath(model.rstrip("/")).name) if "/" in model else model


def public_text(text: str) -> str:
    """Return a log line without secrets, URLs, addresses, paths and names of places."""
    found = masked(text)
    for pattern, replacement in _PLACES:
        found = pattern.sub(replacement, found)
    return found


def public_deployment(deployment: Deployment) -> Deployment:
    """Return the deployment with the fields that may be published; all others have their defaults."""
    plain = Deployment(
        model=deployment.model, accelerator=deployment.accelerator, image_version=deployment.image_version
    )
    return changed(
        plain,
        {path: value for path in field_types() if (value := _public(path, value_at(deployment, path))) is not None},
    )


def public_flag(name: str, value: object) -> str | None:
    """Return a flag that the planner has no option for, in vLLM's syntax; None if its value is not a number or a switch."""
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return flag
    return f"{flag}={str(value).lower() if value is False else value}" if isinstance(value, int | float) else None


def _public(path: str, value: object) -> object:
    """Return the value of a field that may be published; None if it is dropped."""
    hint = field_types()[path].hint
    if path == "vllm.speculative_config" and isinstance(value, Mapping):
        return _config(typing.cast("Mapping[str, object]", value))
    is_plain = hint is int or hint is float or hint is bool or typing.get_origin(hint) is typing.Literal
    if value is None or is_plain or path in _NAMES:
        return value
    if path == "vllm.extra_args" and isinstance(value, tuple):
        return tuple(flag for flag in typing.cast("tuple[str, ...]", value) if _PLAIN_FLAG.fullmatch(flag)) or None
    return value if path in _WORDS and isinstance(value, str) and _WORD.fullmatch(value) else None


def _config(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return a draft configuration with numbers, words of vLLM, and the id of the draft model."""
    found: dict[str, object] = {}
    for key, value in config.items():
        if key == "model":
            found[key] = public_model(str(value))
        elif not isinstance(value, str) or _WORD.fullmatch(value):
            found[key] = value
    return found
