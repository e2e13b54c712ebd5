"""LoRA adapters: their size on a device.

vLLM stores two thin matrices per projection of a layer in bf16, planned as whole on each device, and
computes them in addition to the projection for each sequence of the batch (vllm/lora/punica_wrapper).
"""

from collections.abc import Mapping
from typing import Final

from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.question.lora import lora_of
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.settings.vllm_args import DEFAULT_LORA_RANK
from gemma_serving.planning.settings.workload import Workload

_BF16: Final = 2


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
    """Return the memory of one device for adapters: the server's reservation, or the workload's adapters if it has no LoRA."""
    lora, workload = lora_of(resolved), resolved.question.settings.workload
    if lora is not None:
        return lora.slots * adapter_bytes(resolved.spec, lora.rank) / resolved.tp
    if workload is None or not workload.adapters:
        return 0.0
    return workload.adapters * adapter_bytes(resolved.spec, DEFAULT_LORA_RANK) / resolved.tp


def adapter_rank(resolved: Resolved) -> int:
    """Return the rank of each of the workload's adapters: the server's, or vLLM's default if it has no LoRA."""
    lora = lora_of(resolved)
    return DEFAULT_LORA_RANK if lora is None else lora.rank


def adapter_options(workload: Workload | None) -> Mapping[str, object]:
    """Return the options of a server that enable the workload's adapters; empty without adapters."""
    if workload is None or not workload.adapters:
        return {}
    return {"lora_adapters": {}, "max_lora_rank": DEFAULT_LORA_RANK, "max_loras": workload.adapters}
