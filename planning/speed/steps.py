"""Roofline model of one engine step.

Bytes read over the memory bandwidth, operations over the peak rate, plus a fixed cost per step.

A single request reads every active weight once per token. Larger batches of a mixture of experts use more experts, and KV
and operations are added.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from planning.data import overheads
from planning.machine.hardware import Accelerator
from planning.memory.adapters import adapter_bytes
from planning.memory.weights import WeightSizes
from planning.model.spec import ModelSpec, active_params
from planning.question.resolved import Resolved
from planning.question.types import MemoryPlan
from planning.question.workload import Workload
from planning.units import from_gib

_GIGA: Final = 1e9
_TERA: Final = 1e12
FLOP_PER_PARAM: Final = 2
"""A product and a sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The time of one step, in seconds, by cause."""

    memory_s: float
    compute_s: float
    link_s: float
    fixed_s: float

    @property
    def total_s(self) -> float:
        """Memory and computation overlap; the link and the fixed part do not."""
        return max(self.memory_s, self.compute_s) + self.link_s + self.fixed_s


def step_of(
    resolved: Resolved,
    weights: WeightSizes,
    memory: MemoryPlan,
    *,
    batch: float,
    tokens: float,
    computed: float | None = None,
) -> StepTime:
    """Return the time of one step of `batch` requests that hold `tokens` tokens each.

    `computed`: total tokens that the step computes; None is a decoding step, one token per request.
    """
    computed = batch if computed is None else computed
    accelerator = resolved.accelerator
    offloaded = from_gib(memory.offloaded_gib)
    dense = weights.read_per_token - weights.expert_read
    experts = (
        weights.experts * (1 - (1 - weights.expert_read / weights.experts) ** computed) if weights.experts else 0.0
    )
    read = dense + experts
    # Offload takes layers in order, so the offloaded part is read as often as the average layer.
    linked = offloaded * min(1.0, (read / weights.layers if weights.layers else 0.0))
    local = max(read - linked, 0.0) + batch * _kv_bytes(resolved, tokens)
    if resolved.unpacks_int4:
        slower = overheads.TPU_BANDWIDTH_EFFICIENCY / overheads.TPU_W4A16_BANDWIDTH_EFFICIENCY
        local += (weights.layers - weights.experts) * (slower - 1)
    flops = FLOP_PER_PARAM * _active_params(resolved.spec) * computed / resolved.tp
    link_rate = accelerator.host_link_gb_per_s * _GIGA * overheads.ZERO_COPY_EFFICIENCY
    return StepTime(
        memory_s=local / bytes_per_s(accelerator),
        compute_s=flops / flops_per_s(accelerator),
        link_s=linked / link_rate if linked and link_rate else 0.0,
        fixed_s=_fixed_s(resolved, batch),
    )


def bytes_per_s(accelerator: Accelerator) -> float:
    """Return the memory read rate of one device, in bytes per second."""
    share = overheads.TPU_BANDWIDTH_EFFICIENCY if accelerator.is_tpu else overheads.GPU_BANDWIDTH_EFFICIENCY
    return accelerator.bandwidth_gb_per_s * _GIGA * share


def flops_per_s(accelerator: Accelerator) -> float:
    """Return the rate of large matrix products on one device, in operations per second."""
    is_v5e = accelerator.name.startswith("v5e")
    share = overheads.TPU_V5E_COMPUTE_EFFICIENCY if is_v5e else overheads.COMPUTE_EFFICIENCY
    return accelerator.bf16_tflops * _TERA * share


def adapters_s(resolved: Resolved, workload: Workload, batch: float) -> float:
    """Return the time that adapters add to a step of `batch` requests: their bytes and their kernels."""
    if not workload.adapters:
        return 0.0
    used = min(float(workload.adapters), batch)
    read_s = (
        used * adapter_bytes(resolved.spec, workload.adapter_rank) / resolved.tp / bytes_per_s(resolved.accelerator)
    )
    per_layer = overheads.TPU_LORA_LAYER_S if resolved.is_tpu else overheads.GPU_LORA_LAYER_S
    return read_s + resolved.spec.layers * per_layer


@lru_cache(maxsize=64)
def _active_params(spec: ModelSpec) -> int:
    return active_params(spec)


def _kv_bytes(resolved: Resolved, tokens: float) -> float:
    """Return the KV bytes that a step reads for one request of `tokens` tokens on one device. Windows limit the reads of sliding layers, on TPU too."""
    total = 0.0
    for group in resolved.spec.groups:
        attention = group.attention
        held = min(tokens, attention.window) if attention.window else tokens
        heads = max(1, attention.kv_heads // resolved.tp)
        total += group.count * 2 * heads * attention.head_dim * resolved.kv_bytes * held
    return total


def _fixed_s(resolved: Resolved, batch: float) -> float:
    layers = resolved.spec.layers
    if resolved.is_tpu:
        per_layer = overheads.TPU_LAYER_S + (
            overheads.ALL_REDUCES_PER_LAYER * overheads.TPU_ALL_REDUCE_S if resolved.tp > 1 else 0.0
        )
        factor = overheads.TPU_V5E_SEQUENCE_FACTOR if resolved.accelerator.name.startswith("v5e") else 1.0
        return layers * per_layer + overheads.TPU_STEP_S + _tpu_sequences_s(batch) * factor / resolved.tp
    per_layer = overheads.GPU_EAGER_LAYER_S if resolved.eager else overheads.GPU_LAYER_S
    if resolved.spec.is_moe:
        per_layer += overheads.GPU_MOE_LAYER_S
    if resolved.tp > 1:
        per_layer += overheads.ALL_REDUCES_PER_LAYER * overheads.GPU_ALL_REDUCE_S
    return layers * per_layer + overheads.GPU_STEP_S + (batch - 1) * overheads.GPU_SEQUENCE_S


def _tpu_sequences_s(batch: float) -> float:
    """Return the time that all sequences except the first add to a step on one chip."""
    total, counted = 0.0, 1.0
    for last, seconds in overheads.TPU_SEQUENCE_S:
        if batch <= counted:
            break
        total += (min(batch, last) - counted) * seconds
        counted = float(last)
    return total
