"""Memory of one device: budget, weights, activations, graphs, and the rest for the KV cache.

GPU: vLLM takes usable x utilization, subtracts weights, the peak of its profiling run and, by release and model runner, its estimate of the
CUDA graphs, and uses the rest for the KV cache. TPU: usable x utilization minus weights; compiled programs and their temporaries use
the memory outside the utilization.
"""

from typing import Final

from gemma_serving.planning.data.overheads import XLA_MIN_BUCKET, constant
from gemma_serving.planning.memory.activations import gpu_activation_gib
from gemma_serving.planning.memory.adapters import adapters_bytes
from gemma_serving.planning.memory.host_memory import load_peak_gib
from gemma_serving.planning.memory.kv_cache import blocks_per_request, largest_model_len, layout_of
from gemma_serving.planning.memory.speculation import drafter_bytes, unknown_drafter_bytes
from gemma_serving.planning.memory.tpu_programs import ProgramMemory, code_gib, sampling_gib, step_gib, warm_up_gib
from gemma_serving.planning.memory.weights import weights_of
from gemma_serving.planning.model.spec import linear_params
from gemma_serving.planning.question.drafters import named_drafter
from gemma_serving.planning.question.lora import lora_of
from gemma_serving.planning.question.releases import RESERVES_GRAPHS, is_before, reserves_graphs, tokens_in_flight
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import MemoryPlan
from gemma_serving.planning.units import MIB_PER_GIB, from_gib, to_gib

_BILLION: Final = 1e9
_LEAST_UTILIZATION: Final = 0.05
_GRAPH_STEP_SMALL: Final = 8
_GRAPH_STEP_LARGE: Final = 16
_GRAPH_STEP_CHANGE: Final = 256
_LARGEST_GRAPH: Final = 512


