"""Default vLLM options by model and hardware, for options that the settings leave unset.

From the Gemma 4 recipe of the vLLM project and the turbo-stable configuration of 26B-A4B on v6e-4; otherwise vLLM's own
defaults apply. Users can override every recommendation.
"""

from collections.abc import Mapping
from typing import Final

from gemma_serving.planning.machine.hardware import Accelerator
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.model.support import support_of
from gemma_serving.planning.settings.vllm_args import SAFETENSORS, STREAMER, Modality, VllmOptions
from gemma_serving.planning.settings.workload import DEFAULT_WORKLOAD, Workload
from gemma_serving.planning.units import next_power_of_two

UTILIZATION: Final = 0.90
"""Middle of the recipe's range of 0.85 to 0.95; on TPU the rest holds compiled programs."""
MAX_MODEL_LEN: Final = 16_384
SHORTEST_MODEL_LEN: Final = 2_048
LEAST_CONTEXT: Final = 4_096
"""Minimum request length unless a user asks for another: with less, a chat has no history."""
_ROOM: Final = 2
"""Times the tokens of a workload's request that a proposed vllm.maxModelLen allows: assumed."""
MAX_NUM_BATCHED_TOKENS: Final = 4_096
SMALL_NUM_BATCHED_TOKENS: Final = 2_560
"""Holds the longest multimodal item (2,496 tokens) in one step."""
MAX_NUM_SEQS: Final = 256
SMALL_DEVICE_GIB: Final = 40.0
SMALL_DEVICE_MAX_NUM_SEQS: Final = 16
"""On a 24 GB card, more sequences reserve memory for logits and graphs that the KV cache needs."""
FEWER_SEQUENCES: Final = (128, 64, 32, 16)
"""Sequences to try, most first, if the start of speculative decoding on a TPU leaves no memory to more."""
FEW_KV_HEADS: Final = 2
"""KV heads of a layer up to which replicas are proposed instead of tensor parallelism over all chips."""
TPU_MOE_BLOCK_SIZE: Final = 32
TEXT_ONLY: Final[Mapping[Modality, int]] = {"image": 0, "video": 0, "audio": 0}
FUSE_MODES: Final = ("fuse", "fuse-buffered", "fuse-cached")
_PREFETCHED_MODES: Final = ("fuse", "fuse-cached")
"""Mounts that vLLM reads ahead of the loader. A mount with buffered reads does that itself, and a second reader fetches most bytes twice."""


def needs_text_alone(workload: Workload | None) -> bool:
    """Return whether no request of a workload has images, video or sound."""
    load = workload or DEFAULT_WORKLOAD
    return not (load.images or load.videos or load.audio_s)


def roomy_length(need: int) -> int:
    """Return the vllm.maxModelLen to propose on a TPU for requests of `need` tokens: a longer one makes each request slower."""
    return max(next_power_of_two(_ROOM * need), LEAST_CONTEXT)


def replica_counts(spec: ModelSpec, accelerator: Accelerator) -> tuple[int, ...]:
    """Return the data-parallel sizes that can serve more than tensor parallelism over all chips of a slice, largest first; empty if none can.

    A KV head is not divided: with fewer heads than chips, tensor parallelism stores the same KV cache several times. Experts are
    excluded (DPL01).
    """
    heads = min((group.attention.kv_heads for group in spec.groups if group.owns_kv), default=0)
    if not accelerator.is_tpu or spec.is_moe or not 0 < heads <= FEW_KV_HEADS:
        return ()
    return tuple(count for count in (accelerator.devices, accelerator.devices // 2) if count > 1)


def recommended_options(
    spec: ModelSpec,
    accelerator: Accelerator,
    *,
    weights_mode: str,
    quantize_on_load: bool = False,
    offloads: bool = False,
    replicas: int = 1,
) -> VllmOptions:
    """Return the recommended options of a model; `quantize_on_load` makes vLLM convert bf16 to fp8, `offloads` keeps weights on the host."""
    is_tpu, gemma = accelerator.is_tpu, spec.is_gemma4
    small = not is_tpu and accelerator.usable_gib < SMALL_DEVICE_GIB
    strategy = "prefetch" if weights_mode in _PREFETCHED_MODES or (is_tpu and spec.is_moe) else None
    if offloads and strategy:
        # Prefetched pages and offloaded weights evict each other from host memory.
        strategy = "lazy"
    limits: dict[Modality, int] = {"image": 4}
    if spec.accepts_audio:
        limits["audio"] = int(not is_tpu or support_of("audio", spec, accelerator).answer == "yes")
    if support_of("video", spec, accelerator).answer == "no":
        limits["video"] = 0
    return VllmOptions(
        tensor_parallel_size=max(accelerator.devices // replicas, 1),
        quantization="fp8" if quantize_on_load else None,
        gpu_memory_utilization=UTILIZATION,
        max_model_len=min(MAX_MODEL_LEN, spec.max_positions),
        max_num_seqs=SMALL_DEVICE_MAX_NUM_SEQS if small else MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        block_size=TPU_MOE_BLOCK_SIZE if is_tpu and spec.is_moe else None,
        enable_prefix_caching=True if is_tpu and spec.is_moe else None,
        async_scheduling=None if is_tpu else True,
        disable_chunked_mm_input=True if gemma else None,
        limit_mm_per_prompt=limits if gemma else None,
        enable_auto_tool_choice=True if gemma else None,
        tool_call_parser="gemma4" if gemma else None,
        reasoning_parser="gemma4" if gemma else None,
        load_format=STREAMER if weights_mode == "streamer" else SAFETENSORS,
        safetensors_load_strategy=strategy,
    )
