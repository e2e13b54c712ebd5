"""Roofline model of one engine step.

Bytes read over the memory bandwidth, operations over the peak rate, plus a fixed cost per step.

A single request reads every active weight once per token. Larger batches of a mixture of experts use more experts, and KV
and operations are added.
"""

import math
from functools import cache, lru_cache
from typing import Final, Literal

from msgspec import Struct

from gemma_serving.planning.data.overheads import CONSTANTS, constant
from gemma_serving.planning.machine.hardware import Accelerator
from gemma_serving.planning.memory.adapters import adapter_bytes, adapter_rank
from gemma_serving.planning.memory.weights import WeightSizes
from gemma_serving.planning.model.spec import ModelSpec, active_params, tensors
from gemma_serving.planning.question.releases import FLASH_ATTENTION_4, is_known_from, multiplies_nvfp4
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import MemoryPlan
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.units import align_to, ceil_div, from_gib, next_power_of_two

_GIGA: Final = 1e9
_TERA: Final = 1e12
_NARROW_HEAD: Final = 256
"""Widest head of FlashAttention 2 and 3, and of FlashInfer. Gemma 4's layers with full attention have 512."""
_FLASH4_GENERATIONS: Final = frozenset({"hopper", "datacenter-blackwell"})
_FP8_GENERATIONS: Final = frozenset({"hopper", "blackwell", "datacenter-blackwell"})
_FP4_GENERATIONS: Final = frozenset({"blackwell", "datacenter-blackwell"})
"""Architectures with 4-bit arithmetic. All others unpack NVFP4 (Marlin; vllm-project/vllm#49376)."""
Cause = Literal["memory", "compute", "pcie", "overhead"]
_UNEXPLAINED: Final = "TPU_UNEXPLAINED_SEQUENCE_S"
_BF16: Final = 2
FLOP_PER_PARAM: Final = 2
"""A product and a sum."""


class StepTime(Struct, frozen=True, kw_only=True):
    """The time of one step, in seconds, by cause."""

    memory_s: float
    compute_s: float
    link_s: float
    fixed_s: float
    unexplained_s: float = 0.0
    """Time that one publisher measured in addition, without a known cause: part of the bands, and of no typical value."""

    @property
    def total_s(self) -> float:
        """Memory and computation overlap; the link and the fixed part do not."""
        return max(self.memory_s, self.compute_s) + self.link_s + self.fixed_s

    @property
    def unexplained_share(self) -> float:
        """The unexplained part of a step that has it."""
        return self.unexplained_s / (self.total_s + self.unexplained_s)

    @property
    def bound(self) -> Cause:
        """The cause with the longest time."""
        parts: dict[Cause, float] = {
            "memory": self.memory_s,
            "compute": self.compute_s,
            "pcie": self.link_s,
            "overhead": self.fixed_s,
        }
        return max(parts, key=lambda name: parts[name])


def step_of(
    resolved: Resolved,
    weights: WeightSizes,
    memory: MemoryPlan,
    *,
    batch: float,
    tokens: float,
    computed: float | None = None,
    proposals: int = 0,
) -> StepTime:
    """Return the time of one step of `batch` requests that hold `tokens` tokens each.

    `computed`: tokens of prompts that the step computes; None is a decoding step, one token per request, in addition to `proposals` that it verifies.
    """
    computed = batch * (1 + proposals) if computed is None else computed
    accelerator = resolved.accelerator
    offloaded = from_gib(memory.offloaded_gib)
    dense = weights.read_per_token - weights.expert_read
    experts = experts_read(weights, computed)
    read = dense + experts
    # Offload takes layers in order, so the offloaded part is read as often as the average layer.
    linked = offloaded * min(1.0, (read / weights.layers if weights.layers else 0.0))
    local = max(read - linked, 0.0) + batch * _kv_bytes(resolved, tokens) / _kv_share(resolved)
    rate = bytes_per_s(accelerator)
    layers = weights.layers - weights.experts + experts
    link_rate = accelerator.host_link_gb_per_s * _GIGA * constant("ZERO_COPY_EFFICIENCY")
    more = max(batch - constant("TPU_EXPLAINED_SEQUENCES"), 0.0)
    return StepTime(
        memory_s=local / rate + max(_unpacked_s(resolved, layers) - layers / rate, 0.0),
        compute_s=products_s(resolved, active_params(resolved.spec), computed) / resolved.tp
        + expert_rows_s(resolved, computed),
        link_s=(linked / link_rate if linked and link_rate else 0.0) + all_reduced_s(resolved, computed),
        fixed_s=_fixed_s(resolved, batch, proposals) + _attention_s(resolved, batch, tokens, is_split=not proposals),
        unexplained_s=more * accelerator.measured(_UNEXPLAINED) if accelerator.has_measured(_UNEXPLAINED) else 0.0,
    )


