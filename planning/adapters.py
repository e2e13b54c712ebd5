"""LoRA adapters: what they weigh on a device, and what they add to a step.

vLLM keeps two thin matrices for each projection of a layer, whole on each device as far as the planner is concerned, in bf16, and
computes them beside the projection for each sequence of the batch (vllm/lora/punica_wrapper).
"""

from typing import Final

from planning import overheads
from planning.model import ModelSpec
from planning.resolved import Resolved
from planning.steps import bytes_per_s
from planning.workload import Workload

_BF16: Final = 2
ENABLE_LORA: Final = "--enable-lora"


def adapter_bytes(spec: ModelSpec, rank: int) -> float:
    """Return the size of one adapter of all attention and feed-forward projections of the language model."""
    total = 0
    for group in spec.groups:
        attention = group.attention
        query = attention.heads * attention.head_dim
        key = attention.kv_heads * attention.head_dim
        widths = 2 * (spec.hidden + query) + 2 * (spec.hidden + key) + 3 * (spec.hidden + group.mlp)
        total += group.count * widths
    return float(total * rank * _BF16)


def adapters_bytes(resolved: Resolved) -> float:
    """Return what the adapters of the deployment's workload take of one device."""
    workload = resolved.deployment.workload
    if workload is None or not workload.adapters:
        return 0.0
    return workload.adapters * adapter_bytes(resolved.spec, workload.adapter_rank) / resolved.tp


def adapters_s(resolved: Resolved, workload: Workload, batch: float) -> float:
    """Return what the adapters add to a step of `batch` requests: their own bytes, and their kernels."""
    if not workload.adapters:
        return 0.0
    used = min(float(workload.adapters), batch)
    read_s = (
        used * adapter_bytes(resolved.spec, workload.adapter_rank) / resolved.tp / bytes_per_s(resolved.accelerator)
    )
    per_layer = overheads.TPU_LORA_LAYER_S if resolved.is_tpu else overheads.GPU_LORA_LAYER_S
    return read_s + resolved.spec.layers * per_layer


def adapter_arguments(workload: Workload) -> tuple[str, ...]:
    """Return the arguments of `vllm serve` with which it can load the workload's adapters; none without adapters."""
    if not workload.adapters:
        return ()
    return (ENABLE_LORA, f"--max-loras={workload.adapters}", f"--max-lora-rank={workload.adapter_rank}")
