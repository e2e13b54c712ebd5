"""Names of a model's linear layers and tables in its checkpoint and in vLLM, with the part of the model that each belongs to.

Gemma 4 has the names of transformers' classes (gemma4, gemma4_unified) and of vLLM's gemma4.py and gemma4_mm.py, whose prefixes
differ. Other families have the usual names of vLLM's models. A module of each kind has the parameters that `planning.model.spec`
counts for it, so the sum of a part is that of its tensors.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gemma_serving.planning.model.spec import LayerGroup, ModelSpec, Role, VisionTower

_PREFIXES: Final = ("model.language_model.", "language_model.model.", "model.")
"""Prefixes of the language model: in the checkpoint of a multimodal model, in vLLM, and in a model of text only."""
_FUSED_QKV: Final = ("QKVParallelLinear",)
_FUSED_GATE_UP: Final = ("MergedColumnParallelLinear",)
_ROW: Final = ("RowParallelLinear",)
_REPLICATED: Final = ("ReplicatedLinear",)
_EXPERTS: Final = ("RoutedExperts", "FusedMoE", "Linear")
"""vLLM lets a target `Linear` name the experts too (`_add_fused_moe_to_target_scheme_map`)."""
_TABLE: Final = ("VocabParallelEmbedding",)
_HEAD: Final = ("ParallelLMHead",)
_TOWER: Final[tuple[str, ...]] = ()
"""Class names do not reach towers here. In vLLM they do, and published configs list the tower's layers in `ignore`; a config
without the list is more likely to be incomplete, so its towers count as bf16."""


class NamedModule(Struct, frozen=True, kw_only=True):
    """A module that a quantization config can name."""

    names: tuple[str, ...]
    """Its names, the checkpoint's first. A target or an entry of `ignore` means it if it matches one of them."""
    classes: tuple[str, ...]
    """Its class in vLLM, with alternatives; empty if targets cannot mean it by class."""
    role: Role
    params: int
    fused: str = ""
    """Modules of one value are one matrix in vLLM and need one format; empty for a matrix of its own."""
    fused_names: tuple[str, ...] = ()
    """Names of that matrix in vLLM, which it tries before those of its parts."""


def named_modules(spec: ModelSpec, layers: Sequence[LayerGroup]) -> Iterator[NamedModule]:
    """Yield the modules of a model that a config can quantize. `layers` has one group of one layer for each decoder layer, in order."""
    for index, layer in enumerate(layers):
        yield from _attention(spec, layer, f"layers.{index}.")
        yield from _feed_forward(spec, layer, f"layers.{index}.")
        yield from _per_layer_input(spec, f"layers.{index}.")
    width = spec.layer_embedding_dim * spec.layers
    if width:
        yield _module(("per_layer_model_projection",), _REPLICATED, "mlp", spec.hidden * width)
        yield _module(("embed_tokens_per_layer",), _TABLE, "layer-embedding", spec.vocab * width)
    table = spec.vocab * spec.hidden
    yield _module(("embed_tokens",), _TABLE, "embedding", table)
    if not spec.tied_embeddings:
        names = ("lm_head", "language_model.lm_head")
        yield NamedModule(names=names, classes=_HEAD, role="lm-head", params=table)
    if spec.is_gemma4:
        yield from _vision(spec)
        yield from _audio(spec)


def _module(
    paths: Sequence[str], classes: tuple[str, ...], role: Role, params: int, fused: Sequence[str] = ()
) -> NamedModule:
    return NamedModule(
        names=_with_prefixes(paths),
        classes=classes,
        role=role,
        params=params,
        fused=fused[0] if fused else "",
        fused_names=_with_prefixes(fused),
    )


