"""The simulator's own table of models and accelerators. It is separate from the planner's, so that the two can disagree.

Sources: the published configurations of the Gemma 4 checkpoints (layers, heads, window, parameters). Measured sizes and rates are marked
beside their constants. 1 GiB is 2**30 bytes, 1 GB is 10**9 bytes.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

GIB: Final = 2**30
VOCABULARY: Final = 262_144
_HEAD_DIM_SLIDING: Final = 256
_HEAD_DIM_GLOBAL: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A checkpoint. The layer counts leave out layers that share another layer's KV.

    `weights_gib`: size in device memory; `disk_gib`: size of the files, the same where it is None; `active_b`: billions of parameters read for
    each token; `bytes_per_active`: average bytes each of those takes; `is_w4a16`: int4 compressed-tensors weights.
    """

    name: str
    weights_gib: float
    active_b: float
    bytes_per_active: float
    sliding_layers: int
    global_layers: int
    kv_heads_sliding: int
    kv_heads_global: int
    window: int
    max_position: int
    disk_gib: float | None = None
    is_w4a16: bool = False
    is_moe: bool = False
    shards: int = 1

    @property
    def disk_bytes(self) -> int:
        """Return the size of the checkpoint's files."""
        return int((self.weights_gib if self.disk_gib is None else self.disk_gib) * GIB)

    def sliding_bytes_per_token(self, bytes_per_element: int, tensor_parallel: int) -> int:
        """Return the KV bytes per token and device in all sliding-window layers. If there are fewer heads than devices, heads are replicated."""
        heads = max(1, self.kv_heads_sliding // tensor_parallel)
        return self.sliding_layers * heads * _HEAD_DIM_SLIDING * 2 * bytes_per_element

    def global_bytes_per_token(self, bytes_per_element: int, tensor_parallel: int) -> int:
        """Return the KV bytes per token and device in all full-attention layers."""
        heads = max(1, self.kv_heads_global // tensor_parallel)
        return self.global_layers * heads * _HEAD_DIM_GLOBAL * 2 * bytes_per_element


def _bf16_gib(params_b: float) -> float:
    return params_b * 1e9 * 2 / GIB


_MODELS: Final[dict[str, Model]] = {
    "E2B": Model(
        name="E2B",
        weights_gib=9.54,  # measured on a v6e-4: 9.54 GiB over four chips
        active_b=2.3,
        bytes_per_active=2,
        sliding_layers=12,
        global_layers=3,
        kv_heads_sliding=1,
        kv_heads_global=1,
        window=512,
        max_position=131_072,
    ),
    "E4B": Model(
        name="E4B",
        weights_gib=_bf16_gib(7.52),
        active_b=4.5,
        bytes_per_active=2,
        sliding_layers=20,
        global_layers=4,
        kv_heads_sliding=2,
        kv_heads_global=2,
        window=512,
        max_position=131_072,
        shards=2,
    ),
    "12B": Model(
        name="12B",
        weights_gib=_bf16_gib(11.91),
        active_b=11.91,
        bytes_per_active=2,
        sliding_layers=40,
        global_layers=8,
        kv_heads_sliding=8,
        kv_heads_global=1,
        window=1024,
        max_position=262_144,
        shards=3,
    ),
    "26B-A4B": Model(
        name="26B-A4B",
        weights_gib=_bf16_gib(25.23),
        active_b=3.82,
        bytes_per_active=2,
        sliding_layers=25,
        global_layers=5,
        kv_heads_sliding=8,
        kv_heads_global=2,
        window=1024,
        max_position=262_144,
        is_moe=True,
        shards=6,
    ),
    "31B": Model(
        name="31B",
        weights_gib=_bf16_gib(30.70),
        active_b=30.70,
        bytes_per_active=2,
        sliding_layers=50,
        global_layers=10,
        kv_heads_sliding=16,
        kv_heads_global=4,
        window=1024,
        max_position=262_144,
        shards=7,
    ),
}

_QAT_WEIGHTS_GIB: Final[dict[str, float]] = {
    # Measured on an L4. In GiB, as vLLM logs it: only then the measured 7,097 blocks of KV cache result.
    "26B-A4B": 16.44,
    "31B": 24.9,  # measured: what failed on an L4
    # Not measured: int4 parameters with their scales (0.5625 byte each) and bf16 embeddings.
    "12B": 8.7e9 / GIB,
    "E4B": 6.2e9 / GIB,
    "E2B": 4.2e9 / GIB,
}

TINY: Final = Model(
    name="tiny",
    weights_gib=0.1,
    active_b=0.05,
    bytes_per_active=2,
    sliding_layers=1,
    global_layers=1,
    kv_heads_sliding=1,
    kv_heads_global=1,
    window=512,
    max_position=131_072,
)
"""`simulated/tiny`: a model that exists only here, for tests that need a server quickly."""


def find_model(name: str) -> Model | None:
    """Return a checkpoint by its Hugging Face id or by the last part of a path; None for an unknown model."""
    base = name.rstrip("/").rsplit("/", 1)[-1]
    if name == "simulated/tiny":
        return TINY
    match = re.fullmatch(r"gemma-4-(E2B|E4B|12B|26B-A4B|31B)((?:-[a-z0-9]+)*)", base, re.IGNORECASE)
    if match is None:
        return None
    size = next(key for key in _MODELS if key.lower() == match[1].lower())
    model, suffix = _MODELS[size], match[2].lower()
    if "qat" not in suffix and "w4a16" not in suffix:
        return model
    return replace(
        model,
        name=f"{size}-qat-w4a16",
        weights_gib=_QAT_WEIGHTS_GIB[size],
        bytes_per_active=0.65,  # some 16.4 GB over 25.23 billion parameters
        # Measured: 664.24 s of load at 24.8 MB/s are 16.44 GB.
        disk_gib=16.44e9 / GIB if size == "26B-A4B" else None,
        is_w4a16=True,
        shards=5 if size == "26B-A4B" else model.shards,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedAccelerator:
    """The hardware of the server: `devices` equal devices. Bandwidth and FLOPS are the peak of one device, from the vendors' data sheets."""

    name: str
    kind: str
    devices: int
    total_gib: float
    bandwidth_gb_per_s: float
    tflops: float
    default_max_num_seqs: int
    default_max_num_batched_tokens: int
    default_block_size: int
    ttft_base_s: float
    interval_per_sequence_s: float


_L4: Final = SimulatedAccelerator(
    name="NVIDIA L4",
    kind="cuda",
    devices=1,
    total_gib=22.35,
    bandwidth_gb_per_s=300,
    tflops=121,
    default_max_num_seqs=256,
    default_max_num_batched_tokens=2048,
    default_block_size=16,
    ttft_base_s=0.11,  # measured TTFT of a short prompt: 0.124 s
    interval_per_sequence_s=0.00015,
)
_RTX_PRO_6000: Final = SimulatedAccelerator(
    name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
    kind="cuda",
    devices=1,
    total_gib=94.97,
    bandwidth_gb_per_s=1597,
    tflops=500,
    default_max_num_seqs=1024,
    default_max_num_batched_tokens=8192,
    default_block_size=16,
    ttft_base_s=0.06,
    interval_per_sequence_s=0.00006,
)
_NONE: Final = SimulatedAccelerator(
    name="simulated",
    kind="none",
    devices=64,
    total_gib=94.97,
    bandwidth_gb_per_s=3000,
    tflops=900,
    default_max_num_seqs=1024,
    default_max_num_batched_tokens=8192,
    default_block_size=16,
    ttft_base_s=0.02,
    interval_per_sequence_s=0.00001,
)


_TPU_GENERATIONS: Final = {
    # Usable memory as the runtime reports it; bandwidth and FLOPS of a chip (Cloud TPU documentation, system architecture).
    "v6e": {"total_gib": 31.24, "bandwidth_gb_per_s": 1638.0, "tflops": 918.0},
    "v5litepod": {"total_gib": 15.75, "bandwidth_gb_per_s": 819.0, "tflops": 197.0},
}


def _tpu(generation: str, chips: int) -> SimulatedAccelerator:
    return SimulatedAccelerator(
        name=f"TPU {generation}-{chips}",
        kind="tpu",
        devices=chips,
        default_max_num_seqs=256,
        default_max_num_batched_tokens=1024,
        default_block_size=32,
        ttft_base_s=0.30,  # measured TTFT on a v6e-4: 0.310 s; assumed for other slices
        interval_per_sequence_s=0.00005,
        **_TPU_GENERATIONS[generation],
    )


def find_accelerator(name: str) -> SimulatedAccelerator | None:
    """Return an accelerator by Google's name, such as `nvidia-l4` or `v6e-4`; None for an unknown name. `""` has practically no memory limit."""
    generation, _, chips = name.partition("-")
    if generation in _TPU_GENERATIONS and chips.isdecimal():
        return _tpu(generation, int(chips))
    return {"": _NONE, "nvidia-l4": _L4, "l4": _L4, "nvidia-rtx-pro-6000": _RTX_PRO_6000}.get(name)
