"""Memory of one device: budget, weights, activations, graphs, and the rest for the KV cache.

GPU: vLLM takes usable x utilization, subtracts weights, the peak of its profiling run and its estimate of the CUDA graphs (0.21 and
later), and uses the rest for the KV cache. TPU: usable x utilization minus weights; compiled programs and their temporaries use
the memory outside the utilization.
"""

from typing import Final

from planning.data import overheads
from planning.memory.adapters import adapters_bytes
from planning.memory.buckets import buckets_of
from planning.memory.host_memory import load_peak_gib
from planning.memory.kv_cache import capacity_of, largest_model_len, layout_of
from planning.memory.speculation import drafter_bytes
from planning.memory.weights import weights_of
from planning.model.spec import LayerGroup, linear_params
from planning.question.releases import has_runner_v2, profiles_encoder, tokens_in_flight
from planning.question.resolved import Resolved
from planning.question.types import MemoryPlan
from planning.units import from_gib, to_gib

_BF16: Final = 2
_BILLION: Final = 1e9
_LEAST_UTILIZATION: Final = 0.05
_RESIDUAL_COPIES: Final = 6
"""Live hidden states at the peak: residual, normed input, block output, and their successors."""
_GRAPH_STEP_SMALL: Final = 8
_GRAPH_STEP_LARGE: Final = 16
_GRAPH_STEP_CHANGE: Final = 256
_LARGEST_GRAPH: Final = 512


def memory_plan(resolved: Resolved) -> MemoryPlan:
    """Return the memory of a resolved deployment."""
    weights = weights_of(resolved)
    offloaded = min(from_gib(resolved.offload_gib), weights.layers)
    on_device_gib = to_gib(weights.device - offloaded + drafter_bytes(resolved) + adapters_bytes(resolved))
    activations_gib = activation_gib(resolved)
    graphs_gib = graph_gib(resolved)
    budget_gib = resolved.accelerator.usable_gib * resolved.utilization
    left_gib = budget_gib - on_device_gib - (0.0 if resolved.is_tpu else activations_gib + graphs_gib)
    outside_needs_gib, outside_enough_gib = outside_gib(resolved)
    available = from_gib(max(left_gib, 0.0))
    layout = layout_of(resolved)
    capacity = capacity_of(
        layout, available, max_model_len=resolved.max_model_len, tokens_in_flight=tokens_in_flight(resolved)
    )
    context_gib = 0.0 if resolved.is_tpu else overheads.CUDA_CONTEXT_GIB
    checkpoint_gib = to_gib(weights.checkpoint)
    return MemoryPlan(
        usable_gib=resolved.accelerator.usable_gib,
        budget_gib=budget_gib,
        weights_gib=on_device_gib,
        offloaded_gib=to_gib(offloaded),
        activations_gib=activations_gib,
        graphs_gib=graphs_gib,
        kv_gib=max(left_gib, 0.0),
        kv_tokens=capacity.tokens,
        kv_blocks=capacity.blocks,
        block_size=layout.block_size,
        kv_bytes_per_token=layout.bytes_per_token,
        kv_request_gib=to_gib(capacity.request_bytes),
        max_concurrency=capacity.concurrency,
        checkpoint_gib=checkpoint_gib,
        load_peak_device_gib=on_device_gib + to_gib(weights.load_extra) + context_gib,
        load_peak_host_gib=load_peak_gib(resolved, offloaded),
        headroom_gib=resolved.accelerator.usable_gib - budget_gib,
        outside_needs_gib=outside_needs_gib,
        outside_enough_gib=outside_enough_gib,
        largest_max_model_len=largest_model_len(
            layout, available, tokens_in_flight=tokens_in_flight(resolved), limit=resolved.spec.max_positions
        ),
    )


def outside_gib(resolved: Resolved) -> tuple[float, float]:
    """Return the memory outside the budget of one device: minimum and recommended, in GiB."""
    if not resolved.is_tpu:
        return overheads.CUDA_CONTEXT_GIB, overheads.ENOUGH_OUTSIDE_BUDGET_GIB
    buckets = buckets_of(resolved)
    sequences = min(resolved.max_num_seqs, resolved.max_num_batched_tokens)
    largest = to_gib(sequences * resolved.spec.vocab * overheads.TPU_LOGIT_BYTES / resolved.tp)
    if resolved.unpacks_int4 and resolved.accelerator.name.startswith("v5e"):
        billions = linear_params(resolved.spec) / _BILLION / resolved.tp
        largest += overheads.TPU_V5E_W4A16_PROGRAM_GIB + overheads.TPU_V5E_W4A16_GIB_PER_BILLION * billions
    enough = max(largest, verification_gib(resolved))
    return largest + buckets * overheads.TPU_BUCKET_NEEDS_GIB, enough + buckets * overheads.TPU_BUCKET_ENOUGH_GIB


