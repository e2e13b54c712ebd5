"""Constants of the runtimes: memory use other than weights and KV cache, and rates. One name, one source each.

They are properties of vLLM, CUDA, XLA, Cloud Storage FUSE and the platforms, the same for every model: bytes, or seconds per byte,
layer or graph, never a deployment's result. Memory constants follow from vLLM's code and its logs for other
models. Rates are fitted to published logs; docs/authors/accuracy.md lists the rows that are therefore not independent checks. If sources
disagree, correct the value here.
"""

from typing import Final

# --- GPU memory (vLLM 0.20 and later) ---------------------------------------------------------------------------------------------
CUDA_CONTEXT_GIB: Final = 0.33
"""Context and loaded modules of one process before any tensor; outside vLLM's budget, whose baseline is taken later."""
NON_TORCH_GIB: Final = 0.10
"""cuBLAS workspaces and kernels loaded during the profiling run (`non_torch_increase` of vLLM's memory profile)."""
NCCL_GIB: Final = 0.40
"""Communication buffers and the custom all-reduce of each device, with two or more devices."""
GRAPH_GIB: Final = 0.008
"""One captured CUDA graph: public boot logs estimate 0.27 GiB for 28 graphs, 0.37 for 54, 0.64 to 0.78 for 86."""
GRAPH_POOL_GIB: Final = 0.03
ROCM_GRAPH_LAYER_GIB: Final = 1.05e-3
"""One captured graph and decoder layer on an AMD GPU, whose runtime keeps memory for each kernel of a graph. Fitted to 12B on an MI300X: 5.12 GiB for 102
graphs of 48 layers (xbill9/gemma4-dev 5a5636dc1cc2, gpu-vllm-mi300x-12b-fp8/benchmarks/runs/2026-10-07-dtype-sweep-mi300x/boot.log)."""
SAMPLER_BYTES_PER_LOGIT: Final = 14
"""bf16 logits, their fp32 copy, probabilities and the exponential noise of the sampler's dummy run: 2 + 4 + 4 + 4 bytes
(vLLM's gpu_model_runner._dummy_sampler_run, 0.20.0 to 0.30.0; from 0.21.0 on, it also runs the sampler without FlashInfer, which is this peak)."""
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
"""Longest multimodal item: 32 frames of 70 soft tokens, image start and end tokens and a timestamp (vLLM's gemma4_mm.py): 2,496."""
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
HOST_PROCESS_GIB: Final = 0.4
"""Host memory for loading in addition to the checkpoint: staging buffers and the interpreter's share."""
HOST_MARGIN_GIB: Final = 1.0
HOST_MARGIN: Final = 0.05
"""Host memory that a start needs beside its planned peak, at least this many GiB or this fraction of the peak, whichever is more: 26B-A4B, whose peak is
planned at 15.7 GiB, was killed at random with 16 GiB (field report 002)."""
FUSE_BYTES_PER_S: Final = 53e6
"""One reader of a plain Cloud Storage FUSE mount on Cloud Run, from the prefetch line of a boot log (field report 002)."""
FUSE_PREFETCH_READS: Final = 2
"""`--safetensors-load-strategy=prefetch` over FUSE reads everything twice, because FUSE has no page cache for the loader."""
FUSE_BUFFERED_BYTES_PER_S: Final = 800e6
"""`enable-buffered-read=true`: parallel ranged reads ahead of the reader; published starts from zero take 45 to 53 s, with Direct VPC."""
CLOUD_RUN_NETWORK_BYTES_PER_S: Final = 75e6
"""Network read rate of a Cloud Run instance with a GPU unless Direct VPC takes all its traffic: 600 Mbit/s (comment in a public Terraform
program for this GPU; Google's pages list no value). The rates above and below need Direct VPC."""
FUSE_BUFFERS_GIB: Final = 0.625
"""Blocks that a mount with buffered reads keeps in the instance's memory: 40 of 16 MiB (`--read-global-max-blocks`, release notes of gcsfuse 3.3.0)."""
FUSE_CACHED_BYTES_PER_S: Final = 500e6
"""File cache in memory, filled by parallel downloads, then read once more."""
STREAMER_BYTES_PER_S: Final = 800e6
"""runai_streamer from an object store: 800 MB/s with its defaults in run-ai/runai-model-streamer#120 (2026-01, S3 protocol). On Cloud Run it needs
Direct VPC. 218 MB/s were measured with on-the-fly conversion of each tensor (a v7x host, 16 threads), several GB/s on machines with 100 Gbit/s."""
STREAMER_BUFFER_BYTES: Final = 4 * 2**30
"""RUNAI_STREAMER_MEMORY_LIMIT set by the stacks. With the library's default of 40 GB (run-ai/runai-model-streamer, docs/src/env-vars.md, 2026-11),
a whole checkpoint is read into the container's memory."""
STREAMER_THREADS: Final = 16
"""RUNAI_STREAMER_CONCURRENCY set by the stacks, as on vLLM's streamer page; the library's default for object stores is 8."""
IMAGE_BYTES_PER_S: Final = 1_000e6
"""Weights in image layers, which Cloud Run streams from its own storage; assumed."""
SERVER_HOST_GIB: Final = 4.0
"""Host memory of a GPU server that cannot be evicted: the interpreters of the API server and of the engine with torch and CUDA; assumed,
conservatively. It counts in addition to files in memory and the streamer's buffer; pages of a mount are evicted for it."""
GRAPH_CACHE_GIB: Final = 0.46
"""VLLM_CACHE_ROOT after one start: 466 MiB in a public note of 2026 about ROCm; assumed for CUDA too, without savings from compression."""
BUCKET_COPY_BYTES_PER_S: Final = 185e6
"""`gcloud storage cp` to disk or shared memory on one machine (58 GiB in 337 s in public logs)."""
HUB_BYTES_PER_S: Final = 1_000e6
"""Download from Hugging Face to a data-center machine: 10.2 GB in 9.3 s (the log at TPU_PROCESS_START_S) and in 9.8 s (xbill9/gemma4-dev
4cf2d8b, tpu-vllm-v5e1-2b/benchmarks/reports/2026-08-06-gemma4-e2b-v5e1.json). Other logs show 430 MB/s to 2.2 GB/s."""
DISK_TO_DEVICE_BYTES_PER_S: Final = 300e6
"""Safetensors from a local disk or page cache into TPU memory, sharded on the way: 230 MB/s for E2B and 425 MB/s for 12B with vLLM 0.29.1rc1
(the logs at TPU_PROCESS_START_S and TPU_MULTIMODAL_WARM_UP_S), and their geometric mean. Why E2B is slower is unknown."""
TPU_W4A16_LAYER_S: Final = 2.1
TPU_W4A16_LINEAR_PARAMS_PER_S: Final = 415e6
"""Time for the host of a TPU to unpack 4-bit linear layers before they go to the device, in addition to reading the file: seconds per layer,
and parameters per second. Fitted to 31B (277 s of loading, xbill9/gemma4-dev 395bf64, gce-vllm-v6e1-31b-w4a16/benchmarks/runs/
2026-09-29-31b-31b-google-v6e1) and 12B (163 s, gce-vllm-v6e1-12b-w4a16/benchmarks/runs/2026-09-28-pr3660-v6e1)."""
TPU_W4A16_EXPERT_PARAMS_PER_S: Final = 94e6
"""The same for 4-bit experts, for any number of chips: 26B-A4B took 366 s on one chip (xbill9/gemma4-dev 395bf64, gce-vllm-v6e1-26b-q4w4a16/
authors/benchmarks/runs/2026-09-26-kvbf16-26b-q4w4-kvbf16-v6e1)."""
OLD_DISK_TO_DEVICE_BYTES_PER_S: Final = 200e6
"""The same before `planning.question.releases.STARTS_FASTER_ON_TPU`: 204 to 231 MB/s for E2B in public boot logs of vLLM 0.26."""
PAGE_CACHE_TO_GPU_BYTES_PER_S: Final = 1_500e6
LOAD_BAND: Final = (0.75, 1.3)
"""Loading time relative to the plan, low and high: 11 public loads are between 0.79 and 1.22. A 12th, 12B by the PyTorch path on v6e-1,
took 36 s for 104 planned: it maps its files and reads them later."""