def _unpacked_s(resolved: Resolved, layers: float) -> float:
    """Return the time in which a device unpacks `layers` bytes of linear layers before their products; 0 on a GPU without a known limit.

    A layer has four kernels on a GPU: of queries, keys and values, of attention's output, and two of the MLP. Experts have two more.
    """
    accelerator, scheme = resolved.accelerator, resolved.scheme.name
    if resolved.is_tpu:
        kernel = {"fp8": "FP8_", "qwix-fp8": "FP8_", "w4a16": "W4A16_"}.get(scheme, "")
        share = accelerator.measured(f"TPU_{kernel}BANDWIDTH_EFFICIENCY")
        return layers / (accelerator.bandwidth_gb_per_s * _GIGA * share)
    clocks = CONSTANTS.get(f"sm_ghz.{accelerator.generation}")
    if clocks is None or scheme != "w4a16":
        return 0.0
    kernels = sum(group.count * (6 if group.experts else 4) for group in resolved.spec.groups)
    return kernels * constant("marlin_kernel_s") + layers / (constant("marlin_bytes") * clocks.value * _GIGA)


def experts_read(weights: WeightSizes, computed: float) -> float:
    """Return the bytes of the experts that a step of `computed` tokens reads.

    Tokens of one step choose alike, so fewer experts are used than with independent choices.
    """
    if not weights.experts:
        return 0.0
    exponent = constant("routing_exponent")
    return weights.experts * (1 - (1 - weights.expert_read / weights.experts) ** computed**exponent)


def expert_rows_s(resolved: Resolved, tokens: float) -> float:
    """Return the seconds in which one chip of a TPU brings the hidden states of `tokens` tokens to their experts and back; 0 on a GPU.

    Each chip has a part of every expert, and so each row in full width: the server sorts the rows by expert, gathers them, multiplies them, and
    adds up what each token's experts return (tpu-inference, layers/common/fused_moe_gmm.py). Its operations take less (dev/docs/compiled.md).
    Raises NotMeasuredError if no mixture of experts was measured on the family.
    """
    if not resolved.is_tpu or not resolved.spec.is_moe:
        return 0.0
    rows = tokens * sum(group.count * group.experts.active for group in resolved.spec.groups if group.experts)
    rate = resolved.accelerator.measured("TPU_EXPERT_ROWS_GB_PER_S") * _GIGA
    return rows * resolved.spec.hidden * _BF16 / rate


def all_reduced_s(resolved: Resolved, tokens: float) -> float:
    """Return the seconds in which the hidden states of `tokens` tokens cross PCIe, between cards without NVLink; 0 for all other devices.

    In a ring, each card sends its part of the sum to all others, twice.
    """
    accelerator = resolved.accelerator
    rate = accelerator.host_link_gb_per_s * _GIGA * constant("all_reduce.pcie")
    if resolved.is_tpu or accelerator.has_nvlink or not rate:
        return 0.0
    all_reduces = resolved.spec.layers * constant("ALL_REDUCES_PER_LAYER")
    return all_reduces * tokens * resolved.spec.hidden * _BF16 * 2 * (resolved.tp - 1) / resolved.tp / rate


def uses_flash_attention(resolved: Resolved) -> bool:
    """Return whether a GPU runs attention in FlashAttention, not in the Triton kernel.

    Heads of 512 need version 4, which has no fp8 KV cache (vllm-project/vllm#53175, open on 2026-08-20).
    """
    if max(group.attention.head_dim for group in resolved.spec.groups) <= _NARROW_HEAD:
        return not resolved.accelerator.is_rocm
    return (
        resolved.accelerator.generation in _FLASH4_GENERATIONS
        and resolved.kv_bytes > 1
        and is_known_from(resolved, FLASH_ATTENTION_4)
    )


