"""Constants of the runtimes: memory use other than weights and KV cache, and rates. One name, one source each.

Plain numbers of loading, starting and decoding are rows of overheads.json (name, value, unit, meaning, basis of the fit) and attributes of
this module. They are properties of vLLM, CUDA, XLA, Cloud Storage FUSE and the platforms, the same for every model: bytes, or seconds per byte,
layer or graph, never a deployment's result. Memory constants follow from vLLM's code and its logs for other
models. Rates are fitted to published logs; docs/authors/accuracy.md lists the rows that are therefore not independent checks. If sources
disagree, correct the value here.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

from planning.data.tables import data_file

# --- GPU memory (vLLM 0.20 and later) ---------------------------------------------------------------------------------------------
CUDA_CONTEXT_GIB: Final = 0.33
"""Context and loaded modules of one process before any tensor; outside vLLM's budget, whose baseline is taken later."""
NON_TORCH_GIB: Final = 0.10
"""cuBLAS workspaces and kernels loaded during the profiling run (`non_torch_increase` of vLLM's memory profile)."""
NCCL_GIB: Final = 0.40
"""Communication buffers and the custom all-reduce of each device, with two or more devices."""
GRAPH_POOL_GIB: Final = 0.165
GRAPH_GIB: Final = 0.0063
"""The first captured CUDA graph, which loads kernels and allocates the pool of all graphs, and each further one (gpu_model_runner.py,
profile_cudagraph_memory): the line of least squares through what 13 public logs estimate on Ampere, Blackwell and unnamed cards, 0.13 to 0.36 GiB for
5 to 16 graphs (RTX 5090: 0.26 for 5; RTX 3090: 0.35 for 9, 0.13 for 5 and 0.17 for 7), 0.27 for 28, 0.37 for 54, 0.64 to 0.79 for 86."""
ROCM_GRAPH_LAYER_GIB: Final = 1.05e-3
"""One captured graph and decoder layer on an AMD GPU, whose runtime keeps memory for each kernel of a graph. Fitted to 12B on an MI300X: 5.12 GiB for 102
graphs of 48 layers (xbill9/gemma4-dev 5a5636dc1cc2, gpu-vllm-mi300x-12b-fp8/benchmarks/runs/2026-10-07-dtype-sweep-mi300x/boot.log)."""
SAMPLER_BYTES_PER_LOGIT: Final = 14
"""bf16 logits, their fp32 copy, probabilities and the exponential noise of the sampler's dummy run: 2 + 4 + 4 + 4 bytes
(vLLM's gpu_model_runner._dummy_sampler_run, 0.20.0 to 0.30.0; from 0.21.0 on, it also runs the sampler without FlashInfer, which is this peak)."""
SAMPLER_PROGRAMS: Final = 124
SAMPLER_LEAST_BATCH: Final = 8
"""Programs of the kernel for top-k and top-p, one per multiprocessor (58 on an L4, 108 on an A100, 132 on an H100 and an H200, 188 on an RTX PRO 6000: their
mean), for batches of this size. Each has a copy of a sequence's fp32 logits (v1/sample/ops/topk_topp_triton.py, apply_top_k_top_p_triton)."""
SORTING_SAMPLER_BYTES_PER_LOGIT: Final = 39
"""The same before `planning.question.releases.SAMPLES_WITHOUT_SORTING`, whose dummy run sorts the logits for top-p: with it, the KV caches of six
models that llm-d profiled on H100 with vLLM 0.11 are within 1 % (its table of profiled activations, read 2026-11-21)."""
SAMPLER_V2_BYTES_PER_LOGIT: Final = 6
"""The same for vLLM's second model runner: bf16 logits and their fp32 copy, 2 + 4 bytes; it samples without a tensor of probabilities
(v1/worker/gpu/sample/sampler.py)."""
ENOUGH_OUTSIDE_BUDGET_GIB: Final = 0.82
"""Sufficient device memory outside `gpu_memory_utilization` for the CUDA context, fragmentation and the error of the graph estimate:
Gemma 4 serves on 24 GB cards (23.56 GiB) at 0.965 (noonghunna/club-3090#537, 2026-07-01). Below CUDA_CONTEXT_GIB, vLLM does not start,
because it finds less free memory than total x utilization (v1/worker/utils.py, request_memory)."""
GPU_KV_MARGIN_GIB: Final = 0.5
GPU_KV_MARGIN: Final = 0.05
"""Memory that the KV cache of a GPU may lack, at least this many GiB or this fraction of it: the error of planned activations and graphs, which vLLM
measures on the device. Planned KV caches of public logs from 0.20.0 on differ by up to 0.5 GiB on cards of 24 GB and by 5 % on larger ones, and
a few by more, with 4-bit experts or with a drafter outside the catalog. It affects the verdict, not the figure. No log of Google Cloud's GPUs has
confirmed the plan three times; then it can shrink."""
GPU_NARROW_EXPERTS_KV_MARGIN_GIB: Final = 1.5
EXPERT_TILE: Final = 128
"""The same for 4-bit experts whose width on one device is not a multiple of this. 26B-A4B with 704 columns on an L4 and vLLM 0.30.0 has 3.8 GiB of KV
cache (xbill9/gemma4-dev, jev-tpu-31b, 2026-09-26, text only), 1.2 GiB less than planned, and with 768 columns as much as planned (field report 002,
vLLM 0.21.0). The cause is unknown; the workspaces of the Marlin kernel are counted. That the width decides is assumed."""
WEIGHTS_SCATTER: Final = 0.03
"""Maximum difference between planned and measured weights of a device (docs/authors/accuracy.md). A closer limit may be exceeded."""
VLLM_DEFAULT_BLOCK: Final = 16
VIDEO_FRAMES: Final = 32
FRAME_TOKENS: Final = 70
VIDEO_TOKENS: Final = VIDEO_FRAMES * (FRAME_TOKENS + 2 + 6)
"""Largest multimodal item: 32 frames of 70 soft tokens, image start and end tokens and a timestamp (vLLM's gemma4_mm.py): 2,496."""
IMAGE_TOKENS: Final = 280
AUDIO_TOKENS: Final = 750
"""30 s of audio (the processor's audio_seq_length)."""
PATCH_PIXELS: Final = 16
PATCHES_PER_TOKEN: Final = 9
"""Side of an image patch, and patches pooled into one soft token, of every Gemma 4 (the checkpoints' config.json)."""

