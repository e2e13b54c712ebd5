"""Models from config.json: other architectures give their published sizes."""

import json
import re
from pathlib import Path

import pytest

from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.devices import parse_device
from gemma_serving.planning.model.hf_config import model_from_config
from gemma_serving.planning.model.spec import active_params, linear_params, tensors, text_params
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.recommendation import TEXT_ONLY
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import VllmOptions

GIB = 2**30


CONFIGS = {name.split("-")[2]: row["config"] for name, row in data_file("models.json").items()}
VISION = {"hidden_size": 1_024, "intermediate_size": 4_096, "num_hidden_layers": 24}
LLAMA_8B = json.loads((Path(__file__).parents[1] / "fixtures/models/other-8b/config.json").read_text())
QWEN_30B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2_048,
    "intermediate_size": 6_144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "sliding_window": None,
    "tie_word_embeddings": False,
}

GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2_880,
    "intermediate_size": 2_880,
    "num_experts_per_tok": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201_088,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4"},
}


@pytest.mark.parametrize(
    ("config", "billions", "active"), [(LLAMA_8B, 8.030, 7.505), (QWEN_30B, 30.532, 3.04)], ids=["dense", "experts"]
)
def test_other_architectures_give_their_published_size(config: dict[str, object], billions: float, active: float):
    spec = model_from_config(config, name="other")
    assert sum(t.params for t in tensors(spec)) / 1e9 == pytest.approx(billions, abs=0.002)
    assert active_params(spec) / 1e9 == pytest.approx(active, abs=0.005)


GEMMA_2_27B = {
    "model_type": "gemma2",
    "hidden_size": 4_608,
    "intermediate_size": 36_864,
    "num_hidden_layers": 46,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "vocab_size": 256_000,
    "sliding_window": 4_096,
    "max_position_embeddings": 8_192,
}
GEMMA_3_27B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 5_376,
        "intermediate_size": 21_504,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1_024,
    },
    "vision_config": {"hidden_size": 1_152, "intermediate_size": 4_304, "num_hidden_layers": 27, "patch_size": 14},
}


def test_gemma_2_and_3_are_read_as_published():
    """Their configs omit what the model type defines: vocabulary, the pattern of windows, the tied output head."""
    two, three = (model_from_config(one, name="gemma") for one in (GEMMA_2_27B, GEMMA_3_27B))
    assert text_params(two) / 1e9 == pytest.approx(27.23, abs=0.01)
    assert text_params(three) / 1e9 == pytest.approx(27.01, abs=0.01)
    assert {group.attention.window: group.count for group in two.groups} == {4_096: 23, None: 23}
    assert {group.attention.window: group.count for group in three.groups} == {1_024: 52, None: 10}
    assert (two.rope_cache_dims, three.rope_cache_dims) == ((128,), (128, 8 * 128))
    assert any("vocab_size, sliding_window_pattern" in one for one in three.unmodelled)
    one, both = (
        Question().changed(model="gemma", accelerator=name, model_spec=two, vllm=VllmOptions(max_model_len=2_048))
        for name in ("L4", "L4x2")
    )
    assert not plan(one).fits
    assert not plan(both).fits


FP8_BLOCKS = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}


@pytest.mark.parametrize(
    "block",
    [
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": FP8_BLOCKS}}},
    ],
)
def test_a_card_without_fp8_repeats_the_scale_of_a_block_for_each_row(block: dict[str, object]):
    spec = model_from_config({**LLAMA_8B, "quantization_config": block}, name="other")
    ampere, hopper = (
        plan(Question().changed(model="other", accelerator=card, model_spec=spec)).memory.weights_gib
        for card in ("A100-80GB", "H100")
    )
    assert ampere - hopper == pytest.approx(linear_params(spec) * 2 / 128 / GIB)


def test_a_checkpoint_of_the_catalog_in_fp8_blocks_repeats_them_too():
    """Two RTX 3090 log 15.85 GiB of weights each (mathiassamuelson/inference-engineering-training, 31B FP8-block)."""
    device = parse_device("memory=24GiB,bandwidth=936GB/s,tflops=71,usable=23.56GiB,count=2,name=RTX 3090")
    model = "RedHatAI/gemma-4-31B-it-FP8-block"
    text = VllmOptions(limit_mm_per_prompt=TEXT_ONLY)
    found = plan(Question().changed(model=model, accelerator=device.name, device=device, vllm=text))
    assert found.memory.weights_gib == pytest.approx(15.85, rel=0.02)


