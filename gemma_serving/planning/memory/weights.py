"""Bytes of weights: in the checkpoint, on one device, and read per token.

Rules (vLLM 0.23, gemma4.py and its layers; tpu-inference, gemma4.py):
- Linear layers, experts, embeddings and the output head are divided over the tensor-parallel devices; norms, routers and the small
  per-layer gates of E2B and E4B are whole on each; key and value projections are divided by KV heads and copied if a device
  gets less than one.
- vLLM on GPU adds a value projection if the checkpoint has none (k_eq_v), position tables for the model's full length, and a
  buffer for per-layer embeddings; it omits towers whose modalities are limited to 0, but not the embedder of 12B, which is not marked as a
  tower (gemma4_unified.py in 0.28.0 and 0.31.0). While it builds the model, it allocates an
  output head before it ties it to the embeddings. From 0.29.0 on, it keeps the head stored in a checkpoint of E2B or E4B
  (`planning.question.releases.keeps_stored_head`): 8.01 GiB of weights in the log of the L4 (source qat-e2b-l4), including the head's 0.75.
  With packed embeddings the head is a packed matrix of its own (`ModelSpec.has_own_head`).
- vLLM on TPU (JAX) loads no audio tower and keeps no copies, except an output head that the checkpoint stores; models without a JAX
  implementation (12B) use its PyTorch path, which keeps the copies and a separate output head.
- On TPU, position tables of the image encoder, the projection of per-layer embeddings, and the embedder of 12B but for its patches are whole on
  each device; the JAX implementation divides key and value projections evenly and has the router in fp32. Seen in upstream's own server,
  built without a TPU (dev/docs/compiled.md): 31B on four chips has 14.598 GiB of weights, as its machine logs.
- The grouped matrix product of vLLM on TPU (backend GMM_TP, layers/common/process_weights/moe_weights.py, get_w13_padding_config)
  pads each device's part of every expert's gate and up projections to a multiple of 128 columns; down projections keep their rows.
  The boot log of 26B-A4B at tensor parallelism 4 shows 704 columns stored as 1,024, and 15.29 GiB of weights on each chip
  (xbill9/gemma4-dev@395bf64, gce-vllm-v6e4-26b, 2026-09-26). Expert parallelism is not planned.
- Images with patches for 4-bit tables of embeddings (WNA16EmbedMethod) have them whole on each device, padded to 128 columns, and divide the 4-bit
  output head, whose scales they widen to 4 bytes (xbill9/gemma4-dev, tpu-vllm-v5e4-12b-w8a8emb4 and tpu-vllm-v5e4-2b-q4w4a16emb4). vLLM on TPU
  has no such tables.
- Rules of qwix convert the loaded bf16 layers of the language model: until then both forms exist. The compiler reuses most of the bf16
  buffers (16.8 GiB for 31B on each of four v6e chips, 9.7 for E2B on one); the plan counts none as reused.
- That product stores the scales of 4-bit experts in 4 bytes (process_weights/moe_weights.py of tpu-inference 0.32.0), and repeats a
  down projection's until no group spans two devices (vllm-project/tpu-inference#3660): 26B-A4B has 704 rows, and
  176 on each of four devices are 11 groups of 16, not 5.5 of 32. Scales of linear layers stay bf16.
"""

import math
from functools import lru_cache
from typing import Final

from msgspec import Struct

from gemma_serving.planning.data.overheads import TPU_LANES
from gemma_serving.planning.data.quantization import FULL_BYTES, GROUP, INT4_BYTES, SCHEMES, Scheme
from gemma_serving.planning.model.spec import ModelSpec, Tensor, tensors
from gemma_serving.planning.question.releases import keeps_stored_head
from gemma_serving.planning.question.resolved import Resolved, Runtime
from gemma_serving.planning.units import align_to, ceil_div

_ROUTER_BYTES: Final = 4
"""vLLM on TPU (JAX) keeps the router's matrix in fp32."""
_SCALE_BYTES: Final = 4
"""Scales of 4-bit experts and of a 4-bit output head on a TPU."""
_TABLES: Final = frozenset({"embedding", "layer-embedding"})
_MXFP4_TILE: Final = 256
"""Columns to a multiple of which vLLM pads MXFP4 experts on a GPU: 13.47 GiB of gpt-oss-20b and 64.38 of 120b on an H100 (llm-d's table of memory
profiles), 13.44 and 64.45 planned. Marlin on older cards pads two per cent more (quantization/mxfp4.py)."""


