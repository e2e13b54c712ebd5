"""A model by its architecture: layers, attention, experts, embeddings, towers, and the tensors that follow from them.

Parameter counts come from dimensions, not from tables of sizes, so an unmeasured model is planned by the
same arithmetic as a measured one.

Sources: the checkpoints' config.json, transformers' Gemma 4 classes (gemma4, gemma4_unified), and vLLM's gemma4.py, gemma4_mm.py
and gemma4_unified.py (0.23) for how a server loads them.
"""

from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct

from gemma_serving.planning.data.quantization import FULL_BYTES

Role = Literal[
    "embedding", "layer-embedding", "attention", "mlp", "experts", "router", "norm", "lm-head", "vision", "audio"
]
Placement = Literal["split", "replicated", "kv", "whole-on-tpu"]
"""Placement on tensor-parallel devices: divided, whole on each, divided by KV heads (and copied if too few exist), or divided on GPUs and
whole on each TPU device. vLLM on TPU (JAX) divides key and value projections evenly, without copies."""


class Attention(Struct, frozen=True, kw_only=True):
    """A kind of attention layer."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    """Length of the attention window in tokens; None is full attention."""
    value_from_key: bool = False
    """The checkpoint has no value projection, because the key projection serves as both (Gemma 4's `attention_k_eq_v`)."""


class Experts(Struct, frozen=True, kw_only=True):
    """The sparse part of a mixture-of-experts layer."""

    count: int
    active: int
    """Experts per token."""
    intermediate: int
    shared_intermediate: int = 0
    """Width of the experts that every token uses, if any."""


class LayerGroup(Struct, frozen=True, kw_only=True):
    """Identical layers."""

    count: int
    attention: Attention
    mlp: int
    """Width of the dense feed-forward block; 0 if none exists."""
    experts: Experts | None = None
    owns_kv: bool = True
    """False if the layer reads the KV cache of an earlier one."""


class VisionTower(Struct, frozen=True, kw_only=True):
    """A vision transformer before the language model; `None` in `ModelSpec` if none exists."""

    layers: int
    hidden: int
    intermediate: int
    heads: int = 16
    patch_pixels: int = 16
    positions: int = 10_240
    patches_per_token: int = 9
    """Patches pooled into one soft token (3 x 3)."""
    matrices_per_mlp: int = 3


class ModelSpec(Struct, frozen=True, kw_only=True, cache_hash=True):
    """A decoder model with its image and audio encoders."""

    name: str
    hidden: int
    vocab: int
    groups: tuple[LayerGroup, ...]
    tied_embeddings: bool = True
    norms_per_layer: int = 4
    matrices_per_mlp: int = 3
    """3 for gated feed-forward blocks, 2 for plain ones."""
    layer_embedding_dim: int = 0
    """Width of the per-layer embedding of each token (Gemma 4 E2B, E4B); 0 if none exists."""
    vision: VisionTower | None = None
    other_vision_params: int = 0
    """Parameters of the embedders of images and audio without a tower (Gemma 4 12B)."""
    audio_params: int = 0
    is_multimodal: bool = False
    """True if the model accepts images and video: its config.json has `vision_config`."""
    accepts_audio: bool = False
    """True if the model accepts audio: its config.json has `audio_config`."""
    vision_bidirectional: bool = False
    """Image tokens see each other both ways, so an item cannot be split over two steps."""
    max_positions: int = 131_072
    rope_cache_dims: tuple[int, ...] = ()
    """Head dimensions for which the server keeps a cosine and sine table of `max_positions` rows."""
    is_gemma4: bool = False
    tpu_torch_path: bool = False
    """True if vLLM on TPU has no JAX implementation and serves it through its PyTorch code."""
    native_quantization: str | None = None
    """Precision of the checkpoint's files, a name of `planning.data.quantization`; None is bf16."""
    packing: str = ""
    """Quantization method that the config names (awq, gptq, auto-round); empty for compressed-tensors, and for unquantized files."""
    quantizes: tuple[str, ...] = ()
    """Parts beside the layers of the language model that the checkpoint quantizes too: router, encoders, and embedders (Gemma 4 12B)."""
    stored_bytes: tuple[tuple[Role, float], ...] = ()
    """Bytes per parameter of roles that differ from `native_quantization`: parts that stay in bf16, quantized embeddings, and 4-bit layers by
    their groups."""
    has_fp4_activations: bool = False
    """True if the checkpoint says how a server rounds the inputs of NVFP4 layers to 4 bits; without, their products are in bf16."""
    kv_cache_dtype: str = "auto"
    """Type of the KV cache that the checkpoint asks for, which vLLM uses unless `vllm.kvCacheDtype` names another."""
    block_width: int = 0
    """Weights of a row in one block of FP8, which has one scale; 0 with a scale for each row."""
    head_in_checkpoint: bool = False
    """True if the checkpoint stores an output head although it is tied to the embeddings. vLLM drops it on GPU and keeps it on TPU."""
    lacks_shared_kv: bool = False
    """True if the checkpoint has no keys and values of layers that read another layer's KV cache. vLLM on TPU asks for them."""
    checkpoint_bytes: int | None = None
    """Size of the checkpoint according to its index; None computes it."""
    target_hidden: int = 0
    """Width of the target's hidden states that a draft model reads; 0 for any other model."""
    centroids: int = 0
    """Clusters of the vocabulary, of which a draft model computes only the most likely (Gemma 4 E2B, E4B); 0 if it computes all."""
    unmodelled: tuple[str, ...] = ()
    """Unknowns of an architecture outside the catalog, each as a clause."""

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return sum(group.count for group in self.groups)

    @property
    def is_moe(self) -> bool:
        """True if some layers send each token to a few experts of many."""
        return any(group.experts is not None for group in self.groups)

    def table_bytes(self, table: Role) -> float:
        """Return the bytes per parameter of a table of embeddings, less than FULL_BYTES if it is packed."""
        return dict(self.stored_bytes).get(table, FULL_BYTES)

    @property
    def packs_embeddings(self) -> bool:
        """True if the table of embeddings is quantized."""
        return self.table_bytes("embedding") < FULL_BYTES

    @property
    def has_own_head(self) -> bool:
        """True if the checkpoint has an output head although it is tied to the embeddings.

        vLLM only looks rows up in a packed table, so its head is a matrix of its own (compressed_tensors_embedding.py of 0.32.0). That it has the
        table's format rests on one source: with it, E2B with 4-bit tables has 2.87 GiB of weights, and 2.86 are logged (test_config.py).
        """
        return self.head_in_checkpoint or (self.tied_embeddings and self.packs_embeddings)


class Tensor(Struct, frozen=True):
    """Parameters that are stored, placed and read alike."""

    role: Role
    params: int
    placement: Placement = "split"
    quantizable: bool = False
    kv_heads: int = 0
    """For placement `kv`: heads that can be divided."""
    copy: bool = False
    """True for a second copy, not in the checkpoint, that vLLM on GPU keeps so keys and values are one matrix."""
    active_share: float = 1.0
    """Fraction that one token reads: active experts of all; 0 for lookup tables."""
    expert_width: int = 0
    """Columns of one expert's projections, which a kernel may pad on each device; 0 for other tensors."""


_PIXEL_CHANNELS: Final = 3
_SOFT_PIXELS: Final = 48
"""Side of the square of pixels that is one soft token: 3 x 3 patches of 16."""
_VALUES_OF_AN_INDEX: Final = 4
"""An index of 8 bytes in values of 2."""


@lru_cache(maxsize=64)
def tensors(model: ModelSpec) -> tuple[Tensor, ...]:
    """Return the tensor inventory, with identical tensors of identical layers summed. Parameters, not bytes."""
    found = _embeddings(model)
    for group in model.groups:
        found += _attention(model, group)
        found += _feed_forward(model, group)
        # Gemma has norms of queries and keys, and one scale.
        norms = 2 * group.attention.head_dim + 1 if model.is_gemma4 else 0
        found.append(Tensor("norm", group.count * (model.norms_per_layer * model.hidden + norms), "replicated"))
    found.append(Tensor("norm", model.hidden, "replicated"))
    found += _towers(model)
    return tuple(t for t in found if t.params > 0)


@lru_cache(maxsize=64)
def linear_params(model: ModelSpec) -> int:
    """Return the parameters of quantizable layers that every token uses: all except the experts."""
    return sum(t.params for t in tensors(model) if t.quantizable and t.role != "experts" and not t.copy)


def _embeddings(model: ModelSpec) -> list[Tensor]:
    # With tied embeddings, the table is the output head too, and every decoded token reads the whole table.
    table = model.vocab * model.hidden
    dim = model.layer_embedding_dim
    width = dim * model.layers
    # A draft model has two states of its target in, one out, and the vocabulary clusters with their order.
    order = _VALUES_OF_AN_INDEX * model.vocab if model.centroids else 0
    return [
        Tensor("embedding", table, active_share=1.0 if model.tied_embeddings else 0.0),
        Tensor("lm-head", 0 if model.tied_embeddings else table),
        Tensor("mlp", 3 * model.target_hidden * model.hidden, "replicated"),
        Tensor("mlp", model.centroids * model.hidden, "replicated"),
        Tensor("norm", order, "replicated", active_share=0.0),
        Tensor("layer-embedding", model.vocab * width, active_share=0.0),
        Tensor("mlp", model.hidden * width, "whole-on-tpu", quantizable=True),
        Tensor("mlp", 2 * model.hidden * width, "replicated", quantizable=True),
        Tensor("norm", model.layers * model.hidden + dim if dim else 0, "replicated"),
    ]


def _attention(model: ModelSpec, group: LayerGroup) -> list[Tensor]:
    a = group.attention
    query = model.hidden * a.heads * a.head_dim
    key = group.count * model.hidden * a.kv_heads * a.head_dim
    in_checkpoint, copied = (key, key) if a.value_from_key else (2 * key, 0)
    return [
        Tensor("attention", group.count * 2 * query, quantizable=True),
        Tensor("attention", in_checkpoint, "kv", quantizable=True, kv_heads=a.kv_heads),
        Tensor("attention", copied, "kv", quantizable=True, kv_heads=a.kv_heads, copy=True),
    ]


def _feed_forward(model: ModelSpec, group: LayerGroup) -> list[Tensor]:
    column = group.count * model.matrices_per_mlp * model.hidden
    found = [Tensor("mlp", column * group.mlp, quantizable=True)]
    experts = group.experts
    if experts is not None:
        width, active_share = experts.intermediate, experts.active / experts.count
        scales = model.hidden + experts.count if model.is_gemma4 else 0
        found += [
            Tensor(
                "experts",
                column * experts.count * width,
                quantizable=True,
                active_share=active_share,
                expert_width=width,
            ),
            Tensor("mlp", column * experts.shared_intermediate, quantizable=True),
            Tensor("router", group.count * model.hidden * experts.count, "replicated"),
            Tensor("norm", group.count * (scales + (3 * model.hidden if model.is_gemma4 else 0)), "replicated"),
        ]
    return found


def _towers(model: ModelSpec) -> list[Tensor]:
    found: list[Tensor] = []
    v = model.vision
    if v is not None:
        per_layer = 4 * v.hidden * v.hidden + v.matrices_per_mlp * v.hidden * v.intermediate
        patches = _PIXEL_CHANNELS * v.patch_pixels**2 * v.hidden
        params = v.layers * per_layer + patches + v.hidden * model.hidden
        tables = 2 * v.positions * v.hidden + v.layers * 4 * v.hidden
        found.append(Tensor("vision", params, active_share=0.0))
        found.append(Tensor("vision", tables, "whole-on-tpu", active_share=0.0))
    # 12B has no tower: a matrix for the patches of a soft token, and tables and projections that are whole on each TPU device.
    patches = min(_PIXEL_CHANNELS * _SOFT_PIXELS**2 * model.hidden, model.other_vision_params)
    found.append(Tensor("vision", patches, active_share=0.0))
    found.append(Tensor("vision", model.other_vision_params - patches, "whole-on-tpu", active_share=0.0))
    found.append(Tensor("audio", model.audio_params, active_share=0.0))
    return found


def text_params(model: ModelSpec) -> int:
    """Return the parameters of the language model in the checkpoint: without towers and without vLLM's copies."""
    return sum(t.params for t in tensors(model) if t.role not in {"vision", "audio"} and not t.copy)


@lru_cache(maxsize=64)
def active_params(model: ModelSpec) -> int:
    """Return the parameters that one token uses: without embedding rows and idle experts, with the output head."""
    return round(
        sum(t.params * t.active_share for t in tensors(model) if t.role not in {"vision", "audio"} and not t.copy)
    )
