"""LoRA adapters of a server, from the block `vllm.lora` or from `extraArgs`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from gemma_serving.planning.question.extra_arguments import extra_arguments, value_of_flag
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.settings.vllm_args import (
    DEFAULT_LORA_RANK,
    ENABLE_LORA,
    LORA_MODULES,
    MAX_LORA_RANK,
    MAX_LORAS,
    VllmOptions,
)

_IN_JSON: Final = re.compile(r'"(name|path)"\s*:\s*"([^"]*)"')


class Lora(Struct, frozen=True, kw_only=True):
    """Adapters of a server and the memory that it reserves for them."""

    adapters: Mapping[str, str]
    """Location by name: a Hugging Face id, gs://BUCKET/FOLDER, or a folder."""
    rank: int
    """Largest rank."""
    slots: int
    """Adapters that one step can use."""


def lora_of(resolved: Resolved) -> Lora | None:
    """Return the adapters of a deployment; None if its server has no LoRA."""
    return _of_options(resolved.question.settings.vllm) or _of_arguments(resolved)


def adapters_of(resolved: Resolved) -> Mapping[str, str]:
    """Return the location of each adapter by name, even if the server has no LoRA and will reject them."""
    lora = lora_of(resolved)
    if lora is not None:
        return lora.adapters
    return dict(adapters_in(value_of_flag(extra_arguments(resolved), LORA_MODULES) or ()))


def _of_options(options: VllmOptions) -> Lora | None:
    if options.lora_adapters is None:
        return None
    return Lora(
        adapters=options.lora_adapters, rank=options.max_lora_rank or DEFAULT_LORA_RANK, slots=options.max_loras or 1
    )


def _of_arguments(resolved: Resolved) -> Lora | None:
    read = extra_arguments(resolved)
    if value_of_flag(read, ENABLE_LORA) is None:
        return None
    rank, slots = (value_of_flag(read, flag) for flag in (MAX_LORA_RANK, MAX_LORAS))
    return Lora(
        adapters=dict(adapters_in(value_of_flag(read, LORA_MODULES) or ())),
        rank=int(rank[0]) if rank else DEFAULT_LORA_RANK,
        slots=int(slots[0]) if slots else 1,
    )


def adapters_in(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and location of each adapter: `NAME=PATH`, or a JSON object with `name` and `path`."""
    for word in words:
        named = dict(_IN_JSON.findall(word)) if word.startswith("{") else {}
        name, _, path = word.partition("=")
        yield named.get("name", name), named.get("path", path)
