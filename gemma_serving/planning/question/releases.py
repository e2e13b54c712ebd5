"""Differences between vLLM releases that affect memory or start time.

An unknown release is treated as the one that leaves less memory and starts more slowly.
"""

from typing import Final, Literal

from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.model.support import VersionKey, known_key, newest_in, version_in_use, version_key
from gemma_serving.planning.question.extra_arguments import extra_arguments, value_of_flag
from gemma_serving.planning.question.resolved import Resolved

KEEPS_STORED_HEAD: Final = "0.29.0"
"""First release that loads an output head stored in the checkpoint although the config ties it (vllm-project/vllm#51665): its source archive has
model_loader/weight_tying.py, and that of 0.28.0 skips the head. Seen in 0.29.1rc1 on TPU and in 0.30.0 on an L4."""
Runner = Literal[1, 2]
"""vLLM's model runners, V1 and V2."""
SAMPLES_WITHOUT_SORTING: Final = "0.19.0"
"""First release whose profiling run samples without sorted copies of the logits (`planning.data.overheads.SAMPLER_BYTES_PER_LOGIT`)."""
RUNNER_V2: Final = "0.25.0"
"""First release whose second model runner serves dense models on GPUs (release notes, vllm-project/vllm#44443; config/vllm.py of 0.25.1 to 0.28.0:
every model that is not a mixture of experts)."""
RUNNER_V2_EXPERTS: Final = "0.29.0"
"""First release in which it also serves mixtures of experts (vllm-project/vllm#53183; config/vllm.py of 0.29.0)."""
RUNNER_V2_DRAFT_MODEL: Final = "0.31.0"
"""First release in which it also serves the method `draft_model` (config/vllm.py of 0.30.0 and 0.31.0)."""
RUNNER_V1_METHODS: Final = frozenset({"ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator", "custom_class"})
"""Methods of speculative decoding that stay on the first model runner in every release (config/vllm.py, 0.25.1 to 0.31.0)."""
RUNNER_V2_PROFILES_ENCODER: Final = "0.27.0"
"""First release whose second model runner runs the image encoder during profiling (vllm-project/vllm#48469; its code is in 0.27.1)."""
TUNES_WHILE_COMPILING: Final = "0.12.0"
"""First release that was read in which torch tunes kernels while it compiles (`planning.memory.activations`). It has torch 2.9.1."""
ENCODES_TOGETHER: Final = "0.22.0"
"""First release whose encoder of Gemma 4 gets batches of images or frames (vllm-project/vllm#43169, of 2026-05-20)."""
RESERVES_GRAPHS: Final = "0.20.0"
"""First release that subtracts an estimate of the CUDA graphs before it sizes the KV cache (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS is 0 by default in
0.19.1 and 1 in 0.20.0)."""
RUNNER_V2_RESERVES_GRAPHS: Final = "0.29.0"
"""The same for the second model runner, whose estimate is 0 until 0.28.0 (v1/worker/gpu/model_runner.py, profile_cudagraph_memory). Graphs that are not
subtracted take memory outside `gpu_memory_utilization`."""
COUNTS_BUFFERS: Final = "0.27.0"
"""First release that subtracts everything allocated since the process started, not only weights and the peak of the profiling run (utils/mem_utils.py,
`total_consumed`; in 0.27.1, not in 0.26.0)."""
COUNTS_TOKENS_IN_FLIGHT: Final = "0.26.0"
"""First release that keeps the blocks of a sliding window until both steps in flight are done (vllm-project/vllm#47728, regression report
#49878: Gemma 4 from 0.25.1 to 0.26). Before it, a request held one step's tokens in addition to its window."""
STEPS_IN_FLIGHT: Final = 2
FLASH_ATTENTION_4: Final = "0.24.0"
"""First release that runs Gemma 4 in FlashAttention 4, on compute capability 9, 10 and 11 and with a bf16 KV cache (vllm-project/vllm#42175, merged
after 2026-06-26; a log of 0.27.1 on compute capability 12.1 reports that FA4 does not support it: 0xBakeer/inference-atlas#14)."""
OTHER_NVFP4_EXPERTS: Final = "0.21.0"
"""First release that serves Gemma 4's NVFP4 experts without vLLM's own CUTLASS kernel, which has no tanh GELU until 0.24.0; FlashInfer's precedes it then
(fused_moe/oracle/nvfp4.py)."""
MULTIPLIES_NVFP4: Final = "0.19.0"
"""First release that was read whose dense NVFP4 layers multiply in 4 bits on Blackwell: FlashInfer's or vLLM's CUTLASS kernel is the first choice on
compute capability 10 and above (select_nvfp4_linear_backend in 0.19.0 and 0.19.1, kernels/linear/__init__.py in ten releases from 0.20.2 to 0.33.0)."""
UNPACKS_NVFP4: Final = ("0.28.1.dev0", "0.29.0")
"""Development versions, from the first until before the second, some of which unpack them instead (vllm-project/vllm#53014, undone by #55170)."""
_NVFP4_BACKENDS: Final = frozenset({"auto", "cutlass", "flashinfer_cutlass"})
"""Values of --linear-backend that multiply in 4 bits. Marlin and Humming unpack the weights; the other kernels' rates are unknown."""
STREAMS_ON_TPU: Final = "0.29.0"
"""First release whose TPU image is known to have the loader runai_streamer with gs:// support. The pinned one registers it, and a nightly
of 2026-04-01 served with it (llm-d/llm-d#1102; vllm-project/tpu-inference#955). v0.13.2-ironwood did not (same pull request)."""
STARTS_FASTER_ON_TPU: Final = "0.29.0"
"""First release with the faster server start on TPU (`planning.data.overheads.TPU_PROCESS_START_S`); none between 0.26.1 and 0.29.1 was tested."""