def verification_gib(resolved: Resolved) -> float:
    """Return the memory in which one chip verifies the proposals of a full batch, in GiB; 0 without speculative decoding and on a GPU.

    The rejection sampler shards its logits over replicas only, so each chip of a slice holds those of every proposal
    (tpu-inference layers/jax/sample/rejection_sampler.py, in_specs). The sampler of other requests shards them over the chips.
    """
    if not resolved.is_tpu or not resolved.speculative_tokens:
        return 0.0
    rows = min(resolved.max_num_seqs * (1 + resolved.speculative_tokens), resolved.max_num_batched_tokens)
    return to_gib(rows * resolved.spec.vocab * overheads.TPU_LOGIT_BYTES)


def comfortable_utilization(resolved: Resolved) -> float:
    """Return the largest utilization, in hundredths, that leaves the recommended memory outside the budget."""
    _, enough_gib = outside_gib(resolved)
    return max(int((1 - enough_gib / resolved.accelerator.usable_gib) * 100) / 100, _LEAST_UTILIZATION)


def activation_gib(resolved: Resolved) -> float:
    """Return the peak of one step without weights and KV cache, in GiB of one device; on TPU the memory of its programs outside the budget.

    The maximum of: a full batch through the widest layer, the sampler at the largest batch, the longest item through the vision tower
    if vLLM's profiling run includes it.
    """
    if resolved.is_tpu:
        return outside_gib(resolved)[1]
    forward = (
        resolved.max_num_batched_tokens
        * _BF16
        * (
            _RESIDUAL_COPIES * resolved.spec.hidden
            + max(_layer_width(group, resolved) for group in resolved.spec.groups)
        )
    )
    sequences = min(resolved.max_num_seqs, resolved.max_num_batched_tokens)
    logit = overheads.SAMPLER_V2_BYTES_PER_LOGIT if has_runner_v2(resolved) else overheads.SAMPLER_BYTES_PER_LOGIT
    sampler = sequences * resolved.spec.vocab * logit
    has_encoder = resolved.serves_images_or_video and profiles_encoder(resolved)
    encoder = _encoder_bytes(resolved) if has_encoder else 0.0
    encoder_cache = resolved.max_num_batched_tokens * resolved.spec.hidden * _BF16 if has_encoder else 0
    fixed_gib = overheads.NON_TORCH_GIB + (overheads.NCCL_GIB if resolved.tp > 1 else 0.0)
    return to_gib(max(forward, sampler, encoder) + encoder_cache) + fixed_gib


def graph_gib(resolved: Resolved) -> float:
    """Return the CUDA graphs of one device in GiB; 0 in eager mode and on TPU."""
    graphs = captured_graphs(resolved)
    return graphs * overheads.GRAPH_GIB + overheads.GRAPH_POOL_GIB if graphs else 0.0


def captured_graphs(resolved: Resolved) -> int:
    """Return how many CUDA graphs vLLM captures: one per size for mixed batches, one per size for decoding batches."""
    if resolved.is_tpu or resolved.eager:
        return 0
    tokens_per_sequence = 1 + resolved.speculative_tokens
    decode = min(resolved.max_num_seqs * tokens_per_sequence, resolved.max_num_batched_tokens)
    return _sizes_up_to(min(2 * decode, _LARGEST_GRAPH, resolved.max_num_batched_tokens)) + _sizes_up_to(
        min(decode, _LARGEST_GRAPH)
    )


def _sizes_up_to(largest: int) -> int:
    """Return how many capture sizes vLLM has: 1, 2, 4, then every 8 below 256, then every 16."""
    few = sum(1 for size in (1, 2, 4) if size <= largest)
    small = max(min(largest, _GRAPH_STEP_CHANGE - _GRAPH_STEP_SMALL) // _GRAPH_STEP_SMALL, 0)
    large = max((largest - _GRAPH_STEP_CHANGE) // _GRAPH_STEP_LARGE + 1, 0)
    return few + small + large


def _layer_width(group: LayerGroup, resolved: Resolved) -> float:
    """Return the values per token that a layer holds at its peak in addition to the residual stream: in attention or feed-forward."""
    heads = group.attention.heads + max(group.attention.kv_heads, resolved.tp)
    attention = 2 * heads * group.attention.head_dim / resolved.tp
    feed_forward = 3 * group.mlp / resolved.tp
    if group.experts is not None:
        experts = group.experts
        width = experts.intermediate / resolved.tp
        feed_forward += experts.active * (max(2 * width, resolved.spec.hidden) + width)
        feed_forward += 3 * experts.shared_intermediate / resolved.tp
    return max(attention, feed_forward)


def _encoder_bytes(resolved: Resolved) -> float:
    """Return the peak of the vision tower over the longest item that the limits allow; towers are computed whole on each device."""
    tower = resolved.spec.vision
    if tower is None or not resolved.serves_images_or_video:
        return 0.0
    if resolved.item_limit("video") > 0:
        tokens = overheads.VIDEO_FRAMES * 70
    else:
        tokens = min(
            resolved.max_num_batched_tokens,
            resolved.item_limit("image") * resolved.max_num_seqs * overheads.IMAGE_TOKENS,
        )
    return tokens * tower.patches_per_token * _BF16 * (3 * tower.intermediate + 4 * tower.hidden)