def _attention_s(resolved: Resolved, batch: float, tokens: float, *, is_split: bool) -> float:
    """Return the time of attention beyond its bytes: whole chunks on a TPU, unless proposals are verified; in Triton, one block's context in wide layers."""
    if resolved.is_tpu:
        position_s = resolved.accelerator.measured("TPU_POSITION_S")
        return batch * decoded_positions(resolved, tokens) * position_s if is_split else 0.0
    if uses_flash_attention(resolved):
        return 0.0
    layers = sum(
        group.count
        for group in resolved.spec.groups
        if group.attention.head_dim > _NARROW_HEAD and group.attention.window is None
    )
    parts = constant("attention_parts") if is_split else 1
    return layers * tokens / parts / _by_generation("wide_tokens_per_s", _card_class(resolved.accelerator))


def decoded_positions(resolved: Resolved, tokens: float) -> int:
    """Return the positions of all layers that a TPU chip computes for a decoding sequence of `tokens` tokens, in whole chunks."""
    positions = 0
    for group in resolved.spec.groups:
        attention = group.attention
        heads = next_power_of_two(align_to(2 * max(1, attention.kv_heads // resolved.tp), 4 // resolved.kv_bytes))
        position_bytes = align_to(attention.head_dim, 128) * heads * resolved.kv_bytes
        longest = align_to(max(resolved.max_model_len, 1), resolved.block_size)
        chunk = min(int(constant("TPU_CHUNK_BYTES")) // position_bytes, longest)
        held = min(tokens, attention.window) if attention.window else tokens
        positions += group.count * chunk * math.ceil(held / chunk)
    return positions


def bytes_per_s(accelerator: Accelerator) -> float:
    """Return the memory read rate of one device, in bytes per second."""
    if accelerator.is_tpu:
        share = accelerator.measured("TPU_BANDWIDTH_EFFICIENCY")
    else:
        share = constant("bandwidth.shared" if accelerator.shares_memory else "bandwidth")
    return accelerator.bandwidth_gb_per_s * _GIGA * share


def least_step_s(resolved: Resolved) -> float:
    """Return the time of a step of two requests without its bytes. Raises NotMeasuredError if a constant of the accelerator's family is missing."""
    fixed_s = _fixed_s(resolved, 2, resolved.speculative_tokens) + _attention_s(resolved, 2, 0, is_split=True)
    return fixed_s + _unpacked_s(resolved, 0)


def products_s(resolved: Resolved, params: int, tokens: float) -> float:
    """Return the seconds in which one device multiplies `tokens` tokens by `params` parameters each, some of them perhaps in 4 or 8 bits."""
    rate, fast_rate = flops_per_s(resolved), _fast_flops_per_s(resolved)
    fast = _dense_params(resolved.spec, resolved.scheme.unquantized) if fast_rate else 0.0
    return FLOP_PER_PARAM * tokens * ((params - fast) / rate + (fast / fast_rate if fast_rate else 0.0))


def _fast_flops_per_s(resolved: Resolved) -> float:
    """Return the rate of dense quantized layers in 4 or 8 bits; 0 where the kernel is another, or unknown. Experts are not counted."""
    accelerator, scheme = resolved.accelerator, resolved.scheme.name
    if scheme == "fp8" and accelerator.generation in _FP8_GENERATIONS:
        return flops_per_s(resolved) * constant("compute.fp8")
    has_fp4 = accelerator.generation in _FP4_GENERATIONS and resolved.spec.has_fp4_activations
    if scheme.startswith("nvfp4") and has_fp4 and multiplies_nvfp4(resolved):
        return accelerator.bf16_tflops * _TERA * _by_generation("compute.nvfp4", _card_class(accelerator))
    return 0.0


@lru_cache(maxsize=64)
def _dense_params(spec: ModelSpec, unquantized: frozenset[str]) -> float:
    """Return the parameters of quantized layers without experts that a token uses."""
    layers = [
        one for one in tensors(spec) if one.quantizable and one.role not in unquantized | {"experts"} and not one.copy
    ]
    return sum(one.params * one.active_share for one in layers)


def flops_per_s(resolved: Resolved) -> float:
    """Return the rate of large matrix products on one device, in operations per second, without those of `_fast_flops_per_s`."""
    accelerator = resolved.accelerator
    rate = accelerator.bf16_tflops * _TERA
    if accelerator.is_tpu:
        return rate * accelerator.measured("TPU_COMPUTE_EFFICIENCY")
    factor = CONSTANTS.get(f"compute.{accelerator.generation}.{resolved.scheme.name}")
    return rate * _by_generation("compute", _card_class(accelerator)) * (factor.value if factor else 1.0)


def _card_class(accelerator: Accelerator) -> str:
    """Return the generation of a card, or "shared" if it shares the processor's memory, and computes more slowly."""
    return "shared" if accelerator.shares_memory else accelerator.generation


@cache
def _by_generation(name: str, generation: str) -> float:
    """Return a constant of a class of cards, or of all that have no row of their own."""
    return CONSTANTS.get(f"{name}.{generation}", CONSTANTS[name]).value


def attention_flops_per_s(resolved: Resolved) -> float:
    """Return the rate of a prompt's attention on one device, in operations per second."""
    if resolved.is_tpu:
        return flops_per_s(resolved)
    kernel = "flash" if uses_flash_attention(resolved) else "triton"
    share = _by_generation(f"attention.{kernel}", _card_class(resolved.accelerator))
    return resolved.accelerator.bf16_tflops * _TERA * share


def adapters_s(resolved: Resolved, workload: Workload, batch: float) -> float:
    """Return the time that adapters add to a step of `batch` requests: their bytes and their kernels."""
    if not workload.adapters:
        return 0.0
    used = min(float(workload.adapters), batch)
    read_s = (
        used * adapter_bytes(resolved.spec, adapter_rank(resolved)) / resolved.tp / bytes_per_s(resolved.accelerator)
    )
    per_layer = resolved.accelerator.measured("TPU_LORA_LAYER_S") if resolved.is_tpu else constant("GPU_LORA_LAYER_S")
    return read_s + resolved.spec.layers * per_layer


def _kv_bytes(resolved: Resolved, tokens: float) -> float:
    """Return the KV bytes that a step reads for one request of `tokens` tokens on one device. Windows limit the reads of sliding layers, on TPU too."""
    total = 0.0
    for group in resolved.spec.groups:
        attention = group.attention
        held = min(tokens, attention.window) if attention.window else tokens
        heads = max(1, attention.kv_heads // resolved.tp)
        total += group.count * 2 * heads * attention.head_dim * resolved.kv_bytes * held
    return total


def _kv_share(resolved: Resolved) -> float:
    """Return the rate at which attention reads keys and values, in shares of that of weights."""
    if resolved.is_tpu:
        return 1.0
    kernel = "flash" if uses_flash_attention(resolved) else _card_class(resolved.accelerator)
    return _by_generation("bandwidth.kv", kernel)


def _fixed_s(resolved: Resolved, batch: float, proposals: int) -> float:
    layers = resolved.spec.layers
    if resolved.is_tpu:
        measured = resolved.accelerator.measured
        per_layer = constant("ALL_REDUCES_PER_LAYER") * measured("TPU_ALL_REDUCE_S") if resolved.tp > 1 else 0.0
        pages = resolved.max_num_seqs * ceil_div(resolved.max_model_len, resolved.block_size)
        per_layer += pages * measured("TPU_PAGE_S")
        verified_s = batch * (1 + proposals) * measured("TPU_VERIFIED_TOKEN_S") if proposals else 0.0
        return layers * per_layer + measured("TPU_STEP_S") + verified_s
    per_layer = constant("layer_s")
    if resolved.spec.is_moe:
        per_layer += constant("moe_layer_s")
    if resolved.scheme.name == "fp8" and resolved.accelerator.generation != "ampere":
        per_layer += constant("fp8_layer_s")
    if resolved.tp > 1:
        name = "all_reduce_s.pcie" if resolved.reduces_over_pcie else "all_reduce_s"
        per_layer += constant("ALL_REDUCES_PER_LAYER") * constant(name)
    return layers * per_layer + constant("step_s") + sampled_s(resolved, batch)


def sampled_s(resolved: Resolved, batch: float) -> float:
    """Return the time in which a GPU samples for `batch` sequences, over the whole vocabulary; 0 on a TPU. Greedy requests take none of it."""
    if resolved.is_tpu:
        return 0.0
    return (batch - 1) * resolved.spec.vocab * constant("logit_bytes") / bytes_per_s(resolved.accelerator)
