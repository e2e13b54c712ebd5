"""Constants of the runtimes: what a server needs beside weights and KV cache, and how fast its parts move. One name, one source each.

They are properties of vLLM, CUDA, XLA, Cloud Storage FUSE and the platforms, the same for every model: bytes, or seconds for a byte,
a layer or a graph, never the outcome of a deployment. Memory constants follow from vLLM's code and from what its logs say of other
models. Rates had to be read off somebody's log; docs/accuracy.md says which rows are therefore no independent check. Where sources
disagree, correcting a figure is one line here.
"""

from typing import Final

# --- GPU memory (vLLM 0.21 and later) ---------------------------------------------------------------------------------------------
CUDA_CONTEXT_GIB: Final = 0.33
"""Context and loaded modules of one process before any tensor; outside vLLM's budget, since its baseline is taken after it."""
NON_TORCH_GIB: Final = 0.10
"""cuBLAS workspaces and kernels loaded during the profiling run (`non_torch_increase` of vLLM's memory profile)."""
NCCL_GIB: Final = 0.40
"""Communication buffers and the custom all-reduce of each device, as soon as there are two."""
GRAPH_GIB: Final = 0.008
"""One captured CUDA graph: public boot logs estimate 0.27 GiB for 28 graphs, 0.37 for 54, 0.64 to 0.78 for 86."""
GRAPH_POOL_GIB: Final = 0.03
SAMPLER_BYTES_PER_LOGIT: Final = 14
"""bf16 logits, their fp32 copy, probabilities and the exponential noise of the sampler's dummy run: 2 + 4 + 4 + 4 bytes
(vLLM's gpu_model_runner._dummy_sampler_run)."""
MARGIN_OUTSIDE_BUDGET_GIB: Final = 1.25
"""Device memory that should stay outside `gpu_memory_utilization`: the CUDA context, fragmentation, and the error of the graph estimate."""
VLLM_DEFAULT_BLOCK: Final = 16
VIDEO_FRAMES: Final = 32
VIDEO_TOKENS: Final = VIDEO_FRAMES * (70 + 2 + 6)
"""The longest multimodal item: 32 frames of 70 soft tokens, begin and end of image and a time stamp (vLLM's gemma4_mm.py): 2,496."""
IMAGE_TOKENS: Final = 280
AUDIO_TOKENS: Final = 750
"""30 s of audio (the processor's audio_seq_length)."""

# --- TPU memory (tpu-inference) -----------------------------------------------------------------------------------------------------
TPU_PROGRAM_GIB: Final = 1.15
"""A loaded XLA program of the model; it lives outside `gpu_memory_utilization` (a load of 1.15 GiB failed with 1.13 GiB free)."""
TPU_LANES: Final = 128
"""Head dimensions are padded to a multiple of it in the KV cache."""
TPU_WORD_BITS: Final = 32
"""KV heads are packed into words: 2 of bf16, 4 of fp8 (ragged paged attention's get_kv_cache_shape)."""

# --- Loading ------------------------------------------------------------------------------------------------------------------------
HOST_PROCESS_GIB: Final = 0.4
"""Host memory of loading beside the checkpoint itself: staging buffers and the interpreter's share."""
FUSE_BYTES_PER_S: Final = 53e6
"""One reader of a plain Cloud Storage FUSE mount on Cloud Run, from the prefetch line of a boot log (field report 002)."""
FUSE_PREFETCH_READS: Final = 2
"""`--safetensors-load-strategy=prefetch` over FUSE reads everything twice: FUSE keeps no page cache that the loader would find."""
FUSE_BUFFERED_BYTES_PER_S: Final = 800e6
"""`enable-buffered-read=true`: parallel ranged reads ahead of the reader; 45 to 53 s from zero to the first answer are published, with Direct VPC."""
CLOUD_RUN_NETWORK_BYTES_PER_S: Final = 75e6
"""What a Cloud Run instance with a GPU reads from the network unless Direct VPC takes all its traffic: 600 Mbit/s (comment of a public Terraform
program for this GPU; Google's pages were not found to give a figure). The rates above and below need Direct VPC."""
FUSE_CACHED_BYTES_PER_S: Final = 500e6
"""File cache in memory, filled by parallel downloads, then read once more from there."""
STREAMER_BYTES_PER_S: Final = 1_000e6
"""runai_streamer, many concurrent streams from gs:// in the same region."""
BUCKET_COPY_BYTES_PER_S: Final = 185e6
"""`gcloud storage cp` to disk or shared memory on one machine (58 GiB in 337 s in public logs)."""
HUB_BYTES_PER_S: Final = 500e6
"""Download from Hugging Face to a data-centre machine; 430 to 1,100 MB/s in public boot logs."""
DISK_TO_DEVICE_BYTES_PER_S: Final = 200e6
"""Safetensors from a local disk or page cache into TPU memory, sharded on the way (204 to 231 MB/s in public boot logs)."""
PAGE_CACHE_TO_GPU_BYTES_PER_S: Final = 1_500e6

