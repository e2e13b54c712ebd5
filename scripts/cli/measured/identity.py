"""Identity of a deployment, from the outputs of a deployed stack or from its settings file."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from contracts.fields import camel_case
from contracts.outputs import StackOutputs
from planning.question.resolved import Resolved
from planning.question.vllm_args import given_options
from scripts.cli.measured.schema import Identity

if TYPE_CHECKING:
    from stacks.settings import Settings

_DIGEST: Final = re.compile(r"@(sha256:[0-9a-f]+)$")
_PLAIN: Final = re.compile(r"[a-z0-9_]{1,16}")
_KEPT: Final = tuple(
    map(
        camel_case,
        (
            *(
                "tensor_parallel_size",
                "data_parallel_size",
                "dtype",
                "quantization",
                "kv_cache_dtype",
                "gpu_memory_utilization",
            ),
            *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "enforce_eager"),
            *("cpu_offload_gib", "enable_prefix_caching", "async_scheduling"),
        ),
    )
)


def deployed_identity(outputs: StackOutputs, simulated: str | None) -> Identity:
    """Return the identity of the deployment that wrote these outputs."""
    plan = outputs.plan
    digest = _DIGEST.search(outputs.image)
    return Identity(
        image_digest=digest[1] if digest else "",
        settings_sha256=_hash(outputs.model, plan.accelerator, plan.platform, outputs.vllm),
        simulated=simulated,
    )


def settings_identity(settings: "Settings", resolved: Resolved) -> Identity:
    """Return the identity of a deployment of these settings. The digest of an image that the stack builds is unknown."""
    named = replace(resolved.vllm, served_model_name=settings.vllm.served_model_name or settings.model)
    return Identity(
        image_digest="" if settings.image.build_context else settings.image.digest,
        settings_sha256=_hash(settings.model, resolved.accelerator.name, resolved.platform, given_options(named)),
    )


def kept_settings(options: Mapping[str, object]) -> dict[str, object]:
    """Return the options stored in a results file: numbers, switches and plain words, never free text."""
    kept = {key: _plain(options[key]) for key in _KEPT if key in options}
    return {
        key: value
        for key, value in kept.items()
        if isinstance(value, bool | int | float) or (isinstance(value, str) and _PLAIN.fullmatch(value))
    }


def _hash(model: str, accelerator: str, platform: str, options: Mapping[str, object]) -> str:
    whole = {"model": model, "accelerator": accelerator, "platform": platform, "vllm": _plain(options)}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def _plain(value: object) -> object:
    """Return a JSON value with integers restored, because the engine stores every number as a float."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in cast("Mapping[str, object]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value