# --- Starting -----------------------------------------------------------------------------------------------------------------------
CLOUD_RUN_CONTAINER_START_S: Final = 20
"""Image streaming and driver. Cloud Run starts a GPU container before its image is fully pulled."""
DOCKER_INSTALL_S: Final = 60
"""apt-get install of docker.io on a Compute Engine instance: about a minute (field notes of xbill9/tpu-skill-claude, "docker install ~1 min")."""
VM_IMAGE_PULL_S: Final = 150
"""A vLLM image of 6 to 9 GB on a new machine: pull and unpack."""
VM_BOOT_S: Final = 60
"""From power-on to the startup script. 5,000 Google VMs took 25 s with up to 32 vCPU and under a minute with up to 96 (R. Aboukhalil, "Move
fast and break the cloud", 2018); TPU hosts, with 44 to 180 vCPU, were not measured."""
GPU_PROCESS_START_S: Final = 25
TPU_PROCESS_START_S: Final = 70
"""Start of a server on TPU without loading and compiling: imports, configuration, engine, and the HTTP server. Fitted to text-only 12B on v6e-1
and vLLM 0.29.1rc1 (xbill9/gemma4-dev 395bf64, gce-vllm-v6e1-12b/benchmarks/runs/2026-09-26-override-12b-bf16-ovr-v6e1): 195 s in total, 71 s of
loading, 55 s in the engine, whose programs came from a cache."""
TPU_MULTIMODAL_WARM_UP_S: Final = 53
"""Time that the processor for images, video and audio adds before the HTTP server responds, unless every modality, including video, is limited
to 0. Fitted to E2B on v6e-1 with the same release (xbill9/gemma4-dev 395bf64, gce-vllm-v6e1-2b/benchmarks/runs/2026-09-24-e2b-v6e1), images and
audio limited to 0: 344 s in total, 54 s of loading, 166 s in the engine; the other 123 s are 53 more than for text-only 12B. The log shows 31 s
of them before the engine starts, and 18 s after it has compiled."""
TPU_OLD_PROCESS_START_S: Final = 168
"""The same as TPU_PROCESS_START_S before `planning.question.releases.STARTS_FASTER_ON_TPU`: 84 s of imports and configuration, 54 s of engine
initialization, 30 s until the HTTP server responds. Fitted to E2B on v6e-1 (xbill9/gemma4-dev 4cf2d8b, gce-vllm-v6e1-2b/benchmarks/runs/
2026-08-10-gce-flex-v6e1/logs/vllm-boot.log)."""
TPU_OLD_MULTIMODAL_WARM_UP_S: Final = 34
"""The same as TPU_MULTIMODAL_WARM_UP_S before that release (the same log: 34.2 s)."""
GPU_COMPILE_BASE_S: Final = 20
GPU_COMPILE_S_PER_LAYER: Final = 2.5
"""torch.compile and graph optimization on the vCPU of Cloud Run (field report 002). One core does the work: vLLM sets Inductor's compile
threads to 1 (vllm/env_override.py), so neither more vCPU nor a dedicated machine is faster, only a faster core."""
GPU_FAST_CORE_COMPILE_FACTOR: Final = 0.52
"""The same on a host with fast cores (`planning.machine.hardware.Host.has_fast_cores`). Fitted to 31B in fp8 on an H200 NVL: 108.24 s in the engine
(the boot fp8-31b-h200 of authors/accuracy/corpus/measured.toml), of which 20 s are graph capture and warm-up."""
GPU_COMPILE_BAND: Final = (0.85, 1.25)
"""Compile time on a known host relative to the plan, low and high: public logs of six hosts are between 0.99 and 1.22. On a host whose cores
are unknown, the band reaches from the low end of fast cores to the high end of the others."""
GPU_CACHED_COMPILE_FACTOR: Final = 0.21
"""Fraction of the compile time that a start with a restored VLLM_CACHE_ROOT still takes: 15.9 of 65.0 s, 12.2 of 65.6, 3.6 of 15.0, 7.2 of 27.4 and
3.2 of 25.5 for five models (vllm-project/vllm#37198, 2026-03, before its change; 0.12 after it). Graph capture and warm-up are never skipped."""
GPU_EAGER_WARM_UP_S: Final = 8
GPU_GRAPH_CAPTURE_S: Final = 0.12
XLA_PROGRAM_S: Final = 22
"""Compiling one XLA program of the model on a v6e host, regardless of depth: public logs show 396 s for 18 programs of E2B (35 layers), 399 to
430 s for 18 of 31B (60 layers), 181 s for 9 of E4B and 207 s for 9 of 12B."""
XLA_W4A16_PROGRAM_S: Final = 20
XLA_W4A16_S_PER_BILLION: Final = 2.6
"""Additional time per program of a 4-bit model on v6e, per billion parameters in linear layers outside the experts on one chip:
on v6e-1 eight programs take 985 s for 31B, 520 for 12B and 336 for 26B-A4B (the runs at TPU_W4A16_LAYER_S and TPU_W4A16_EXPERT_PARAMS_PER_S)."""
XLA_V5E_W4A16_PROGRAM_S: Final = 59
XLA_V5E_W4A16_S_PER_BILLION: Final = 26.4
"""The same on v5e, with a cold cache: four programs take 603.86 s for E2B and 1,555.54 s for 12B (xbill9/gemma4-dev, tpu-vllm-v5e1-2b-w4a16/benchmarks/
runs/2026-09-29-e2b-e2b-google-v5e1, and jev-tpu-v5e1/results/2026-09-28-12b3-v5e1-logs at bca1c8b). Ten times as much per parameter as on v6e:
the matrix unit has a quarter of the size (128 x 128 for 256 x 256), so a tile of the 4-bit kernel unrolls to four times as many instructions,
on a host that compiles at half the speed (XLA_V5E_FACTOR). Not fitted: E4B, 859.65 s, and 26B-A4B, 1,047.38 s for eight programs.
Public v5e boots of 4-bit models that took a third of it (12B, 436 s in total) restored the compile cache of an earlier boot."""
XLA_COMPILE_BAND: Final = (0.8, 1.25)
"""Compile time of XLA programs relative to the plan, low and high: 13 public boots on v5e and v6e are between 0.83 and 1.17."""
XLA_W4A16_COMPILE_LOW: Final = 0.65
"""Low end for 4-bit models: on four chips, 26B-A4B took 236 s for 345 planned."""
XLA_V5E_W4A16_COMPILE_HIGH: Final = 1.75
"""High end for 4-bit models on v5e, whose host of 44 GiB then swaps: the same boot of 12B took 2,852 s in total for 4 programs, its small programs
minutes each (jev-tpu-v5e1/README.md: "Four buckets peaked at about 40 GB plus 9 GB of swap"; eight did not finish within an hour)."""
XLA_V5E_FACTOR: Final = 1.9
"""v5e hosts compile more slowly: 738 s where a v6e host took 394 s for the same programs."""
XLA_TORCH_FACTOR: Final = 1.4
"""Programs of the PyTorch path compile more slowly. Fitted to 12B on v6e-1 in the sweep of 2026-07-25, which was healthy after 622 s: without
202 s of the process and its processor and 144 s of loading, 276 s for nine programs."""
XLA_SPECULATION_FACTOR: Final = 1.5
"""Speculative decoding compiles more programs for the verification steps."""
XLA_MIN_BUCKET: Final = 16
XLA_CACHED_FACTOR: Final = 0.37
"""Fraction of the compile time that a restart with a warm cache still takes, because every program is traced, loaded and run once. Fitted to two boots. E2B
on v5e-1 (xbill9/gemma4-dev 4cf2d8b, tpu-vllm-v5e1-2b/benchmarks/runs/2026-08-09-serving-params-v5e1/REPORT.md) took 857 s cold and 497 s with
the cache kept; without 202 s of the process and 60 s of loading, that is 235 of 595 s, 0.40. 12B for text on v6e-1 (the log at
TPU_PROCESS_START_S) took 55 s for eight programs, 0.31 of 176. The mean of both, weighted by their 18 and 8 programs."""
XLA_W4A16_CACHED_FACTOR: Final = 0.03
"""The same for the additional time of 4-bit programs, which is almost all compilation: with a restored cache, four programs of 12B on v5e-1 took 97.64 s
(xbill9/gemma4-dev b584cd5, tpu-vllm-v5e1-12b-w4a16/benchmarks/runs/2026-09-30-g12speedb-12b-google-v5e1) of the 1,555.54 s without one."""
# The archive of compiled programs downloads during the image pull: 64 programs took 11 s through a bucket (sgl-project/sglang-jax#1263,
# 97 s instead of 86 s), less than VM_IMAGE_PULL_S. A machine that restores them therefore takes no extra time.
HOST_SYSTEM_DISK_GIB: Final = (10, 20)
"""Operating system and logs of a TPU VM: minimum, and recommended. Assumed."""
IMAGE_ON_DISK_GIB: Final = (12, 25)
"""The unpacked server image, and its layers during the pull: minimum, and recommended. VM_IMAGE_PULL_S has its compressed size, 6 to 9 GB;
two and nearly three times that are assumed."""
PROBE_MARGIN: Final = 1.25
"""Probe budget relative to the predicted start: the start-up estimate is accurate to 20%."""

