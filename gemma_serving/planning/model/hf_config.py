"""A model from its Hugging Face files: config.json, and the safetensors index for the exact size of the checkpoint.

Pure: takes parsed JSON and reads no file. Supports decoder models with full and sliding attention, grouped heads, mixtures of
experts, per-layer embeddings and shared KV (Gemma 4), and the usual quantized checkpoints. Multi-head latent attention and linear
attention are rejected, because their caches follow other rules.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from msgspec.structs import replace

from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.model.config_reader import ConfigReader
from gemma_serving.planning.model.quantization_config import with_quantization
from gemma_serving.planning.model.spec import Attention, Experts, LayerGroup, ModelSpec, VisionTower
from gemma_serving.planning.numbers import is_number

_PLAIN_MLP: Final = frozenset({"gpt2", "gpt_neox", "falcon", "opt", "phi", "starcoder2"})
"""Model types whose feed-forward block has two matrices instead of three."""
_STATE_SPACE: Final = ("mamba_", "ssm_", "linear_conv_", "linear_num_", "rwkv_")
"""Key prefixes of models that keep state in addition to, or instead of, the KV cache."""
_SMALL_TOWER: Final = 768
_SMALL_TOWER_HEADS: Final = 12
_HEADS: Final = 16
"""Heads of a vision tower whose config.json states none: 12 with a width of 768, which is transformers' default for Gemma 4, and 16 otherwise."""
_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_DRAFTERS: Final = frozenset({"gemma4_assistant", "gemma4_unified_assistant"})
"""Draft models that read the KV cache of their target, so their attention has no keys and values."""
_GEMMA4: Final = frozenset({"gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"}) | _DRAFTERS
_DEFAULTS: Final[Mapping[str, Mapping[str, object]]] = {
    "gemma2": {
        "vocab_size": 256_000,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4_096,
        "sliding_window_pattern": 2,
        "max_position_embeddings": 8_192,
        "tie_word_embeddings": True,
    },
    "gemma3_text": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4_096,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
    },
}
"""Values of keys that published configs omit, by model type (transformers' Gemma2Config and Gemma3TextConfig, 4.57)."""
_SUPPORTED_LAYERS: Final = frozenset({_FULL, _SLIDING})
_HEAD: Final = "lm_head.weight"
_KEY_NORM: Final = "self_attn.k_norm.weight"
_MOST_LAYERS: Final = 1_000
"""Layers of a model at most. A repository's config can name any number, and each layer takes time and memory here."""
_AUDIO_LAYER_WIDTHS: Final = 4 * 4 + 5 + 3
"""Parameters of a conformer layer in squares of its width: two feed-forward blocks, attention, convolution without its kernel."""


