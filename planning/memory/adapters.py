"""LoRA adapters: their size on a device.

vLLM stores two thin matrices per projection of a layer in bf16, planned as whole on each device, and
computes them in addition to the projection for each sequence of the batch (vllm/lora/punica_wrapper).
"""

from typing import Final

from planning.model.spec import ModelSpec
from planning.question.resolved import Resolved
from planning.question.workload import Workload

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
    """Return the memory of one device for the adapters of the deployment's workload."""
    workload = resolved.deployment.workload
    if workload is None or not workload.adapters:
        return 0.0
    return workload.adapters * adapter_bytes(resolved.spec, workload.adapter_rank) / resolved.tp


def adapter_arguments(workload: Workload) -> tuple[str, ...]:
    """Return the `vllm serve` arguments that enable the workload's adapters; empty without adapters."""
    if not workload.adapters:
        return ()
    return (ENABLE_LORA, f"--max-loras={workload.adapters}", f"--max-lora-rank={workload.adapter_rank}")