# --- Decoding -----------------------------------------------------------------------------------------------------------------------
TPU_BANDWIDTH_EFFICIENCY: Final = 0.82
TPU_W4A16_BANDWIDTH_EFFICIENCY: Final = 0.40
"""The same for 4-bit linear layers, whose kernel is bound by unpacking each tile, not by reading it. Fitted to 31B on v6e-1, which decodes 36.0
tokens per second for one request (xbill9/gemma4-dev 395bf64, gce-vllm-v6e1-31b-q4w4a16/benchmarks/runs/2026-09-29-31b-31b-repack-v6e1).
Experts are unpacked by the same product."""
TPU_V5E_W4A16_BANDWIDTH_EFFICIENCY: Final = 0.25
"""The same on v5e. Fitted to E4B, the middle of three sizes, which decodes 74.8 tokens per second for one request (xbill9/gemma4-dev 007fff8,
jev-tpu-v5e1/evidence-v5e1/throughput.txt, e4b-google.load.c1): E2B is a tenth slower than planned with it, and 12B a tenth faster."""
TPU_FP8_BANDWIDTH_EFFICIENCY: Final = 0.62
"""The same for FP8 weights: the matrix units of v5e and v6e have no FP8, so each tile is converted to bf16. Fitted to E4B on v5e-1, which
decodes 98.6 tokens per second for one request (the same file, e4b-fp8.load.c1). That v6e converts at the same share is assumed."""
TPU_COMPUTE_EFFICIENCY: Final = 0.50
"""Fraction of the peak that a prompt's operations reach: 0.45 to 0.57 in the prefill of three models on v6e (public sweep of 2026-07-25).
MaxText publishes 0.44 to 0.50 for dense models on v6e (its page of optimized models, read 2026-11-20)."""
TPU_V5E_COMPUTE_EFFICIENCY: Final = 0.61
"""The same on v5e, whose smaller matrix unit is easier to fill: the middle of the four sizes that MaxText publishes for one pod, 0.56 to
0.67 (MaxText/configs/v5e/README.md). Not fitted to any run of the corpus."""
TPU_STEP_S: Final = 0.2e-3
TPU_SEQUENCE_LAYER_S: Final = 1.9e-6
"""Seconds that each additional sequence adds to a step in one layer, divided over the chips, from `planning.question.releases.
DECODES_FASTER_ON_TPU` on: 1.6e-6 for E2B and 2.2e-6 for E4B on one v5e chip with 16 requests (xbill9/gemma4-dev 007fff8,
jev-tpu-v5e1/evidence-v5e1/throughput.txt, e2b-bf16 and e4b-fp8). The same steps of E2B, 6.9 ms for one request, leave nothing for layers."""
TPU_MEASURED_SEQUENCES: Final = 16
"""Most sequences of a measured step of those releases. Beyond it, each is assumed to cost what it did before (TPU_OLD_SEQUENCE_S), but all
of them never more than as many measured steps, one after the other: more requests never lower the rate."""
TPU_VERIFIED_TOKEN_S: Final = 0.18e-3
"""Time that one token of a step with proposals adds on a v6e chip, on v5e by TPU_V5E_SEQUENCE_FACTOR more: the rejection sampler works on
each. Fitted to E2B W8A8 with four proposals on one v5e chip, whose steps take 8.1 ms with one request and 31.8 with 16 (the same file,
e2b-qat-w8a8-mtpb; 3.21 tokens per step by jev-tpu-v5e1/README.md)."""
TPU_OLD_LAYER_S: Final = 35e-6
"""Kernels of one layer that move no weights, before `planning.question.releases.DECODES_FASTER_ON_TPU`."""
TPU_OLD_SEQUENCE_S: Final = ((16, 0.21e-3), (32, 0.45e-3), (1_000_000, 0.25e-3))
"""Seconds that each additional sequence adds to a step before that release, up to a number of sequences, divided over the chips: attention,
logits and sampling. They, not the weights, limit large batches of small models. The steps of three models grow alike on one v6e chip (public
sweep of 2026-07-25): little up to 16 sequences, 9 to 10 ms from 16 to 32, 8 ms from 32 to 64."""
TPU_V5E_SEQUENCE_FACTOR: Final = 1.7
TPU_ALL_REDUCE_S: Final = 38e-6
ALL_REDUCES_PER_LAYER: Final = 2
ZERO_COPY_EFFICIENCY: Final = 0.4
"""Kernels that read offloaded weights over PCIe (unified virtual addressing) reach about two fifths of its copy rate, because nothing is
prefetched and nothing overlaps (field report 003: 0.8 tokens/s at 14 GiB)."""
GPU_LORA_LAYER_S: Final = 40e-6
"""Shrink and expand kernels of LoRA in one layer (vLLM's Punica wrapper), replayed from a CUDA graph; twice a layer's own share (assumed)."""
TPU_LORA_LAYER_S: Final = 70e-6
TURNAROUND_STEPS: Final = 2.1
"""Steps, in addition to its own prompt's, that a request waits for its first token with TURNAROUND_REQUESTS or more: the one in progress
when it arrives, the one that async scheduling has queued, and the one that generates the token. A single request waits for one. Medians of the
public sweep of 2026-07-25."""
TURNAROUND_REQUESTS: Final = 4
CACHED_TOKEN_S: Final = 5e-6
"""Time per prompt token in the prefix cache: 4.2 to 5.5 us between 4,096 and 65,376 tokens (repeated prompts of the public sweep of
2026-07-25). Other requests do not wait for it."""
API_REQUESTS_PER_S: Final = 230
"""Requests per second that one API process passes on: E2B and E4B on v6e-4 end at 231 and 224 (field report 000, 8 tokens in). One source."""
WAVE_SHARE: Final = 0.5
"""Degree to which the prompts of a closed loop arrive together, 0 (evenly) to 1 (all at the same time). Responses of equal length finish together.
Prompts of one step get their first tokens at its end, all of them."""
