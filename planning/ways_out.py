"""Alternatives that fit, with their prices, for findings that block for lack of memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from planning.catalog import MODELS, QAT_SUFFIX, spec_of
from planning.cost import hourly_parts
from planning.hardware import ACCELERATORS, host_of
from planning.memory import memory_plan
from planning.overheads import VLLM_DEFAULT_BLOCK
from planning.quantization import SCHEMES
from planning.recommendation import (
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    SMALL_DEVICE_GIB,
    SMALL_DEVICE_MAX_NUM_SEQS,
    UTILIZATION,
)
from planning.subject import is_out_of_memory
from planning.units import to_gib
from planning.weights import weights_of

if TYPE_CHECKING:
    from planning.hardware import Accelerator, Kind
    from planning.resolve import Resolved
    from planning.types import Platform

_SHOWN: Final = 3
_SHOWN_MODELS: Final = 2
_SHORT_REQUEST: Final = 8_192
_TPU_BLOCK: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """One alternative and what it costs an hour."""

    text: str
    usd_per_hour: float


def other_accelerators(r: Resolved, *, kind: Kind | None = None) -> list[WayOut]:
    """The same model elsewhere, cheapest first. A quantized model goes to TPUs as its bf16 original."""
    found: list[WayOut] = []
    for accelerator in ACCELERATORS.values():
        if accelerator.name == r.accelerator.name or kind not in {None, accelerator.kind}:
            continue
        other = _moved(r, accelerator)
        if other is None or not _serves(other, at_least=1):
            continue
        precision = f" as {other.scheme.name}" if other.scheme is not r.scheme else ""
        where = {"cloud-run": " on Cloud Run", "gce": " on Compute Engine", "tpu-vm": ""}[other.platform]
        found.append(_way(f"{accelerator.name}{where}{precision}", other))
    return sorted(found, key=lambda way: way.usd_per_hour)[:_SHOWN]


def smaller_models(r: Resolved) -> list[WayOut]:
    """What fits on the same hardware: the same model in 4 bits, then the largest smaller models."""
    if r.deployment.model_spec is not None:
        return []
    base, names = r.model_id.removesuffix(QAT_SUFFIX), list(MODELS)
    smaller = list(reversed(names[: names.index(base)]))
    if r.is_tpu:
        candidates = smaller
    elif r.scheme.name == "w4a16":
        candidates = [name + QAT_SUFFIX for name in smaller]
    else:
        candidates = [base + QAT_SUFFIX, *(name + suffix for name in smaller for suffix in ("", QAT_SUFFIX))]
    found: list[WayOut] = []
    here = _usual(r, r.accelerator)
    for name in candidates:
        if len(found) == _SHOWN_MODELS:
            break
        scheme = "w4a16" if name.endswith(QAT_SUFFIX) else r.scheme.name
        other = replace(here, model_id=name, spec=spec_of(name, scheme), scheme=SCHEMES[scheme], tp=r.tp)
        if _serves(other, at_least=1, tokens=_SHORT_REQUEST):
            found.append(_way(f"{name} here", other))
    return found


def trillium_note(r: Resolved) -> str:
    """Why one v6e chip, the usual cheap idea for a 4-bit model, does or does not help."""
    if r.scheme.name != "w4a16" or r.is_tpu:
        return ""
    other = _moved(r, ACCELERATORS["v6e-1"])
    if other is None:
        return ""
    memory, price = memory_plan(other), _hourly(other)
    if is_out_of_memory(memory):
        return (
            f" v6e-1 (${price:.2f}/h) is none: 4-bit checkpoints do not load on TPU, and bf16 takes "
            f"{memory.weights_gib:.1f} GiB of its {memory.usable_gib:.2f} GiB."
        )
    return f" v6e-1 (${price:.2f}/h) takes it as bf16 only."


def _serves(r: Resolved, *, at_least: float, tokens: int | None = None) -> bool:
    if to_gib(weights_of(r).device) > r.accelerator.usable_gib * r.utilization:
        return False  # no need to ask for the rest
    memory = memory_plan(r if tokens is None else replace(r, max_model_len=min(r.max_model_len, tokens)))
    return not is_out_of_memory(memory) and memory.max_concurrency >= at_least


def _moved(r: Resolved, accelerator: Accelerator) -> Resolved | None:
    other = _usual(r, accelerator)
    if not accelerator.is_tpu or r.scheme.name == "bf16":
        return other
    if r.deployment.model_spec is not None:
        return None
    base = r.model_id.removesuffix(QAT_SUFFIX)
    return replace(other, model_id=base, spec=MODELS[base], scheme=SCHEMES["bf16"])


def _usual(r: Resolved, accelerator: Accelerator) -> Resolved:
    """The same question on this accelerator, set up as recommended."""
    platform = accelerator.platforms[0]
    host = host_of(accelerator, platform)
    small = not accelerator.is_tpu and accelerator.usable_gib < SMALL_DEVICE_GIB
    return replace(
        r,
        accelerator=accelerator,
        platform=cast("Platform", platform),
        host=host,
        runtime="cuda" if not accelerator.is_tpu else "tpu-torch" if r.spec.tpu_torch_path else "tpu-jax",
        tp=accelerator.devices,
        utilization=UTILIZATION,
        max_num_seqs=SMALL_DEVICE_MAX_NUM_SEQS if small else MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        block_size=_TPU_BLOCK if accelerator.is_tpu else VLLM_DEFAULT_BLOCK,
        offload_gib=0.0,
        host_memory_gib=host.memory_gib,
        vcpu=host.vcpu,
    )


def _way(text: str, r: Resolved) -> WayOut:
    price = _hourly(r)
    return WayOut(text=f"{text} (${price:.2f}/h)", usd_per_hour=price)


def _hourly(r: Resolved) -> float:
    return sum(price for _, price in hourly_parts(r))