@pytest.mark.parametrize(
    ("block", "scheme"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "w4a16"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}, "fp8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}, "w4a16"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp"}, "mxfp4"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "mxfp4-pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}},
            },
            "mxfp4",
        ),
    ],
)
def test_quantized_checkpoints_are_smaller(block: dict[str, object], scheme: str):
    plain = model_from_config(LLAMA_8B, name="other")
    small = model_from_config({**LLAMA_8B, "quantization_config": block}, name="other")
    p, q = (plan(Question().changed(model="other", accelerator="L4", model_spec=s)) for s in (plain, small))
    assert q.quantization == scheme
    assert q.memory.weights_gib < p.memory.weights_gib * 0.65


@pytest.mark.parametrize(("layers", "experts", "measured"), [(24, 32, 13.47), (36, 128, 64.38)], ids=["20b", "120b"])
def test_gpt_oss_takes_what_an_h100_logged(layers: int, experts: int, measured: float):
    """llm-d's table of memory profiles, vLLM 0.11. Only experts are in MXFP4, and their columns are padded."""
    config = {**GPT_OSS, "num_hidden_layers": layers, "num_local_experts": experts}
    config["layer_types"] = GPT_OSS["layer_types"][:layers]
    spec = model_from_config(config, name="other")
    assert plan(
        Question().changed(model="other", accelerator="H100", model_spec=spec)
    ).memory.weights_gib == pytest.approx(measured, rel=0.005)