class WeightSizes(Struct, frozen=True, kw_only=True):
    """Bytes; `device` and the fields after it are per device, before offload."""

    checkpoint: float
    device: float
    layers: float
    """The part of `device` that offload can move: the decoder layers."""
    read_per_token: float
    """Bytes read per decoded token at batch 1."""
    expert_read: float
    """The part of `read_per_token` for active experts."""
    experts: float
    """All experts on one device."""
    load_extra: float
    """Allocated on top of `device` while the model is built."""
    tables: float
    """Position tables and buffers, counted in `device`."""


def weights_of(resolved: Resolved) -> WeightSizes:
    """Return the weights of a resolved deployment. The file keeps its precision if vLLM converts it while loading."""
    return _weights(
        resolved.spec,
        resolved.scheme,
        SCHEMES[resolved.spec.native_quantization or "bf16"],
        resolved.runtime,
        resolved.tp,
        batched_tokens=resolved.max_num_batched_tokens if resolved.spec.layer_embedding_dim else 0,
        with_vision=resolved.serves_images_or_video or resolved.is_tpu or resolved.spec.vision is None,
        with_audio=resolved.serves_audio,
        keeps_head=resolved.spec.has_own_head if resolved.is_tpu else keeps_stored_head(resolved),
        repeats_scales=resolved.accelerator.generation == "ampere",
    )