def _with_prefixes(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(prefix + path for prefix in _PREFIXES for path in paths)


def _attention(spec: ModelSpec, layer: LayerGroup, at: str) -> Iterator[NamedModule]:
    a = layer.attention
    query, key = spec.hidden * a.heads * a.head_dim, spec.hidden * a.kv_heads * a.head_dim
    has_value = not a.value_from_key
    at = f"{at}self_attn."
    fused = (f"{at}qkv_proj",)
    yield _module((f"{at}o_proj",), _ROW, "attention", query)
    if not layer.owns_kv or not key:
        # vLLM loads the query only. Keys and values in the files have its format.
        yield _module((f"{at}q_proj",), _FUSED_QKV, "attention", query + key * (1 + has_value))
        return
    yield _module((f"{at}q_proj",), _FUSED_QKV, "attention", query, fused)
    yield _module((f"{at}k_proj",), _FUSED_QKV, "attention", key, fused)
    if has_value:
        yield _module((f"{at}v_proj",), _FUSED_QKV, "attention", key, fused)


def _feed_forward(spec: ModelSpec, layer: LayerGroup, at: str) -> Iterator[NamedModule]:
    yield from _gated(spec, (f"{at}mlp.",), layer.mlp)
    experts = layer.experts
    if experts is None:
        return
    # vLLM looks at the first expert only, and its projections must agree.
    paths = (f"{at}experts.0.",) if spec.is_gemma4 else (f"{at}mlp.experts.0.", f"{at}block_sparse_moe.experts.0.")
    for gemma, mixtral in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
        names = tuple(path + (mixtral if "block_sparse" in path else gemma) for path in paths)
        params = experts.count * spec.hidden * experts.intermediate * spec.matrices_per_mlp // 3
        module = _module(names, _EXPERTS, "experts", params)
        yield replace(module, fused=f"{at}experts")
    shared = (f"{at}mlp.shared_expert.", f"{at}mlp.shared_experts.")
    yield from _gated(spec, shared, experts.shared_intermediate)
    router = ("router.proj",) if spec.is_gemma4 else ("mlp.gate", "mlp.router", "block_sparse_moe.gate")
    yield _module(tuple(f"{at}{path}" for path in router), (), "router", spec.hidden * experts.count)


def _gated(spec: ModelSpec, paths: tuple[str, ...], width: int) -> Iterator[NamedModule]:
    if not width:
        return
    size, fused = spec.hidden * width, tuple(f"{at}gate_up_proj" for at in paths)
    for name in ("gate_proj", "up_proj")[: spec.matrices_per_mlp - 1]:
        yield _module(tuple(f"{at}{name}" for at in paths), _FUSED_GATE_UP, "mlp", size, fused)
    yield _module(tuple(f"{at}down_proj" for at in paths), _ROW, "mlp", size)


def _per_layer_input(spec: ModelSpec, at: str) -> Iterator[NamedModule]:
    size = spec.hidden * spec.layer_embedding_dim
    if size:
        yield _module((f"{at}per_layer_input_gate",), _REPLICATED, "mlp", size)
        yield _module((f"{at}per_layer_projection",), _REPLICATED, "mlp", size)


def _tower(path: str, role: Role, params: int) -> NamedModule:
    return NamedModule(names=(f"model.{path}", path), classes=_TOWER, role=role, params=params)


def _vision(spec: ModelSpec) -> Iterator[NamedModule]:
    tower = spec.vision
    if tower is None:
        if spec.other_vision_params:
            yield _tower("embed_vision.patch_dense", "vision", 0)
        return
    for layer in range(tower.layers):
        at = f"vision_tower.encoder.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield _tower(f"{at}self_attn.{name}.linear", "vision", tower.hidden**2)
        for name in ("gate_proj", "up_proj", "down_proj")[-tower.matrices_per_mlp :]:
            yield _tower(f"{at}mlp.{name}.linear", "vision", tower.hidden * tower.intermediate)
    yield _tower("vision_tower.patch_embedder.input_proj", "vision", _patch_params(tower))
    yield _tower("embed_vision.embedding_projection", "vision", tower.hidden * spec.hidden)


def _patch_params(tower: VisionTower) -> int:
    return 3 * tower.patch_pixels**2 * tower.hidden


_AUDIO_LAYER: Final = {
    "feed_forward1.ffw_layer_1.linear": 4,
    "feed_forward1.ffw_layer_2.linear": 4,
    "feed_forward2.ffw_layer_1.linear": 4,
    "feed_forward2.ffw_layer_2.linear": 4,
    "self_attn.q_proj.linear": 1,
    "self_attn.k_proj.linear": 1,
    "self_attn.v_proj.linear": 1,
    "self_attn.post.linear": 1,
    "self_attn.relative_k_proj": 1,
    "lconv1d.linear_start.linear": 2,
    "lconv1d.linear_end.linear": 1,
}
"""Linear layers of a conformer layer, with their parameters in squares of its width."""


def _audio(spec: ModelSpec) -> Iterator[NamedModule]:
    # The first layer counts for all, because `ModelSpec` has the sum of the tower.
    whole = sum(_AUDIO_LAYER.values())
    for name, share in _AUDIO_LAYER.items():
        if spec.audio_params:
            yield _tower(f"audio_tower.layers.0.{name}", "audio", spec.audio_params * share // whole)