KEEPS_WARM_UP_INPUTS: Final = "0.23.0"
"""First release whose start-up on TPU keeps the inputs of compiled programs (`planning.memory.tpu_programs`): tpu-inference 0.23.0 to 0.32.0 have
`_warmup_tasks` in runner/compilation_manager.py, 0.22.0 has not. 0.23.0 is of June 2026 (vllm-project/vllm#46568, 2026-06-24)."""


def is_before(resolved: Resolved, release: str) -> bool:
    """Return whether the server is known to be older than a release. A development version may have what the next minor release has."""
    version, first = _version(resolved), version_key(release)
    return version is not None and first is not None and newest_in(version) < first


def is_known_from(resolved: Resolved, release: str) -> bool:
    """Return whether the server is known to be at a release or later."""
    version, first = _version(resolved), version_key(release)
    return version is not None and (first is None or version >= first)


def multiplies_nvfp4(resolved: Resolved) -> bool:
    """Return whether the server is known to multiply dense NVFP4 layers in 4 bits on a GPU that can."""
    first, last = UNPACKS_NVFP4
    if not is_known_from(resolved, MULTIPLIES_NVFP4) or not (
        is_before(resolved, first) or is_known_from(resolved, last)
    ):
        return False
    backend = value_of_flag(extra_arguments(resolved), "--linear-backend") or ("auto",)
    return backend[0] in _NVFP4_BACKENDS


def _version(resolved: Resolved) -> VersionKey | None:
    return known_key(version_in_use(resolved.accelerator, resolved.question.image_version))


def keeps_stored_head(resolved: Resolved) -> bool:
    """Return whether a GPU keeps the output head that the checkpoint stores, in addition to the embeddings.

    vLLM loads it, and ties it again only if it equals the embeddings and the model has a single embedding table
    (model_loader/weight_tying.py). Per-layer embeddings (E2B, E4B) are a second table, so their heads always stay. That the others are
    copies is assumed, because a quantization tool writes them. A head beside packed embeddings always stays.
    """
    spec = resolved.spec
    stays = spec.layer_embedding_dim > 0 and not is_before(resolved, KEEPS_STORED_HEAD)
    return spec.has_own_head and (stays or spec.packs_embeddings)


def runners(resolved: Resolved) -> tuple[Runner, ...]:
    """Return the model runner of vLLM that serves the model on a GPU; both if the release or the kind of draft model is unknown."""
    first = RUNNER_V2_EXPERTS if resolved.spec.is_moe else RUNNER_V2
    config = resolved.vllm.speculative_config or {}
    method = str(config.get("method", ""))
    first = RUNNER_V2_DRAFT_MODEL if method == "draft_model" else first
    if is_before(resolved, first) or method in RUNNER_V1_METHODS:
        return (1,)
    is_own_kind = not config or bool(method) or resolved.drafter is not None
    return (2,) if is_known_from(resolved, first) and is_own_kind else (1, 2)


def sampler_bytes_per_logit(resolved: Resolved, runner: Runner) -> float:
    """Return the bytes per logit at the peak of the sampler's profiling run."""
    if runner != 1:
        return constant("SAMPLER_V2_BYTES_PER_LOGIT")
    sorts = is_before(resolved, SAMPLES_WITHOUT_SORTING)
    return constant("SORTING_SAMPLER_BYTES_PER_LOGIT") if sorts else constant("SAMPLER_BYTES_PER_LOGIT")


def sampler_programs(resolved: Resolved, runner: Runner, batch: int) -> float:
    """Return the programs of the kernel for top-k and top-p, each of which has a copy of a sequence's logits."""
    has_kernel = (
        runner == 1 and batch >= constant("SAMPLER_LEAST_BATCH") and not is_before(resolved, SAMPLES_WITHOUT_SORTING)
    )
    return min(batch, constant("SAMPLER_PROGRAMS")) if has_kernel else 0


def profiles_encoder(resolved: Resolved, runner: Runner) -> bool:
    """Return whether the profiling run includes the image encoder, which reduces the KV cache."""
    return runner == 1 or not is_before(resolved, RUNNER_V2_PROFILES_ENCODER)


def reserves_graphs(resolved: Resolved) -> bool:
    """Return whether vLLM subtracts CUDA graphs before it sizes the KV cache; True if some possible model runner does."""
    first: dict[Runner, str] = {1: RESERVES_GRAPHS, 2: RUNNER_V2_RESERVES_GRAPHS}
    return any(not is_before(resolved, first[runner]) for runner in runners(resolved))


def tokens_in_flight(resolved: Resolved) -> int:
    """Return the tokens of one request that a GPU may have in flight: two steps' worth if the next is scheduled while one runs.

    Source: `max_in_flight_tokens` of vLLM's configuration (v1/kv_cache_interface.py, SlidingWindowSpec). With it, 9.65 GiB of E2B on an L4
    are 1,076,635 tokens, while 1,076,849 were logged (source e2b-l4).
    """
    overlaps = resolved.vllm.async_scheduling is not False and not is_before(resolved, COUNTS_TOKENS_IN_FLIGHT)
    return resolved.max_num_batched_tokens * (STEPS_IN_FLIGHT if overlaps and not resolved.is_tpu else 1)