# --- Starting -----------------------------------------------------------------------------------------------------------------------
CLOUD_RUN_CONTAINER_START_S: Final = 20
"""Image streaming and driver: Cloud Run starts a GPU container before its image is pulled whole."""
VM_IMAGE_PULL_S: Final = 150
"""A vLLM image of 6 to 9 GB on a fresh machine: pull and unpack."""
GPU_PROCESS_START_S: Final = 25
TPU_PROCESS_START_S: Final = 65
"""Imports of torch, JAX and vLLM until the engine starts to load."""
GPU_COMPILE_BASE_S: Final = 20
GPU_COMPILE_S_PER_LAYER: Final = 2.5
"""torch.compile and graph optimisation on the vCPU of Cloud Run (field report 002); a dedicated machine takes about half."""
GPU_DEDICATED_COMPILE_FACTOR: Final = 0.5
GPU_EAGER_WARM_UP_S: Final = 8
GPU_GRAPH_CAPTURE_S: Final = 0.12
XLA_PROGRAM_S: Final = 22
"""Compiling one XLA program of the model on a v6e host, whatever its depth: public logs have 396 s for 18 programs of E2B (35 layers), 399 to
430 s for 18 of 31B (60 layers), 181 s for 9 of E4B and 207 s for 9 of 12B."""
XLA_V5E_FACTOR: Final = 1.9
"""v5e hosts compile more slowly: 738 s where a v6e host took 394 s for the same programs."""
XLA_SPECULATION_FACTOR: Final = 1.5
"""Speculative decoding compiles further programs for the verification steps."""
XLA_MIN_BUCKET: Final = 16
XLA_CACHED_S: Final = 10
"""Restart with the compile cache warm."""
PROBE_MARGIN: Final = 1.25
"""Probe budget over the predicted start: the start-up estimate is good to 20 %."""

# --- Decoding -----------------------------------------------------------------------------------------------------------------------
GPU_BANDWIDTH_EFFICIENCY: Final = 0.80
TPU_BANDWIDTH_EFFICIENCY: Final = 0.82
COMPUTE_EFFICIENCY: Final = 0.50
GPU_LAYER_S: Final = 20e-6
"""Kernels of one layer that move no weights, replayed from a CUDA graph."""
GPU_EAGER_LAYER_S: Final = 250e-6
"""The same, launched one by one from Python."""
GPU_MOE_LAYER_S: Final = 40e-6
"""Routing, sorting and gathering of a mixture-of-experts layer, on top."""
GPU_STEP_S: Final = 0.6e-3
"""Scheduling and sampling of one step."""
GPU_SEQUENCE_S: Final = 20e-6
"""What each further sequence adds to a step."""
GPU_ALL_REDUCE_S: Final = 15e-6
TPU_LAYER_S: Final = 35e-6
TPU_STEP_S: Final = 0.2e-3
TPU_SEQUENCE_S: Final = 350e-6
"""Attention, logits and sampling of each sequence of a step, divided over the chips; it, not the weights, bounds large batches of small
models (2,500 tokens/s for 64 requests to E2B on one chip in public sweeps; three times as much on four chips in field report 000)."""
TPU_V5E_SEQUENCE_FACTOR: Final = 1.7
TPU_ALL_REDUCE_S: Final = 38e-6
ALL_REDUCES_PER_LAYER: Final = 2
ZERO_COPY_EFFICIENCY: Final = 0.4
"""Kernels that read offloaded weights over PCIe (unified virtual addressing) reach about two fifths of its copy rate: nothing is
read ahead, nothing overlaps (field report 003: 0.8 tokens/s at 14 GiB)."""
TYPICAL_SEQUENCE_TOKENS: Final = 1_024
"""Length of the requests in the saturation estimate: prompt and half of the answer."""
SATURATION_LOW: Final = 0.5
SATURATION_HIGH: Final = 1.2
