"""config.json of Gemma 4 from the planner's record of its dimensions, complete enough for vLLM to build the model.

A value that is transformers' own default (models/gemma4 and models/gemma4_unified, 5.24) is left to transformers, which reads the file.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from gemma_serving.contracts.fields import as_mapping
from gemma_serving.planning.settings.vllm_args import DEFAULT_IMAGE_TOKENS

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_SOFT_CAP: Final = 30.0
"""`final_logit_softcapping` of each Gemma 4 checkpoint; transformers' default is none (vLLM's recipe and tpu-inference's gemma4.py read it)."""
_VISION_HEAD_WIDTH: Final[Mapping[int, int]] = {768: 64, 1_152: 72}
"""Width of an attention head by the vision tower's width: 12 heads in E2B and E4B (transformers' default), 16 in 26B-A4B and 31B (SigLIP so400m,
which has the same 27 layers of 1,152)."""
_SMALL_VISION: Final = 768
_IMAGE_TOKENS: Final = DEFAULT_IMAGE_TOKENS
"""Tokens of an image at its default resolution (model cards). vLLM reads the key (gemma4_mm.py), and transformers has no default."""
_OF_THE_TARGET: Final = ("num_key_value_heads", "num_global_key_value_heads", "attention_k_eq_v")
"""Dimensions that a draft model shares with its target, because it reads the target's KV cache (vLLM's gemma4_mtp.py)."""
_PATTERN: Final = "sliding_window_pattern"
_QUANTIZED_BITS: Final = 4
_GROUP: Final = 32


def gemma4_config(recorded: Mapping[str, object], *, is_w4a16: bool = False) -> dict[str, object]:
    """Return config.json for a `config` of gemma_serving/planning/data/models.json. `is_w4a16`: Google's 4-bit checkpoint of the same dimensions."""
    kind = str(recorded["model_type"])
    is_unified = kind == "gemma4_unified"
    text = _text(as_mapping(recorded["text_config"]), kind)
    config: dict[str, object] = {
        "architectures": [f"Gemma4{'Unified' if is_unified else ''}ForConditionalGeneration"],
        "model_type": kind,
        "dtype": "bfloat16",  # model cards: each checkpoint's stored type
        "tie_word_embeddings": True,
        "text_config": text,
        "vision_config": {"model_type": "gemma4_unified_vision"} if is_unified else _vision(recorded),
    }
    if "audio_config" in recorded:
        config["audio_config"] = {"model_type": f"{kind}_audio"}
    if is_w4a16:
        config["quantization_config"] = w4a16_config()
    return config


def gemma4_drafter_config(recorded: Mapping[str, object], target: Mapping[str, object]) -> dict[str, object]:
    """Return config.json for a `drafter` of gemma_serving/planning/data/models.json, which drafts for the `config` next to it."""
    kind = str(recorded["model_type"])
    of_target = as_mapping(target["text_config"])
    text = {
        **{key: of_target[key] for key in _OF_THE_TARGET if key in of_target},
        **_text(as_mapping(recorded["text_config"]), kind.removesuffix("_assistant")),
        "vocab_size_per_layer_input": 0,  # transformers refuses its own default here (configuration_gemma4_assistant.py)
    }
    return {
        **recorded,
        "architectures": ["Gemma4AssistantForCausalLM"],  # transformers' class of the model type
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "text_config": text,
    }


def w4a16_config() -> dict[str, object]:
    """Return quantization_config of Google's w4a16 checkpoints (compressed-tensors, pack-quantized).

    4-bit integers, symmetric, one bf16 scale for each group of 32; embeddings, router, towers and output head stay in bf16
    (vllm-project/recipes#514, as `planning.data.quantization`).
    """
    weights: dict[str, object] = {
        "num_bits": _QUANTIZED_BITS,
        "type": "int",
        "group_size": _GROUP,
        "strategy": "group",
        "symmetric": True,
        "dynamic": False,
    }
    group: dict[str, object] = {"format": "pack-quantized", "targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*embed_tokens.*", "re:.*vision.*", "re:.*audio.*", "re:.*router.*"],
    }


def _text(recorded: Mapping[str, object], kind: str) -> dict[str, object]:
    """Return text_config. The pattern counts the layers from one full layer to the next; the last layer is always full."""
    layers, pattern = cast("int", recorded["num_hidden_layers"]), cast("int", recorded[_PATTERN])
    return {
        **{key: value for key, value in recorded.items() if key != _PATTERN},
        "model_type": f"{kind}_text",
        "dtype": "bfloat16",
        "layer_types": list(_layer_types(layers, pattern)),
        "final_logit_softcapping": _SOFT_CAP,
        # transformers' default is 256; only E2B and E4B have such embeddings, and their records say so.
        "hidden_size_per_layer_input": recorded.get("hidden_size_per_layer_input", 0),
        "enable_moe_block": "num_experts" in recorded,  # 26B-A4B; the default is False
    }


def _layer_types(layers: int, pattern: int) -> Iterator[str]:
    for layer in range(1, layers + 1):
        yield _FULL if layer % pattern == 0 or layer == layers else _SLIDING


def _vision(recorded: Mapping[str, object]) -> dict[str, Any]:
    tower = as_mapping(recorded["vision_config"])
    width = cast("int", tower["hidden_size"])
    head = _VISION_HEAD_WIDTH[width]
    is_small = width == _SMALL_VISION
    return {
        **tower,
        "model_type": "gemma4_vision",
        "dtype": "bfloat16",
        "head_dim": head,
        "num_attention_heads": width // head,
        "num_key_value_heads": width // head,
        "default_output_length": _IMAGE_TOKENS,
        # Both defaults are False. The small towers clip, and the poolers of the large ones have a bias and a scale (transformers' gemma4).
        "use_clipped_linears": is_small,
        "standardize": not is_small,
    }
