"""The models and accelerators that the simulator supports. `data/models.json` lists them and their sources.

1 GiB is 2**30 bytes, 1 GB is 10**9 bytes.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from localcloud.json_values import JsonObject, packaged

GIB: Final = 2**30
DRAFTER_BYTES: Final[dict[str, int]] = packaged("localcloud.vllm", "models.json")["drafter_bytes"]
"""Sizes of draft models: E2B, 12B and 31B as stated for one of their repositories, the others of the same order."""
EMBEDDINGS_GIB: Final[dict[str, float]] = packaged("localcloud.vllm", "models.json")["embeddings_gib"]
"""The embeddings that a draft model shares, in bf16: 262,144 tokens of the served model's hidden size."""
_HEAD_DIM_SLIDING: Final = 256
_HEAD_DIM_GLOBAL: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A checkpoint. The layer counts exclude layers that share another layer's KV.

    `weights_gib`: size in device memory; `disk_gib`: size of the files, None if equal; `active_b`: billions of parameters read per token;
    `bytes_per_active`: average bytes of each of those; `layers`: all layers; `expert_b`: billions of parameters in all experts, of which a
    token reads `expert_share`; `expert_row_bytes`: what a token sends to its experts in all layers; `is_w4a16`: int4 compressed-tensors
    weights; `largest_tensor_gib`: the largest single tensor of the files, 0 if unknown; `stored_head_gib`: an output head that a GPU loads and
    then drops; `chip_gib`: logged memory of one TPU chip by the number of chips; `tpu_sequence_s`: measured time that each sequence adds to a
    step on a TPU chip, None if not measured.
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
    layers: int
    expert_b: float = 0.0
    expert_share: float = 0.0
    expert_row_bytes: int = 0
    stored_head_gib: float = 0.0
    chip_gib: Mapping[str, float] = field(default_factory=dict[str, float])
    disk_gib: float | None = None
    largest_tensor_gib: float = 0.0
    is_w4a16: bool = False
    is_moe: bool = False
    tpu_sequence_s: float | None = None
    shards: int = 1

    @property
    def disk_bytes(self) -> int:
        """Return the size of the checkpoint's files."""
        return int((self.weights_gib if self.disk_gib is None else self.disk_gib) * GIB)

    def sliding_bytes_per_token(self, bytes_per_element: int, tensor_parallel: int, word: int = 1) -> int:
        """Return the KV bytes per token and device in all sliding-window layers. With fewer heads than devices, heads are replicated.

        The numbers of all heads fill whole words of `word` bytes.
        """
        heads = max(1, self.kv_heads_sliding // tensor_parallel)
        return self.sliding_layers * _HEAD_DIM_SLIDING * _in_words(2 * heads * bytes_per_element, word)

    def global_bytes_per_token(self, bytes_per_element: int, tensor_parallel: int, word: int = 1) -> int:
        """Return the KV bytes per token and device in all full-attention layers."""
        heads = max(1, self.kv_heads_global // tensor_parallel)
        return self.global_layers * _HEAD_DIM_GLOBAL * _in_words(2 * heads * bytes_per_element, word)


def _in_words(size: int, word: int) -> int:
    return -(-size // word) * word


@cache
def _tables() -> JsonObject:
    return packaged("localcloud.vllm", "models.json")


def _without_sources(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "sources"}


def _checkpoint(size: str) -> Model:
    row = _without_sources(_tables()["checkpoints"][size])
    if "params_b" in row:
        row["weights_gib"] = row.pop("params_b") * 1e9 * 2 / GIB
    return Model(name=size, **row)


_SHARE_OF_BF16: Final = {"fp8": 0.56, "-nvfp4redhatai": 0.35, "-nvfp4nvidia": 0.53}
"""Device memory of a conversion relative to the bf16 checkpoint, from public reports: 12.75 of 22.7 GiB for 12B in FP8, 8.3 of 23.9 GB for
Red Hat's 12B in NVFP4, 31 of 58.9 GiB for NVIDIA's 31B, which leaves attention in bf16."""


def _named_by_size(name: str) -> Model | None:
    """Return a dense model whose id or folder states its billions of parameters (`org/other-8b`). None for any other model, and for any Gemma.

    Assumed because the simulator loads no model: bf16, and 128 KiB of KV per token for 8 billion parameters, more with their square root.
    """
    owner, _, base = name.rstrip("/").rpartition("/")
    match = re.fullmatch(r"[\w.-]*?(\d+(?:\.\d+)?)b(?:-[\w.-]+)?", base, re.IGNORECASE)
    if match is None or not owner or base.lower().startswith("gemma"):
        return None
    billions = float(match[1])
    return Model(
        name=name,
        weights_gib=billions * 1e9 * 2 / GIB,
        active_b=billions,
        bytes_per_active=2.0,
        sliding_layers=1,
        global_layers=max(round(16 * math.sqrt(billions / 8)), 1),
        kv_heads_sliding=1,
        kv_heads_global=4,
        window=1_024,
        max_position=131_072,
        layers=32,
    )


def published_tpu_images() -> frozenset[str]:
    """Return the digests of the TPU images that cannot load 4-bit weights."""
    return frozenset(_tables()["tpu_w4a16"]["published_images"])


def tpu_w4a16_gib(model: Model) -> float:
    """Return the TPU memory of a 4-bit checkpoint: as logged, or as on a GPU without a log."""
    size = model.name.removesuffix("-qat-w4a16")
    return _tables()["tpu_w4a16"]["weights_gib"].get(size, model.weights_gib)


def find_model(name: str) -> Model | None:
    """Return a checkpoint by its Hugging Face id or by the last part of a path, or None for an unknown model."""
    base = re.sub(
        r"-[0-9a-f]{16}$", "", name.rstrip("/").rsplit("/", 1)[-1]
    )  # a folder of weights can end in their hash
    if name == "simulated/tiny":
        return _checkpoint("tiny")
    match = re.fullmatch(r"gemma-4-(E2B|E4B|12B|26B-A4B|31B)((?:-[a-z0-9_]+)*)", base, re.IGNORECASE)
    if match is None:
        return _named_by_size(name)
    size, suffix = match[1].upper(), match[2].lower()
    model = _checkpoint(size)
    share = _SHARE_OF_BF16.get(suffix.rpartition("-nvfp4")[1] + name.partition("/")[0].lower()) or _SHARE_OF_BF16.get(
        "fp8" if "-fp8" in suffix else ""
    )
    if share is not None:
        return replace(
            model,
            name=f"{size}{suffix}",
            weights_gib=model.weights_gib * share,
            chip_gib={},
            bytes_per_active=model.bytes_per_active * share,
        )
    if "w4a16" not in suffix and ("qat" not in suffix or "unquantized" in suffix):
        return model
    row = _tables()["qat"].get(f"{size}-q4_0" if "q4_0" in suffix else size) or _tables()["qat"][size]
    return replace(
        model,
        name=f"{size}-qat-w4a16",
        weights_gib=row["weights_gib"] if "weights_gib" in row else row["weights_bytes"] / GIB,
        chip_gib={},
        bytes_per_active=0.65,  # about 16.4 GB over 25.23 billion parameters
        disk_gib=row["disk_bytes"] / GIB if "disk_bytes" in row else None,
        largest_tensor_gib=row.get("largest_tensor_gib", model.largest_tensor_gib),
        stored_head_gib=row.get("stored_head_gib", 0.0),
        is_w4a16=True,
        shards=row.get("shards", model.shards),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedAccelerator:
    """The hardware of the server: `devices` equal devices. Bandwidth and FLOPS are the peak of one device, from the vendors' data sheets.

    A step takes `interval_base_s`, `link_s_per_layer` with several devices, and the reading of weights at `bandwidth_share` of the peak
    (`w4a16_bandwidth_share` for 4-bit ones, `w4a16_expert_share` for 4-bit experts). Prompts reach `prefill_share` of the FLOPS.
    Each sequence adds `interval_per_sequence_s`. Beyond `engine.MEASURED_SEQUENCES` it adds the time in `more_sequences_s`, rows of the
    last sequence and its seconds; empty if all add the same. `verified_token_s`: time that each token of a step with proposals adds,
    0 if unknown. `expert_rows_gb_per_s`: rate at which each device brings all prompt tokens to their experts, 0 if that takes no time of its own.
    `default_block_size` is None if it depends on the length.
    """

    name: str
    kind: str
    devices: int
    total_gib: float
    bandwidth_gb_per_s: float
    tflops: float
    default_max_num_seqs: int
    default_max_num_batched_tokens: int
    default_block_size: int | None = None
    ttft_base_s: float
    interval_base_s: float
    interval_per_sequence_s: float
    bandwidth_share: float
    w4a16_bandwidth_share: float
    w4a16_expert_share: float
    prefill_share: float = 0.4
    link_s_per_layer: float = 0.0
    more_sequences_s: tuple[tuple[int, float], ...] = ()
    verified_token_s: float = 0.0
    expert_rows_gb_per_s: float = 0.0


def find_accelerator(name: str) -> SimulatedAccelerator | None:
    """Return an accelerator by Google's name, such as `nvidia-l4` or `v6e-4`, or None for an unknown name. `""` has practically no memory limit."""
    tables = _tables()
    generation, _, chips = name.partition("-")
    if generation in tables["tpu_generations"] and chips.isdecimal():
        devices = int(chips)
        row = _without_sources({**tables["tpu"], **tables["tpu_generations"][generation]})
        row["more_sequences_s"] = tuple((last, seconds) for last, seconds in row["more_sequences_s"])
        return SimulatedAccelerator(name=f"TPU {generation}-{devices}", kind="tpu", devices=devices, **row)
    found = tables["accelerators"].get("nvidia-l4" if name == "l4" else name)
    return None if found is None else SimulatedAccelerator(**_without_sources(found))