@pytest.mark.parametrize(
    ("target", "table", "per_layer"),
    [("re:.*embed_tokens$", 0.5625, 2), ("re:.*embed_tokens_per_layer$", 2, 0.5625), ("Embedding", 0.5625, 0.5625)],
)
def test_embeddings_in_four_bits_count_as_such(target: str, table: float, per_layer: float):
    weights = {"num_bits": 4, "group_size": 32, "type": "int"}
    groups = {
        "group_0": {"targets": [target], "weights": weights},
        "group_1": {"targets": ["Linear"], "weights": weights},
    }
    config = {**CONFIGS["E2B"], "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}}}
    block: dict[str, object] = {"quant_method": "compressed-tensors", "config_groups": groups}
    linear: dict[str, object] = {"quant_method": "compressed-tensors", "config_groups": {"group_1": groups["group_1"]}}
    some, none = (model_from_config({**config, "quantization_config": one}, name="other") for one in (block, linear))
    a, b = (
        plan(Question().changed(model="other", accelerator="H100", model_spec=spec)).memory.weights_gib
        for spec in (none, some)
    )
    # vLLM only looks rows up in a packed table, so its output head is a second matrix in 4 bits (xbill9/gemma4-dev@0f041aee3b6b,
    # gpu-vllm-g4dn-2b-w4a16, 2026-09-30: 2.86 GiB of weights, and 2.64 GiB of files).
    head = 262_144 * 1_536 * (table if table < 2 else 0)
    tables = (262_144 * 1_536 * (2 - table) + 262_144 * 35 * 256 * (2 - per_layer) - head) / 2**30
    assert a - b == pytest.approx(tables, rel=0.001)


def test_a_conversion_that_leaves_attention_alone_is_larger():
    block = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.language_model.layers.0.self_attn*"]}
    spec = model_from_config({**CONFIGS["31B"], "quantization_config": block}, name="other")
    read = plan(Question().changed(model="other", accelerator="H100", model_spec=spec))
    known = plan(Question().changed(model="nvidia/Gemma-4-31B-IT-NVFP4", accelerator="H100"))
    assert read.quantization == "nvfp4-mlp"
    block["ignore"] = ["model.language_model.layers.0.self_attn*", "model.language_model.layers.0.mlp*"]
    assert (
        model_from_config({**CONFIGS["26B"], "quantization_config": block}, name="other").native_quantization
        == "nvfp4-experts"
    )
    assert read.memory.weights_gib == pytest.approx(known.memory.weights_gib, rel=0.002)


def test_what_is_not_known_of_an_architecture_is_said():
    def not_known(config: dict[str, object], **more: object) -> str:
        spec = model_from_config(config, name="org/other", **more)  # pyright: ignore[reportArgumentType] - a test's shorthand
        planned = plan(Question().changed(model="org/other", accelerator="H100", model_spec=spec))
        return next(finding.message for finding in planned.findings if finding.id == "MOD01")

    index = {"metadata": {"total_size": 16_060_522_496}}
    assert "8.03 billion parameters in bf16, 14.96 GiB of files" in not_known(LLAMA_8B)
    assert "no safetensors index was passed" in not_known(LLAMA_8B)
    assert "no index" not in not_known(LLAMA_8B, index=index)
    assert "has the architecture LlamaForCausalLM" in not_known({**LLAMA_8B, "architectures": ["LlamaForCausalLM"]})
    assert "tie_word_embeddings is missing" in not_known(_without(LLAMA_8B, "tie_word_embeddings"))
    assert "sliding_window applies to all" in not_known({**LLAMA_8B, "sliding_window": 4_096})
    assert "image or audio encoders" in not_known({**LLAMA_8B, "vision_config": VISION})
    assert "Not known" not in not_known(CONFIGS["31B"], index={"metadata": {"total_size": 62_546_000_000}})


def _without(config: dict[str, object], key: str) -> dict[str, object]:
    return {k: v for k, v in config.items() if k != key}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (_without(LLAMA_8B, "hidden_size"), '"hidden_size" is missing'),
        (_without(LLAMA_8B, "num_hidden_layers"), '"num_hidden_layers" is missing'),
        ({**LLAMA_8B, "num_hidden_layers": 10**12}, "is 1000000000000; it must be 1,000 or less"),
        ({**LLAMA_8B, "num_attention_heads": 0}, '"num_attention_heads" is 0'),
        ({**LLAMA_8B, "vocab_size": "many"}, "\"vocab_size\" is 'many'"),
        ({**LLAMA_8B, "linear_num_value_heads": 32}, 'state-space layers ("linear_num_value_heads")'),
        ({**LLAMA_8B, "kv_lora_rank": 512}, "multi-head latent attention"),
        ({**LLAMA_8B, "layer_types": ["linear_attention"] * 32}, "linear_attention are not supported"),
        ({**LLAMA_8B, "layer_types": ["full_attention"] * 31}, "has 31 layers"),
        ({**LLAMA_8B, "quantization_config": {"quant_method": "gptq", "bits": 3}}, '"gptq" with 3 bits'),
        (
            {**LLAMA_8B, "quantization_config": {"quant_method": "auto-round", "bits": 8, "data_type": "mx_fp"}},
            '"auto-round" with 8 bits',
        ),
        ({}, '"num_hidden_layers" is missing'),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_sentence(config: dict[str, object], said: str):
    with pytest.raises(PlanningError, match=re.escape(said)) as caught:
        model_from_config(config, name="other")
    assert "other" in str(caught.value)


def test_an_index_without_a_size_is_refused():
    with pytest.raises(PlanningError, match=r"metadata\.total_size"):
        model_from_config(LLAMA_8B, name="other", index={"weight_map": {}})


@pytest.mark.parametrize(("layers", "lacks"), [(0, False), (15, True), (35, False)])
def test_the_index_shows_whether_shared_layers_have_keys(layers: int, lacks: bool):
    names = {
        f"model.language_model.layers.{layer}.self_attn.k_norm.weight": "model.safetensors" for layer in range(layers)
    }
    index = {"metadata": {"total_size": 1}, "weight_map": names}
    assert model_from_config(CONFIGS["E2B"], name="own", index=index).lacks_shared_kv is lacks


def test_a_vision_tower_without_a_table_of_positions_is_planned():
    config = {**CONFIGS["31B"], "vision_config": {**CONFIGS["31B"]["vision_config"]}}
    config["vision_config"].pop("position_embedding_size", None)
    spec = model_from_config(config, name="own")
    assert spec.vision is not None
    assert spec.vision.positions == 0
    planned = plan(Question().changed(model="own", accelerator="H200", model_spec=spec))
    assert planned.memory.activations_gib > 0
