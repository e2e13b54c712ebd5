"""Decode speed by a roofline: the bytes that one step reads over the memory's bandwidth, plus what a step costs that reads nothing.

One request alone reads every active weight once a token. At larger batches a mixture of experts touches more of its experts, and KV
and arithmetic come on top. Estimates, good to about 30 % for one request and to a factor of two at saturation.
"""

from dataclasses import dataclass
from typing import Final, Literal

from planning import overheads
from planning.kv_cache import capacity_of, layout_of
from planning.model import active_params
from planning.resolve import Resolved
from planning.types import MemoryPlan, ThroughputPlan
from planning.units import from_gib
from planning.weights import WeightSizes, weights_of

_GIGA: Final = 1e9
_TERA: Final = 1e12
_FLOP_PER_PARAM: Final = 2
_SHORT_REQUEST_TOKENS: Final = 256
"""Context of the single request that the decode estimate is about."""
_SHORT_PROMPT_TOKENS: Final = 64
"""Prompt of the request that the time to first token is about: longer than the smoke check's one sentence with its chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The time of one step, in seconds, by cause."""

    memory_s: float
    compute_s: float
    link_s: float
    fixed_s: float

    @property
    def total_s(self) -> float:
        """Memory and arithmetic overlap; the link and the fixed part do not."""
        return max(self.memory_s, self.compute_s) + self.link_s + self.fixed_s


def throughput_plan(resolved: Resolved, memory: MemoryPlan) -> ThroughputPlan:
    """Return single-request and saturated output rates of a resolved deployment."""
    weights = weights_of(resolved)
    alone = step_of(resolved, weights, memory, batch=1, tokens=_SHORT_REQUEST_TOKENS)
    prompt = step_of(resolved, weights, memory, batch=1, tokens=_SHORT_PROMPT_TOKENS, computed=_SHORT_PROMPT_TOKENS)
    batch = saturation_batch(resolved, memory)
    full = step_of(
        resolved, weights, memory, batch=batch, tokens=min(overheads.TYPICAL_SEQUENCE_TOKENS, resolved.max_model_len)
    )
    decode = 1 / alone.total_s
    saturated = max(batch / full.total_s, decode)
    return ThroughputPlan(
        decode_tok_per_s=decode,
        saturated_tok_per_s=saturated,
        saturated_low_tok_per_s=max(saturated * overheads.SATURATION_LOW, decode),
        saturated_high_tok_per_s=saturated * overheads.SATURATION_HIGH,
        saturated_batch=batch,
        bound=_bound(alone),
        ttft_s=prompt.total_s + alone.total_s,
    )


def saturation_batch(resolved: Resolved, memory: MemoryPlan) -> int:
    """Return the requests of typical length that run together: as many as max-num-seqs and the KV cache allow."""
    length = min(overheads.TYPICAL_SEQUENCE_TOKENS, resolved.max_model_len)
    capacity = capacity_of(
        layout_of(resolved),
        from_gib(memory.kv_gib),
        max_model_len=length,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
    )
    return max(1, min(resolved.max_num_seqs, int(capacity.concurrency)))


def step_of(
    resolved: Resolved,
    weights: WeightSizes,
    memory: MemoryPlan,
    *,
    batch: int,
    tokens: int,
    computed: int | None = None,
) -> StepTime:
    """Return the time of one step of `batch` requests that hold `tokens` tokens each.

    `computed`: tokens that the step computes in all; None is a decoding step, one token for each request.
    """
    computed = batch if computed is None else computed
    accelerator = resolved.accelerator
    efficiency = overheads.TPU_BANDWIDTH_EFFICIENCY if resolved.is_tpu else overheads.GPU_BANDWIDTH_EFFICIENCY
    offloaded = from_gib(memory.offloaded_gib)
    dense = weights.read_per_token - weights.expert_read
    experts = (
        weights.experts * (1 - (1 - weights.expert_read / weights.experts) ** computed) if weights.experts else 0.0
    )
    read = dense + experts
    # Offload takes layers as they come, so what it takes is read as often as the average layer.
    linked = offloaded * min(1.0, (read / weights.layers if weights.layers else 0.0))
    local = max(read - linked, 0.0) + batch * _kv_bytes(resolved, tokens)
    flops = _FLOP_PER_PARAM * active_params(resolved.spec) * computed / resolved.tp
    link_rate = accelerator.host_link_gb_per_s * _GIGA * overheads.ZERO_COPY_EFFICIENCY
    return StepTime(
        memory_s=local / (accelerator.bandwidth_gb_per_s * _GIGA * efficiency),
        compute_s=flops / (accelerator.bf16_tflops * _TERA * overheads.COMPUTE_EFFICIENCY),
        link_s=linked / link_rate if linked and link_rate else 0.0,
        fixed_s=_fixed_s(resolved, batch),
    )


def _kv_bytes(resolved: Resolved, tokens: int) -> float:
    """Return the KV bytes that a step reads for one request of `tokens` tokens on one device: windows cap what sliding layers read, on TPU too."""
    total = 0.0
    for group in resolved.spec.groups:
        attention = group.attention
        held = min(tokens, attention.window) if attention.window else tokens
        heads = max(1, attention.kv_heads // resolved.tp)
        total += group.count * 2 * heads * attention.head_dim * resolved.kv_bytes * held
    return total


def _fixed_s(resolved: Resolved, batch: int) -> float:
    layers = resolved.spec.layers
    if resolved.is_tpu:
        per_layer = overheads.TPU_LAYER_S + (
            overheads.ALL_REDUCES_PER_LAYER * overheads.TPU_ALL_REDUCE_S if resolved.tp > 1 else 0.0
        )
        factor = overheads.TPU_V5E_SEQUENCE_FACTOR if resolved.accelerator.name.startswith("v5e") else 1.0
        return layers * per_layer + overheads.TPU_STEP_S + (batch - 1) * overheads.TPU_SEQUENCE_S * factor / resolved.tp
    per_layer = overheads.GPU_EAGER_LAYER_S if resolved.eager else overheads.GPU_LAYER_S
    if resolved.spec.is_moe:
        per_layer += overheads.GPU_MOE_LAYER_S
    if resolved.tp > 1:
        per_layer += overheads.ALL_REDUCES_PER_LAYER * overheads.GPU_ALL_REDUCE_S
    return layers * per_layer + overheads.GPU_STEP_S + (batch - 1) * overheads.GPU_SEQUENCE_S


def _bound(step: StepTime) -> Literal["memory", "compute", "pcie", "overhead"]:
    parts: dict[Literal["memory", "compute", "pcie", "overhead"], float] = {
        "memory": step.memory_s,
        "compute": step.compute_s,
        "pcie": step.link_s,
        "overhead": step.fixed_s,
    }
    return max(parts, key=lambda name: parts[name])
