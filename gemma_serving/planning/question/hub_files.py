"""Hub repositories that a server loads in addition to its model: drafter, tokenizer and adapters.

The server downloads them from the Hugging Face hub at each start, for every `weights_mode`, unless `scripts.stage_model` has copied them to the
bucket next to the model. Staging copies drafters and adapters, but no tokenizers.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from msgspec import Struct

from gemma_serving.planning.question.drafters import named_drafter
from gemma_serving.planning.question.extra_arguments import extra_arguments, value_of_flag
from gemma_serving.planning.question.lora import adapters_of
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.settings.vllm_args import TOKENIZER, TOKENIZER_REVISION

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
"""Form of a repository on the hub."""


class LoadedRepository(Struct, frozen=True, kw_only=True):
    """A repository on the hub."""

    kind: Literal["model", "drafter", "tokenizer", "adapter"]
    name: str
    revision: str
    """Its revision; empty for the main branch. vLLM always loads the main branch of an adapter."""


def hub_files(resolved: Resolved) -> Iterator[LoadedRepository]:
    """Yield the repositories that are not staged, the drafter first. A name that is a path is not one."""
    staged = resolved.question.facts.staged_parts
    yield from (one for one in _named(resolved) if one.name not in staged)


def _named(resolved: Resolved) -> Iterator[LoadedRepository]:
    config, drafter = resolved.vllm.speculative_config, named_drafter(resolved.vllm)
    if config is not None and drafter is not None and HUB_ID.fullmatch(drafter):
        yield LoadedRepository(kind="drafter", name=drafter, revision=str(config.get("revision") or ""))
    read = extra_arguments(resolved)
    tokenizer = _first(value_of_flag(read, TOKENIZER))
    if HUB_ID.fullmatch(tokenizer):
        yield LoadedRepository(
            kind="tokenizer", name=tokenizer, revision=_first(value_of_flag(read, TOKENIZER_REVISION))
        )
    for name in adapters_of(resolved).values():
        if HUB_ID.fullmatch(name):
            yield LoadedRepository(kind="adapter", name=name, revision="")


def _first(value: Sequence[str] | None) -> str:
    return value[0] if value else ""
