"""Hub repositories that a server loads in addition to its model: drafter, tokenizer and adapters.

Staging copies only the model, so the server downloads these from the Hugging Face hub at each start, whatever `weights_mode` is.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from planning.model.support import version_in_use
from planning.question.drafters import named_drafter
from planning.question.resolved import Resolved
from planning.question.server_flags import flag_table, parse_arguments
from planning.question.vllm_args import TOKENIZER, TOKENIZER_REVISION

ADAPTERS: Final = "--lora-modules"
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_ADAPTER_PATH: Final = re.compile(r'"path"\s*:\s*"([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRepository:
    """A repository on the hub."""

    kind: Literal["drafter", "tokenizer", "adapter"]
    name: str
    revision: str
    """Its revision; empty for the main branch. vLLM always loads the main branch of an adapter."""


def hub_files(resolved: Resolved) -> Iterator[LoadedRepository]:
    """Yield the repositories, the drafter first. A name that is a path is not one."""
    config, drafter = resolved.vllm.speculative_config, named_drafter(resolved.vllm)
    if config is not None and drafter is not None and _HUB_ID.fullmatch(drafter):
        yield LoadedRepository(kind="drafter", name=drafter, revision=str(config.get("revision") or ""))
    arguments = resolved.deployment.vllm.extra_args
    if not arguments:
        return
    version = version_in_use(resolved.accelerator, resolved.deployment.image_version)
    read = parse_arguments(arguments, flag_table(version or None))
    values = {one.flag.name: one.value for one in read if one.flag is not None}
    tokenizer = _first(values.get(TOKENIZER))
    if _HUB_ID.fullmatch(tokenizer):
        yield LoadedRepository(kind="tokenizer", name=tokenizer, revision=_first(values.get(TOKENIZER_REVISION)))
    for module in values.get(ADAPTERS, ()):
        name = _adapter_place(module)
        if _HUB_ID.fullmatch(name):
            yield LoadedRepository(kind="adapter", name=name, revision="")


def _first(value: Sequence[str] | None) -> str:
    return value[0] if value else ""


def _adapter_place(module: str) -> str:
    """Return the location of an adapter: the text after `NAME=`, or `path` of a JSON object."""
    found = _ADAPTER_PATH.search(module) if module.startswith("{") else None
    return found[1] if found else module.partition("=")[2]