def model_from_config(
    config: Mapping[str, object], *, name: str, index: Mapping[str, object] | None = None
) -> ModelSpec:
    """Return the architecture that a config.json describes; `index` is model.safetensors.index.json, if present.

    Raises PlanningError for a missing or invalid key, and for unsupported architectures.
    """
    top = ConfigReader(config, name)
    text = _with_defaults(top.block("text_config") or top)
    if text.whole("kv_lora_rank", default=0):
        raise PlanningError(f"{name}: multi-head latent attention (kv_lora_rank) is not supported. Measure it instead.")
    state = sorted(key for key in text.values if key.startswith(_STATE_SPACE))
    if state:
        raise PlanningError(f'{name}: state-space layers ("{state[0]}") are not supported. Measure it instead.')
    layers = text.positive("num_hidden_layers")
    if layers > _MOST_LAYERS:
        raise PlanningError(f'{text.where}: "num_hidden_layers" is {layers}; it must be {_MOST_LAYERS:,} or less.')
    types = _layer_types(text, layers)
    gemma = text.text("model_type") in _GEMMA4 or top.text("model_type") in _GEMMA4
    hidden = text.positive("hidden_size")
    head_dim = text.positive("head_dim", default=max(hidden // text.positive("num_attention_heads"), 1))
    global_dim = text.positive("global_head_dim", default=head_dim)
    rope = text.block("rope_scaling")
    factor = rope.values.get("factor") if rope and "linear" in {rope.text("rope_type"), rope.text("type")} else 1
    full_dim = int(global_dim * factor) if is_number(factor) else global_dim
    tied = top.flag("tie_word_embeddings", default=text.flag("tie_word_embeddings", default=gemma))
    vision, audio = top.block("vision_config"), top.block("audio_config")
    unified = "unified" in top.text("model_type")
    drafts = top.text("model_type") in _DRAFTERS
    stored = _stored_tensors(index)
    per_layer = _layers(text, types, head_dim, global_dim, gemma=gemma, asks_target=drafts)
    spec = ModelSpec(
        name=name,
        hidden=hidden,
        vocab=text.positive("vocab_size"),
        groups=tuple(replace(layer, count=count) for layer, count in Counter(per_layer).items()),
        tied_embeddings=tied,
        norms_per_layer=4 if gemma or "gemma" in text.text("model_type") else 2,
        matrices_per_mlp=2 if text.text("model_type") in _PLAIN_MLP else 3,
        layer_embedding_dim=text.whole("hidden_size_per_layer_input", default=0) if gemma else 0,
        vision=_tower(vision) if vision is not None and not unified else None,
        other_vision_params=_unified_embedders(vision, audio, hidden) if vision is not None and unified else 0,
        audio_params=0 if unified else _audio(audio),
        is_multimodal=vision is not None,
        accepts_audio=audio is not None,
        vision_bidirectional=text.text("use_bidirectional_attention") == "vision",
        max_positions=text.positive("max_position_embeddings", default=131_072),
        # vLLM's table for linear scaling has a row for each scaled position (linear_scaling_rope.py); windows are not scaled.
        rope_cache_dims=tuple(sorted({full_dim if kind == _FULL else head_dim for kind in types})),
        is_gemma4=gemma,
        tpu_torch_path=unified,
        checkpoint_bytes=_index_bytes(index, name),
        # llm-compressor writes a head for models that tie it to the embeddings.
        head_in_checkpoint=tied and any(name.endswith(_HEAD) for name in stored),
        lacks_shared_kv=0 < sum(name.endswith(_KEY_NORM) for name in stored) < layers,
        unmodelled=tuple(_unmodelled(top, text, index=index, gemma=gemma)),
        target_hidden=top.positive("backbone_hidden_size") if drafts else 0,
        centroids=top.positive("num_centroids") if drafts and top.flag("use_ordered_embeddings") else 0,
    )
    return with_quantization(spec, top)


def _with_defaults(text: ConfigReader) -> ConfigReader:
    """Return the text part of a config with the values that its model type has for omitted keys."""
    given = {key: value for key, value in text.values.items() if value is not None or key == "sliding_window"}
    return ConfigReader({**_DEFAULTS.get(text.text("model_type"), {}), **given}, text.where)


def _unmodelled(
    top: ConfigReader, text: ConfigReader, *, index: Mapping[str, object] | None, gemma: bool
) -> Iterator[str]:
    """Yield the facts that the config does not specify or the planner does not compute, each as a clause."""
    model_type = text.text("model_type")
    if index is None:
        yield "the size of its files, which is computed because no safetensors index was passed"
    if not gemma:
        yield from _unknown_of_architecture(top, text)
    has_window = bool(text.whole("sliding_window", default=0))
    if has_window and "layer_types" not in text.values and not text.whole("sliding_window_pattern", default=0):
        yield "which layers use a window (layer_types is missing, so sliding_window applies to all)"
    if not gemma and any(top.block(key) is not None for key in ("vision_config", "audio_config")):
        yield "the runtime memory of its image or audio encoders"
    stated = (top.block("text_config") or top).values
    omitted = [key for key in _DEFAULTS.get(model_type, {}) if stated.get(key) is None and top.values.get(key) is None]
    if omitted:
        yield f"whether it changes the defaults of {model_type} ({', '.join(omitted)}), which its config omits"
    if text.whole("num_nextn_predict_layers", default=0):
        yield "its draft layers, whose weights are not counted"


def _unknown_of_architecture(top: ConfigReader, text: ConfigReader) -> Iterator[str]:
    """Yield what is unknown of an architecture other than Gemma 4."""
    architectures = top.values.get("architectures")
    named = cast("list[object]", architectures)[0] if isinstance(architectures, list) and architectures else None
    architecture = named or top.text("model_type") or "of this config"
    yield f"whether the image's vLLM has the architecture {architecture}"
    yield "padding and copies of its kernels"
    if top.values.get("tie_word_embeddings") is None and text.values.get("tie_word_embeddings") is None:
        yield "whether it has a separate output head (tie_word_embeddings is missing, so one is counted)"


def _layer_types(text: ConfigReader, layers: int) -> Sequence[str]:
    given = text.values.get("layer_types")
    if isinstance(given, list):
        types = [str(item) for item in cast("list[object]", given)]
        unknown = sorted(set(types) - _SUPPORTED_LAYERS)
        if unknown:
            raise PlanningError(
                f"{text.where}: layers of type {', '.join(unknown)} are not supported. Supported: {_FULL} and {_SLIDING}."
            )
        if len(types) != layers:
            raise PlanningError(
                f'{text.where}: "layer_types" has {len(types)} layers, but "num_hidden_layers" is {layers}.'
            )
        return types
    if not text.whole("sliding_window", default=0) or not text.flag("use_sliding_window", default=True):
        return [_FULL] * layers
    pattern = text.whole("sliding_window_pattern", default=0)
    return [_FULL if pattern and (i + 1) % pattern == 0 else _SLIDING for i in range(layers)]


def _layers(
    text: ConfigReader, types: Sequence[str], head_dim: int, global_dim: int, *, gemma: bool, asks_target: bool
) -> tuple[LayerGroup, ...]:
    """Return a group of one layer for each decoder layer, in order."""
    heads = text.positive("num_attention_heads")
    kv_heads = text.positive("num_key_value_heads", default=heads)
    value_from_key = gemma and text.flag("attention_k_eq_v")
    global_kv = text.positive("num_global_key_value_heads", default=kv_heads) if value_from_key else kv_heads
    window = text.whole("sliding_window", default=0) or None
    if asks_target:
        kv_heads = global_kv = 0
        value_from_key = False
    sliding = Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window)
    full = Attention(heads=heads, kv_heads=global_kv, head_dim=global_dim, value_from_key=value_from_key)
    first_shared = len(types) - text.whole("num_kv_shared_layers", default=0)
    wide = 2 if text.flag("use_double_wide_mlp") else 1
    mlp = text.whole("intermediate_size", default=0)
    experts = _experts(text)
    found: list[LayerGroup] = []
    for i, kind in enumerate(types):
        is_sparse, owns = experts is not None and _is_sparse(text, i), i < first_shared
        found.append(
            LayerGroup(
                count=1,
                attention=sliding if kind == _SLIDING else full,
                # Gemma 4 runs its experts in addition to the dense block; other families run them instead of it.
                mlp=0 if is_sparse and not gemma else mlp * (1 if owns else wide),
                experts=experts if is_sparse else None,
                owns_kv=owns,
            )
        )
    return tuple(found)


def _experts(text: ConfigReader) -> Experts | None:
    count = text.whole("num_experts", "num_local_experts", "n_routed_experts", default=0)
    if not count:
        return None
    width = text.positive("moe_intermediate_size", "intermediate_size")
    shared = text.whole("shared_expert_intermediate_size", default=text.whole("n_shared_experts", default=0) * width)
    return Experts(
        count=count,
        active=text.positive("num_experts_per_tok", "top_k_experts"),
        intermediate=width,
        shared_intermediate=shared,
    )


def _is_sparse(text: ConfigReader, layer: int) -> bool:
    dense = text.values.get("mlp_only_layers")
    if isinstance(dense, list) and layer in cast("list[object]", dense):
        return False
    step = text.positive("decoder_sparse_step", default=1)
    return layer >= text.whole("first_k_dense_replace", default=0) and (layer + 1) % step == 0


def _tower(vision: ConfigReader) -> VisionTower:
    hidden = vision.positive("hidden_size", "embed_dim")
    return VisionTower(
        layers=vision.positive("num_hidden_layers", "depth", "num_layers"),
        hidden=hidden,
        heads=vision.positive(
            "num_attention_heads", "num_heads", default=_SMALL_TOWER_HEADS if hidden == _SMALL_TOWER else _HEADS
        ),
        intermediate=vision.positive("intermediate_size", default=4 * vision.positive("hidden_size", "embed_dim")),
        patch_pixels=vision.positive("patch_size", default=16),
        positions=vision.whole("position_embedding_size", default=0),
        patches_per_token=vision.positive("pooling_kernel_size", default=1) ** 2,
        matrices_per_mlp=2 if vision.text("model_type").startswith(("siglip", "clip")) else 3,
    )


def _unified_embedders(vision: ConfigReader, audio: ConfigReader | None, hidden: int) -> int:
    patch = vision.positive("model_patch_size", default=48) ** 2 * 3
    sound = audio.positive("audio_embed_dim", default=640) if audio is not None else 0
    return (patch + 2 * vision.positive("mm_posemb_size", default=1_120) + hidden + sound) * hidden


def _audio(audio: ConfigReader | None) -> int:
    if audio is None:
        return 0
    width = audio.positive("hidden_size", default=1_024)
    out = audio.positive("output_proj_dims", default=1_536)
    layer = _AUDIO_LAYER_WIDTHS * width**2 + audio.positive("conv_kernel_size", default=5) * width
    return audio.positive("num_hidden_layers", default=12) * layer + width * width + width * out + out * out


def _stored_tensors(index: Mapping[str, object] | None) -> tuple[str, ...]:
    """Return the names of the tensors in the files; empty without an index."""
    tensors = index.get("weight_map") if index is not None else None
    return tuple(map(str, cast("dict[object, object]", tensors))) if isinstance(tensors, dict) else ()


def _index_bytes(index: Mapping[str, object] | None, name: str) -> int | None:
    if index is None:
        return None
    metadata = index.get("metadata")
    size = cast("Mapping[str, object]", metadata).get("total_size") if isinstance(metadata, dict) else None
    if is_number(size) and size > 0:
        return int(size)
    raise PlanningError(f'{name}: the safetensors index has no "metadata.total_size".')
