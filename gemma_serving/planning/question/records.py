"""Known faults of vLLM and JAX on public record, by what fails: gemma_serving/planning/data/crashes.json.

`up` recognizes their log lines from the same rows (`stacks.hooks.failure_hints`).
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from msgspec import Struct

from gemma_serving.contracts.verdicts import Severity
from gemma_serving.planning.data.checkpoints import find_checkpoint
from gemma_serving.planning.data.tables import Table, typed_file
from gemma_serving.planning.model.support import is_between, version_in_use
from gemma_serving.planning.question.drafters import named_drafter, names_speculator
from gemma_serving.planning.question.extra_arguments import extra_arguments, value_of_flag
from gemma_serving.planning.question.lora import lora_of
from gemma_serving.planning.question.releases import runners
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.settings.vllm_args import SCALED_KV_SUFFIX

Kind = Literal["start", "answers", "load", "adapter", "pair"]
"""Part that fails: the start, the answers, the engine while it serves, the effect of an adapter, or one of two features beside the other."""


class Crash(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One record: releases on some cards, if the deployment has all that it `needs`."""

    id: str
    """Issue or pull request that records it."""
    kind: Kind = "start"
    """Only a start can block; the others are warnings."""
    needs: tuple[str, ...]
    """Features, precisions, parts of vLLM (`_HAS`) and flags of `extraArgs`. Empty for all deployments."""
    cards: tuple[str, ...] = ()
    """Names of cards (machines.json); empty for all."""
    models: tuple[str, ...] = ()
    """Draft models that die by the record or by the diff of its fix; empty if `needs` names none."""
    sisters: tuple[str, ...] = ()
    """Draft models for which it is likely: a warning."""
    releases: tuple[tuple[str, str], ...] = (("", ""),)
    """Affected releases, each from the first (empty for all) to before the fixed one (empty for all later ones)."""
    images: tuple[str, ...] = ()
    """Digests of images that die. Other images of these releases get a warning; empty if all die."""
    dies: str = ""
    """Clause for a deployment that dies; empty if no record shows one of vLLM."""
    likely: str = ""
    """Clause for a deployment for which it is likely."""
    asked: str = ""
    """Clause for answers that are wrong for some requests: information for a deployment with another release than the default."""
    others: Mapping[str, str] = {}
    """Why another precision of the same releases is not affected, if `needs` has one; each that is not here has a row of its own."""
    pattern: str = ""
    """Regular expression of its line in the server's log; empty if no line shows the failure."""
    line: str = ""
    """The line as the record quotes it."""
    way_out: str
    source: str
    """Page of the record."""
    basis: str
    """Threads and code that were read for this row."""
    seen_on: str


CRASHES: Final[Mapping[str, Crash]] = Table(
    lambda: {row.id: row for row in typed_file("crashes.json", tuple[Crash, ...])}
)
_HAS: Final[Mapping[str, Callable[[Resolved], bool]]] = {
    "a GPU": lambda one: not one.is_tpu,
    "a TPU": lambda one: one.is_tpu,
    "Gemma 4": lambda one: one.spec.is_gemma4,
    "experts": lambda one: one.spec.is_moe,
    "the JAX path": lambda one: one.runtime == "tpu-jax",
    "the PyTorch path": lambda one: one.runtime == "tpu-torch",
    "a speculator": lambda one: one.speculative_tokens > 0 and names_speculator(one.vllm),
    "a prefix cache": lambda one: one.vllm.enable_prefix_caching is not False,
    "the tool parser gemma4": lambda one: (
        bool(one.vllm.enable_auto_tool_choice) and one.vllm.tool_call_parser == "gemma4"
    ),
    "the reasoning parser gemma4": lambda one: one.vllm.reasoning_parser == "gemma4",
    "a draft model": lambda one: one.speculative_tokens > 0 and named_drafter(one.vllm) is not None,
    "the first model runner": lambda one: 1 in runners(one),
    "the second model runner": lambda one: 2 in runners(one),  # noqa: PLR2004 - vLLM's number
    "CUDA graphs": lambda one: not one.eager,
    "LoRA adapters": lambda one: lora_of(one) is not None,
    "replicas": lambda one: one.dp > 1,
    "a compile cache": lambda one: one.question.tpu.compile_cache != "off",
    "fp8 while loading": lambda one: one.scheme.name.startswith("fp8") and one.spec.native_quantization != "fp8",
    "a checkpoint in fp8": lambda one: one.spec.native_quantization == "fp8",
    "fp8 in blocks": lambda one: one.spec.native_quantization == "fp8" and one.spec.block_width > 0,
    "a KV cache with a scale per head": lambda one: one.kv_dtype.endswith(SCALED_KV_SUFFIX),
}


def _has(part: str, resolved: Resolved) -> bool:
    is_flag = part.startswith("--")
    return value_of_flag(extra_arguments(resolved), part) is not None if is_flag else _HAS[part](resolved)


def severity_of(crash: Crash, resolved: Resolved) -> Severity | None:
    """Return whether a deployment dies by the record (block), likely does (warn), can for some requests (info), or is not affected (None)."""
    accelerator, image = resolved.accelerator, resolved.question.settings.image
    version = version_in_use(accelerator, resolved.question.image_version)
    is_known_image = image.digest in crash.images
    is_affected = is_known_image or any(is_between(version, *bounds) for bounds in crash.releases)
    is_here = not crash.cards or accelerator.family in crash.cards
    if not (is_affected and is_here and all(_has(part, resolved) for part in crash.needs)):
        return None
    drafter = find_checkpoint(named_drafter(resolved.vllm) or "")
    if drafter is not None and drafter.id in crash.sisters:
        return "warn"
    if (crash.models or crash.sisters) and (drafter is None or drafter.id not in crash.models):
        return None
    if crash.asked:
        return None if version == version_in_use(accelerator, None) else "info"
    return "block" if crash.dies and (is_known_image or not crash.images) else "warn"


def loses_prefix_cache(resolved: Resolved) -> bool:
    """Return whether a record says that another feature of the deployment empties its prefix cache."""
    pairs = (crash for crash in CRASHES.values() if crash.kind == "pair" and "a prefix cache" in crash.needs)
    return any(severity_of(crash, resolved) for crash in pairs)
