"""Host memory of a start, by weights mode; and the checkpoints that a server loads in addition to its model: drafter and adapters."""

from math import ceil
from typing import Final

from gemma_serving.contracts.collector import COLLECTOR_MIN_GIB, COLLECTOR_VCPU
from gemma_serving.planning.data.overheads import STREAMER_BUFFER_BYTES, constant
from gemma_serving.planning.machine.hardware import CLOUD_RUN_GIB_PER_VCPU, cloud_run_vcpu
from gemma_serving.planning.memory.adapters import adapter_bytes
from gemma_serving.planning.memory.speculation import speculation_of, unknown_drafter_bytes
from gemma_serving.planning.memory.weights import weights_of
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.question.lora import adapters_of, lora_of
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.units import GIB, align_to, to_gib

_BF16: Final = 2


def parts_bytes(resolved: Resolved) -> float:
    """Return the bytes of drafter and adapters on disk, over the network and in host memory: of the largest rank, or of an unknown drafter its reserve."""
    drafter = speculation_of(resolved)
    known = drafter.resolved if drafter is not None else None
    drafted = weights_of(known).checkpoint if known is not None else unknown_drafter_bytes(resolved)
    lora = lora_of(resolved)
    adapters = 0.0 if lora is None else len(adapters_of(resolved)) * adapter_bytes(resolved.spec, lora.rank)
    return drafted + adapters


def load_peak_gib(resolved: Resolved, offloaded_bytes: float) -> float:
    """Return the peak host memory of a start in GiB: weights in transit, files in memory, and the server if it cannot be evicted.

    `offloaded_bytes`: weights of one device that stay on the host.
    """
    checkpoint_gib = to_gib(weights_of(resolved).checkpoint + parts_bytes(resolved))
    offloaded_gib = 1.25 * to_gib(offloaded_bytes) * resolved.tp
    # Prefetched pages and pinned offload evict each other from memory, so the larger of the two must fit.
    through_gib = max(checkpoint_gib, offloaded_gib) + constant("HOST_PROCESS_GIB")
    if resolved.platform != "cloud-run":
        # Each replica loads separately. Whether they share pages of the files is unknown, so none are counted as shared.
        return through_gib * resolved.dp
    graphs_gib = constant("GRAPH_CACHE_GIB") if keeps_graphs(resolved) else 0.0
    if resolved.weights_mode == "streamer":
        return constant("SERVER_HOST_GIB") + to_gib(streamer_buffer_bytes(resolved)) + offloaded_gib + graphs_gib
    if resolved.weights_mode in {"memory", "hub"}:  # an instance stores the files of the hub in memory
        return checkpoint_gib + constant("SERVER_HOST_GIB") + offloaded_gib + graphs_gib
    cache_gib = (resolved.question.cloud_run.mount.cache_size_mib or 0) / 1024
    cached_gib = min(cache_gib, checkpoint_gib) if resolved.weights_mode == "fuse-cached" else 0.0
    buffers_gib = constant("FUSE_BUFFERS_GIB") if resolved.weights_mode == "fuse-buffered" else 0.0
    return through_gib + cached_gib + buffers_gib + graphs_gib


def with_margin_gib(peak_gib: float) -> float:
    """Return the host memory in GiB with which a start of this peak is safe."""
    return peak_gib + max(constant("HOST_MARGIN_GIB"), constant("HOST_MARGIN") * peak_gib)


def smallest_instance(resolved: Resolved, need_gib: float) -> tuple[float, float] | None:
    """Return the memory in GiB and the vCPU of the smallest Cloud Run instance with this accelerator whose server has `need_gib`.

    None if no size is large enough.
    """
    host, taken_vcpu = resolved.host, 0
    if resolved.collects_on_cloud_run:
        need_gib, taken_vcpu = need_gib + COLLECTOR_MIN_GIB, COLLECTOR_VCPU
    memory_gib = max(align_to(ceil(need_gib), CLOUD_RUN_GIB_PER_VCPU), host.min_memory_gib)
    sizes = (vcpu for vcpu in cloud_run_vcpu(host) if (vcpu - taken_vcpu) * CLOUD_RUN_GIB_PER_VCPU >= memory_gib)
    vcpu = next(sizes, None)
    return None if vcpu is None or memory_gib > host.max_memory_gib else (float(memory_gib), float(vcpu))


def keeps_graphs(resolved: Resolved) -> bool:
    """Return whether the service compiles graphs and stores them in its bucket."""
    return resolved.service.compile_cache == "bucket" and not resolved.eager


def streamer_buffer_bytes(resolved: Resolved) -> int:
    """Return the limit of the streamer's buffer: at least the largest tensor, which it requires, and at most the checkpoint, which it never exceeds."""
    wanted = max(STREAMER_BUFFER_BYTES, _whole_gib(largest_tensor_bytes(resolved.spec)))
    return min(wanted, _whole_gib(weights_of(resolved).checkpoint))


def largest_tensor_bytes(spec: ModelSpec) -> int:
    """Return the size of the largest single tensor of a checkpoint in bf16: an embedding table, or the experts of one layer."""
    tables = (spec.hidden, spec.layer_embedding_dim * spec.layers)
    widths = [
        group.experts.count * group.experts.intermediate * 2 for group in spec.groups if group.experts is not None
    ]
    return _BF16 * max(*(spec.vocab * width for width in tables), *(spec.hidden * width for width in widths), 0)


def _whole_gib(size: float) -> int:
    return -(-int(size) // GIB) * GIB