@lru_cache(maxsize=256)
def _weights(
    spec: ModelSpec,
    scheme: Scheme,
    file_scheme: Scheme,
    runtime: Runtime,
    tp: int,
    *,
    batched_tokens: int,
    with_vision: bool,
    with_audio: bool,
    keeps_head: bool,
    repeats_scales: bool,
) -> WeightSizes:
    # Without FP8 units, Marlin has a bf16 scale of each block for each of its rows (marlin_utils_fp8.py).
    repeated = FULL_BYTES / spec.block_width if repeats_scales and spec.block_width else 0.0
    # Pairs, because equal tensors of two groups of layers are two.
    stored = [(tensor, tensor.params * _bytes(tensor, scheme, spec)) for tensor in tensors(spec)]
    whole_head = spec.vocab * spec.hidden * spec.table_bytes("embedding") if spec.tied_embeddings else 0.0
    stored_head = whole_head if spec.has_own_head else 0.0
    in_file = (tensor.params * _bytes(tensor, file_scheme, spec) for tensor, _ in stored if not tensor.copy)
    checkpoint = sum(in_file) + stored_head
    scale = spec.checkpoint_bytes / checkpoint if spec.checkpoint_bytes else 1.0
    device = layers = read = expert_read = experts = 0.0
    for tensor, size in stored:
        if not _is_loaded(tensor, runtime, with_vision=with_vision, with_audio=with_audio):
            continue
        stored_bytes = size * scale + tensor.params * tensor.quantizable * repeated
        share = stored_bytes * _share(tensor, tp, runtime) * _device_factor(tensor, spec, scheme, runtime, tp)
        read += share * tensor.active_share
        if runtime == "tpu-jax" and tensor.role in _TABLES and spec.table_bytes(tensor.role) < 1:
            share = spec.vocab * _packed_row_bytes(tensor.params // spec.vocab)
        device += share
        if tensor.role in {"attention", "mlp", "experts", "router"}:
            layers += share
        if tensor.role == "experts":
            experts += share
            expert_read += share * tensor.active_share
    converted, scales = _converted(spec, scheme, runtime, tp)
    head = whole_head / tp
    if runtime == "tpu-jax" and spec.table_bytes("embedding") < 1:
        head *= (INT4_BYTES + _SCALE_BYTES / GROUP) / spec.table_bytes("embedding")
    tables = 0.0
    if runtime != "tpu-jax":
        tables += sum(spec.rope_cache_dims) * spec.max_positions * FULL_BYTES
    if runtime == "cuda" and spec.layer_embedding_dim:
        tables += batched_tokens * spec.layers * spec.layer_embedding_dim * FULL_BYTES
    own_head = head if runtime == "tpu-torch" or keeps_head else 0.0
    return WeightSizes(
        checkpoint=checkpoint * scale,
        device=device + tables + own_head + scales,
        layers=layers,
        read_per_token=read,
        expert_read=expert_read,
        experts=experts,
        load_extra=head if runtime == "cuda" and not keeps_head else converted,
        tables=tables,
    )


def _packed_row_bytes(width: int) -> int:
    """Return the bytes of a row of a 4-bit table on a TPU: words of 32 bits and 16-bit scales, each filled up to whole lanes."""
    words = align_to(ceil_div(width, 8), TPU_LANES)
    scales = align_to(ceil_div(width, GROUP), TPU_LANES)
    return 4 * words + 2 * scales


def _converted(spec: ModelSpec, scheme: Scheme, runtime: Runtime, tp: int) -> tuple[float, float]:
    """Return the bytes, on one device, that rules of qwix convert, in bf16, and those of their scales; 0 without such rules.

    Each output row of a layer has a scale, shared like the rows. Where the inputs are shared instead, each device has all of them.
    """
    if not scheme.is_of_qwix:
        return 0.0, 0.0
    parts = (one for one in tensors(spec) if one.quantizable and not one.copy and one.role not in scheme.unquantized)
    converted = sum(FULL_BYTES * one.params * _share(one, tp, runtime) for one in parts)
    shared = whole = 0
    for group in spec.groups:
        attention, experts = group.attention, group.experts
        heads = attention.heads + attention.kv_heads * (1 if attention.value_from_key else 2)
        width = group.mlp + (experts.shared_intermediate if experts is not None else 0)
        shared += group.count * (heads * attention.head_dim + (spec.matrices_per_mlp - 1) * width)
        whole += group.count * 2 * spec.hidden
    if spec.layer_embedding_dim:
        whole += spec.layers * (2 * spec.layer_embedding_dim + spec.hidden)
    return converted, FULL_BYTES * (shared / tp + whole)


def _bytes(tensor: Tensor, scheme: Scheme, spec: ModelSpec) -> float:
    by_scheme = scheme.bytes_of(tensor.role) if tensor.quantizable else FULL_BYTES
    return dict(spec.stored_bytes).get(tensor.role, by_scheme)


def _is_loaded(tensor: Tensor, runtime: Runtime, *, with_vision: bool, with_audio: bool) -> bool:
    if tensor.role == "audio":
        return with_audio and runtime == "cuda"
    if tensor.role == "vision":
        return with_vision
    return not (tensor.copy and runtime == "tpu-jax")


def _share(tensor: Tensor, tp: int, runtime: Runtime) -> float:
    """Return the part of a tensor that one device holds."""
    if tensor.placement == "split":
        return 1 / tp
    if tensor.placement == "kv":
        return 1 / (tp if runtime == "tpu-jax" else min(tp, tensor.kv_heads))
    if tensor.placement == "whole-on-tpu" and runtime == "cuda":
        return 1 / tp
    return 1.0


def _device_factor(tensor: Tensor, spec: ModelSpec, scheme: Scheme, runtime: Runtime, tp: int) -> float:
    """Return the size of a tensor on its devices relative to the checkpoint, because of padding and precision."""
    if tensor.expert_width and runtime != "cuda":
        return _tpu_expert_factor(tensor, scheme, tp, spec.matrices_per_mlp)
    if tensor.expert_width and scheme.name == "mxfp4-experts":
        return align_to(spec.hidden, _MXFP4_TILE) / spec.hidden
    if tensor.role == "router" and runtime == "tpu-jax":
        return _ROUTER_BYTES / FULL_BYTES
    return 1.0


def _tpu_expert_factor(tensor: Tensor, scheme: Scheme, tp: int, matrices: int) -> float:
    """Return the size of the experts on a TPU relative to the checkpoint.

    All matrices except the last, the down projection, get more columns; in 4 bits all of them get wider scales.
    """
    part = ceil_div(tensor.expert_width, tp)
    wide = down = stored = scheme.bytes_of(tensor.role)
    if scheme.name == "w4a16":
        wide = INT4_BYTES + _SCALE_BYTES / GROUP
        down = INT4_BYTES + _SCALE_BYTES / math.gcd(GROUP, part)
    return ((matrices - 1) * align_to(part, TPU_LANES) / part * wide + down) / (matrices * stored)