def memory_plan(resolved: Resolved) -> MemoryPlan:
    """Return the memory of a resolved deployment."""
    weights = weights_of(resolved)
    offloaded = min(from_gib(resolved.offload_gib), weights.layers)
    on_device_gib = to_gib(weights.device - offloaded + drafter_bytes(resolved) + adapters_bytes(resolved))
    # On a TPU: the memory of the programs, outside the budget.
    outside_needs_gib, outside_enough_gib = outside_gib(resolved)
    activations_gib = outside_enough_gib if resolved.is_tpu else gpu_activation_gib(resolved)
    graphs_gib = graph_gib(resolved) if reserves_graphs(resolved) else 0.0
    budget_gib = resolved.accelerator.usable_gib * resolved.utilization
    left_gib = budget_gib - on_device_gib - (0.0 if resolved.is_tpu else activations_gib + graphs_gib)
    available = from_gib(max(left_gib, 0.0))
    layout = layout_of(resolved)
    in_flight = tokens_in_flight(resolved)
    per_request = blocks_per_request(layout, max_model_len=resolved.max_model_len, tokens_in_flight=in_flight)
    blocks = int(available // layout.block_bytes)
    concurrency = blocks / per_request
    context_gib = 0.0 if resolved.is_tpu else constant("CUDA_CONTEXT_GIB")
    return MemoryPlan(
        usable_gib=resolved.accelerator.usable_gib,
        budget_gib=budget_gib,
        weights_gib=on_device_gib,
        offloaded_gib=to_gib(offloaded),
        activations_gib=activations_gib,
        graphs_gib=graphs_gib,
        kv_gib=max(left_gib, 0.0),
        kv_margin_gib=max(constant("WEIGHTS_SCATTER") * on_device_gib, kv_error_gib(resolved, left_gib)),
        kv_excess_gib=max(constant("WEIGHTS_LIGHTER") * on_device_gib, kv_error_gib(resolved, left_gib)),
        kv_tokens=blocks * layout.block_size if layout.holds_full_length else int(concurrency * resolved.max_model_len),
        kv_blocks=blocks,
        block_size=layout.block_size,
        kv_bytes_per_token=layout.bytes_per_token,
        kv_request_gib=to_gib(per_request * layout.block_bytes),
        max_concurrency=concurrency,
        checkpoint_gib=to_gib(weights.checkpoint),
        load_peak_device_gib=on_device_gib + to_gib(weights.load_extra) + context_gib,
        load_peak_host_gib=load_peak_gib(resolved, offloaded),
        headroom_gib=resolved.accelerator.usable_gib - budget_gib,
        outside_needs_gib=outside_needs_gib,
        outside_enough_gib=outside_enough_gib,
        largest_max_model_len=largest_model_len(
            layout, available, tokens_in_flight=in_flight, limit=resolved.spec.max_positions
        ),
    )


def outside_gib(resolved: Resolved) -> tuple[float, float]:
    """Return the memory outside the budget of one device, in GiB: minimum and recommended.

    Of a GPU: the CUDA context, graphs that vLLM does not subtract, what NCCL keeps of them, and the memory of a draft model's capture.
    """
    if not resolved.is_tpu:
        graphs_gib = 0.0 if reserves_graphs(resolved) else graph_gib(resolved)
        captured_gib = 0.0 if graphs_gib else _drafter_graphs(resolved) * constant("GRAPH_GIB")
        drafter_gib = to_gib(unknown_drafter_bytes(resolved)) + captured_gib
        nccl_gib = _all_reduces_gib(resolved)
        enough_gib = constant("ENOUGH_OUTSIDE_BUDGET_GIB") + graphs_gib + nccl_gib + drafter_gib
        # Two cards may have no peer access.
        return constant("CUDA_CONTEXT_GIB") + graphs_gib + (nccl_gib if resolved.reduces_over_pcie else 0.0), enough_gib
    programs = program_memory(resolved)
    error_gib = constant("TPU_PROGRAM_MARGIN_GIB")
    enough_gib = max(programs.minimum_gib + error_gib, programs.recommended_gib)
    return programs.minimum_gib - error_gib, enough_gib


def program_memory(resolved: Resolved) -> ProgramMemory:
    """Return the memory outside the budget of one TPU device."""
    buckets = token_buckets(resolved.max_num_batched_tokens, resolved.padding_gap)
    sequences = min(resolved.max_num_seqs, resolved.max_num_batched_tokens)
    sampler_gib = to_gib(sequences * resolved.spec.vocab * constant("TPU_LOGIT_BYTES") / resolved.tp)
    measured = resolved.accelerator.measured
    if resolved.unpacks_int4 and resolved.accelerator.has_measured("TPU_W4A16_PROGRAM_GIB"):
        billions = linear_params(resolved.spec) / _BILLION / resolved.tp
        sampler_gib += measured("TPU_W4A16_PROGRAM_GIB") + measured("TPU_W4A16_GIB_PER_BILLION") * billions
    return ProgramMemory(
        step_gib=step_gib(resolved, resolved.max_num_batched_tokens),
        sampler_gib=sampler_gib,
        sampling_gib=sampling_gib(resolved),
        verification_gib=verification_gib(resolved),
        warm_up_gib=warm_up_gib(resolved),
        code_gib=code_gib(resolved, buckets),
        reserve_gib=buckets * constant("TPU_BUCKET_RESERVE_GIB"),
    )


def verification_gib(resolved: Resolved) -> float:
    """Return the memory in which one chip verifies the proposals of a full batch, in GiB; 0 without speculative decoding and on a GPU.

    The rejection sampler shards its logits over replicas only, so each chip of a slice holds the logits of every proposal
    (tpu-inference layers/jax/sample/rejection_sampler.py, in_specs). The sampler of other requests shards them over the chips.
    """
    if not resolved.is_tpu or not resolved.speculative_tokens:
        return 0.0
    return to_gib(_decoding(resolved) * resolved.spec.vocab * constant("TPU_VERIFIED_LOGIT_BYTES"))


def token_buckets(max_tokens: int, padding_gap: int) -> int:
    """Return for how many batch sizes vLLM on TPU compiles programs: doubling from 16 up to the gap, then by the gap (tpu-inference's token paddings)."""
    buckets, size = 1, XLA_MIN_BUCKET
    while size < max_tokens:
        size = size * 2 if padding_gap == 0 or size < padding_gap else size + padding_gap
        buckets += 1
    return buckets


def comfortable_utilization(resolved: Resolved) -> float:
    """Return the largest utilization, in hundredths, that leaves the recommended memory outside the budget."""
    _, enough_gib = outside_gib(resolved)
    return utilization_leaving(enough_gib, resolved.accelerator.usable_gib)


def utilization_leaving(outside_gib: float, usable_gib: float) -> float:
    """Return the largest utilization, in hundredths, that leaves this much memory outside the budget."""
    return max(int((1 - outside_gib / usable_gib) * 100) / 100, _LEAST_UTILIZATION)


def kv_error_gib(resolved: Resolved, kv_gib: float) -> float:
    """Return the error of a planned KV cache without that of its weights, in GiB: on a GPU that of activations and graphs; 0 on TPU, which has neither."""
    if resolved.is_tpu:
        return 0.0
    return max(constant("GPU_KV_MARGIN_GIB"), constant("GPU_KV_MARGIN") * kv_gib)


def graph_gib(resolved: Resolved) -> float:
    """Return the CUDA graphs of one device in GiB; 0 in eager mode and on TPU."""
    graphs = captured_graphs(resolved)
    if resolved.accelerator.is_rocm:
        return graphs * resolved.spec.layers * constant("ROCM_GRAPH_LAYER_GIB")
    return graphs * constant("GRAPH_GIB") + constant("GRAPH_POOL_GIB") if graphs else 0.0


def _all_reduces_gib(resolved: Resolved) -> float:
    """Return what NCCL keeps of the all-reduces in CUDA graphs, in GiB: on several cards without NVLink, before vLLM measures graphs."""
    if resolved.tp == 1 or resolved.accelerator.has_nvlink or not is_before(resolved, RESERVES_GRAPHS):
        return 0.0
    all_reduces = captured_graphs(resolved) * resolved.spec.layers * constant("ALL_REDUCES_PER_LAYER")
    return all_reduces * constant("NCCL_CAPTURE_MIB") / MIB_PER_GIB


def captured_graphs(resolved: Resolved) -> int:
    """Return how many CUDA graphs vLLM captures: one per size for mixed batches, one per size for decoding batches.

    A draft model is captured with the mixed batches (v1/worker/gpu_model_runner.py, _dummy_run). With LoRA each graph of the model is captured with
    and without adapters (cudagraph_specialize_lora of config/compilation.py, on by default).
    """
    if resolved.is_tpu or resolved.eager:
        return 0
    derived = _mixed_graphs(resolved) + _sizes_up_to(min(_decoding(resolved), _LARGEST_GRAPH))
    return derived * (2 if lora_of(resolved) is not None else 1) + _drafter_graphs(resolved)


def _drafter_graphs(resolved: Resolved) -> int:
    has_drafter = resolved.speculative_tokens > 0 and named_drafter(resolved.vllm) is not None
    return _mixed_graphs(resolved) if has_drafter and not (resolved.eager or resolved.is_tpu) else 0


def _mixed_graphs(resolved: Resolved) -> int:
    return _sizes_up_to(min(2 * _decoding(resolved), _LARGEST_GRAPH, resolved.max_num_batched_tokens))


def _decoding(resolved: Resolved) -> int:
    """Return the tokens of the largest batch that only decodes."""
    return min(resolved.max_num_seqs * (1 + resolved.speculative_tokens), resolved.max_num_batched_tokens)


def _sizes_up_to(largest: int) -> int:
    """Return how many capture sizes vLLM has: 1, 2, 4, then every 8 below 256, then every 16."""
    few = sum(1 for size in (1, 2, 4) if size <= largest)
    small = max(min(largest, _GRAPH_STEP_CHANGE - _GRAPH_STEP_SMALL) // _GRAPH_STEP_SMALL, 0)
    large = max((largest - _GRAPH_STEP_CHANGE) // _GRAPH_STEP_LARGE + 1, 0)
    return few + small + large
