"""Constants of the runtimes: memory use other than weights and KV cache, and rates. One name, one source each.

Plain numbers are rows of overheads.json and, for the speed of GPUs, gpu_speed.json, which `constant` reads. Those of one TPU generation are in its
row of machines.json (`planning.machine.hardware.Accelerator.measured`). They are properties of vLLM, CUDA, XLA, Cloud Storage FUSE and the platforms,
the same for every model: bytes, or seconds per byte, layer or graph, never a deployment's result.
Memory constants follow from vLLM's code and its logs for other models. Rates are fitted to published logs; dev/docs/accuracy.md lists
the rows that are therefore not independent checks. A speed of GPUs changes only if two sources of different cards or publishers agree; one with
a single source states that, and its band is wide. If sources disagree, correct the value here.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

from msgspec import Struct

from gemma_serving.planning.data.tables import Table, typed_file

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

TPU_LANES: Final = 128
"""Head dimensions in the KV cache, and the columns of experts, are padded to a multiple of this."""
TPU_WORD_BITS: Final = 32
"""KV heads are packed into words: 2 of bf16, 4 of fp8 (ragged paged attention's get_kv_cache_shape)."""

STREAMER_BUFFER_BYTES: Final = 4 * 2**30
"""RUNAI_STREAMER_MEMORY_LIMIT set by the stacks. With the library's default of 40 GB (run-ai/runai-model-streamer, docs/src/env-vars.md, 2026-11),
a whole checkpoint is read into the container's memory."""
STREAMER_THREADS: Final = 16
"""RUNAI_STREAMER_CONCURRENCY set by the stacks, as on vLLM's streamer page; the library's default for object stores is 8."""
LOAD_BAND: Final = (0.75, 1.3)
"""Loading time relative to the plan, low and high: 11 public loads are between 0.79 and 1.22. A 12th, 12B by the PyTorch path on v6e-1,
took 36 s for 104 planned, because it maps its files and reads them later."""

GPU_COMPILE_BAND: Final = (0.6, 1.4)
"""Compile time on a known host relative to the plan, low and high. On a host whose cores are unknown, the band reaches from the low end of fast cores
to the high end of the others. A layer takes 2.5 s by two logs of 26B-A4B, but less in small models."""
XLA_COMPILE_BAND: Final = (0.8, 1.3)
"""Compile time of XLA programs relative to the plan, low and high."""
XLA_MIN_BUCKET: Final = 16
# The archive of compiled programs downloads during the image pull: 64 programs took 11 s through a bucket (sgl-project/sglang-jax#1263,
# 97 s instead of 86 s), less than VM_IMAGE_PULL_S. A machine that restores them therefore takes no extra time.
HOST_SYSTEM_DISK_GIB: Final = (10, 20)
"""Operating system and logs of a TPU VM: minimum, and recommended. Assumed."""
IMAGE_ON_DISK_GIB: Final = (12, 25)
"""The unpacked server image, and its layers during the pull: minimum, and recommended. VM_IMAGE_PULL_S has its compressed size, 6 to 9 GB;
two and nearly three times that are assumed."""
IMAGE_DOWNLOAD_GB: Final = 9
"""The upper end of the compressed size in VM_IMAGE_PULL_S."""


class Constant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row, with the measurements that it was fitted to. Rows of gpu_speed.json have their sources."""

    name: str
    value: int | float
    unit: str
    what: str
    fitted_to: str
    sources: tuple[str, ...] = ()


CONSTANTS: Final[Mapping[str, Constant]] = Table(
    lambda: {
        row.name: row for file in ("overheads.json", "gpu_speed.json") for row in typed_file(file, tuple[Constant, ...])
    }
)
"""By name."""


@cache
def constant(name: str) -> float:
    """Return the value of a row."""
    return CONSTANTS[name].value
