"""LoRA adapters of the command line, loaded as in vLLM, with the messages of a real vLLM 0.32.0 that was started so.

Sources: entrypoints/openai/models/serving.py, lora/peft_helper.py. The message of a JAX model, which has no LoRA, was read, not recorded:
lora_model_runner_mixin.py calls the `lora_manager` that get_flax_model does not set (tpu-inference b8692ff, models/common/model_loader.py).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from localcloud.json_values import as_object
from localcloud.vllm import hub
from localcloud.vllm.arguments import Arguments
from localcloud.vllm.refusals import EngineStartError, refused, words
from localcloud.vllm.settings import RuntimeEnvironment

_CONFIG: Final = "adapter_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAdapter:
    """An adapter: the name that a request sends as `model`, and its location."""

    name: str
    path: str


def adapters_of(words: Sequence[str]) -> tuple[ServedAdapter, ...]:
    """Return the adapters of `--lora-modules`, given as `NAME=PATH` or as JSON."""
    found: list[ServedAdapter] = []
    for word in words:
        if word.startswith("{"):
            value = as_object(json.loads(word))
            found.append(ServedAdapter(name=str(value["name"]), path=str(value["path"])))
        else:
            name, _, path = word.partition("=")
            found.append(ServedAdapter(name=name, path=path))
    return tuple(found)


def load(arguments: Arguments, environment: RuntimeEnvironment, *, is_jax: bool = False) -> EngineStartError | None:
    """Return the error of the first adapter that vLLM cannot load after the engine's start, or None.

    `is_jax`: a JAX model serves on a TPU.
    """
    for adapter in adapters_of(arguments.lora_modules):
        if not arguments.enable_lora:
            return _failed_call("adapter_disabled")
        rank = _rank(adapter.path, environment)
        if rank is None:
            return refused("adapter_absent", name=adapter.name, path=adapter.path)
        if rank > arguments.max_lora_rank:
            return _failed_call("adapter_rank", rank=rank, most=arguments.max_lora_rank)
        if is_jax:
            return _failed_call("adapter_jax")
    return None


def _failed_call(name: str, /, **values: object) -> EngineStartError:
    return refused("adapter_call", reason=words(name, **values))


def _rank(path: str, environment: RuntimeEnvironment) -> int | None:
    """Return an adapter's rank, 0 if it cannot be known here, None without an adapter."""
    if not path.startswith("/"):
        return 0 if hub.refusal(path, environment) is None else None
    for mount in environment.mounts:
        below = mount.path.rstrip("/") + "/"
        if path.startswith(below):
            # A bucket's listing has names and sizes only.
            return 0 if f"{path[len(below) :].rstrip('/')}/{_CONFIG}" in mount.files else None
    folder = environment.folder(path)
    try:
        config = as_object(json.loads((folder / _CONFIG).read_text(encoding="utf-8"))) if folder is not None else {}
    except (OSError, ValueError):
        return None
    rank = config.get("r")
    return rank if isinstance(rank, int) else None