# --- TPU memory (tpu-inference) -----------------------------------------------------------------------------------------------------
# Compiled programs are outside `gpu_memory_utilization`. E2B on v5e-1 (xbill9/gemma4-dev, tpu-vllm-v5e1-2b/benchmarks/runs,
# 2026-08-07-gpu-mem-util-v5e1 and 2026-08-09-serving-params-v5e1): at 0.95, 0.79 GiB outside, the structured decoding of 256 sequences
# requests 384.11 MiB after the programs of nine batch sizes took 452 MB, and finds 347; at 0.92, 1.26 GiB outside, it serves.
TPU_LOGIT_BYTES: Final = 6
"""Memory of the sampler's programs per logit, in bf16 and fp32: 256 x 262,144 x 6 bytes are the 384 MiB of that log."""
TPU_BUCKET_NEEDS_GIB: Final = 0.049
"""Programs of one batch size: 452 MB for nine were too much."""
TPU_BUCKET_ENOUGH_GIB: Final = 0.098
"""Programs of one batch size: 1.26 GiB less 384 MiB for nine sufficed. That both grow with the list of batch sizes is assumed."""
TPU_V5E_W4A16_PROGRAM_GIB: Final = 0.55
TPU_V5E_W4A16_GIB_PER_BILLION: Final = 0.31
"""Largest program of a 4-bit model on v5e, per billion parameters in linear layers outside the experts: 1.15 GiB for E2B,
1.77 for E4B, 3.92 for 12B, 1.26 for 26B-A4B, all served with patches (xbill9/gemma4-dev, jev-tpu-v5e1/README.md, 2026-09-27 to 30).
On v6e, 31B served with 2.5 GiB outside the budget, so it is not counted there."""
TPU_LANES: Final = 128
"""Head dimensions in the KV cache, and the columns of experts, are padded to a multiple of this."""
TPU_WORD_BITS: Final = 32
"""KV heads are packed into words: 2 of bf16, 4 of fp8 (ragged paged attention's get_kv_cache_shape)."""

# --- Loading ------------------------------------------------------------------------------------------------------------------------
STREAMER_BUFFER_BYTES: Final = 4 * 2**30
"""RUNAI_STREAMER_MEMORY_LIMIT set by the stacks. With the library's default of 40 GB (run-ai/runai-model-streamer, docs/src/env-vars.md, 2026-11),
a whole checkpoint is read into the container's memory."""
STREAMER_THREADS: Final = 16
"""RUNAI_STREAMER_CONCURRENCY set by the stacks, as on vLLM's streamer page; the library's default for object stores is 8."""
LOAD_BAND: Final = (0.75, 1.3)
"""Loading time relative to the plan, low and high: 11 public loads are between 0.79 and 1.22. A 12th, 12B by the PyTorch path on v6e-1,
took 36 s for 104 planned, because it maps its files and reads them later."""

# --- Starting -----------------------------------------------------------------------------------------------------------------------
GPU_COMPILE_BAND: Final = (0.85, 1.25)
"""Compile time on a known host relative to the plan, low and high: public logs of six hosts are between 0.99 and 1.22. On a host whose cores
are unknown, the band reaches from the low end of fast cores to the high end of the others."""
XLA_COMPILE_BAND: Final = (0.8, 1.25)
"""Compile time of XLA programs relative to the plan, low and high: 13 public boots on v5e and v6e are between 0.83 and 1.17."""
XLA_MIN_BUCKET: Final = 16
# The archive of compiled programs downloads during the image pull: 64 programs took 11 s through a bucket (sgl-project/sglang-jax#1263,
# 97 s instead of 86 s), less than VM_IMAGE_PULL_S. A machine that restores them therefore takes no extra time.
HOST_SYSTEM_DISK_GIB: Final = (10, 20)
"""Operating system and logs of a TPU VM: minimum, and recommended. Assumed."""
IMAGE_ON_DISK_GIB: Final = (12, 25)
"""The unpacked server image, and its layers during the pull: minimum, and recommended. VM_IMAGE_PULL_S has its compressed size, 6 to 9 GB;
two and nearly three times that are assumed."""

# --- Decoding -----------------------------------------------------------------------------------------------------------------------
TPU_OLD_SEQUENCE_S: Final = ((16, 0.21e-3), (32, 0.45e-3), (1_000_000, 0.25e-3))
"""Seconds that each additional sequence adds to a step before that release, up to a number of sequences, divided over the chips: attention,
logits and sampling. They, not the weights, limit large batches of small models. The steps of three models grow alike on one v6e chip (public
sweep of 2026-07-25): little up to 16 sequences, 9 to 10 ms from 16 to 32, 8 ms from 32 to 64."""


@cache
def rows() -> Mapping[str, float]:
    """Return the value of each row of overheads.json by name."""
    return {row["name"]: row["value"] for row in data_file("overheads.json")}


def __getattr__(name: str) -> float:
    """Return the value of a row as if it were a name of this module."""
    if not name.isupper() or name not in rows():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return rows()[name]
