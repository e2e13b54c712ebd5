"""The quantization_config of a config.json: one format, and the parts of the model that stay in bf16."""

import re

import pytest

from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.model.hf_config import model_from_config
from gemma_serving.planning.model.support import support_of

CONFIGS = {name.split("-")[2]: row["config"] for name, row in data_file("models.json").items()}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
ATTENTION = r"re:.*self_attn\.(q|k|v|o)_proj$"
EXPERTS = r"re:.*\.experts\.\d+\.(gate|up|down)_proj$"
MLP = r"re:.*language_model.*\.mlp\.(gate|up|down)_proj$"
TOWERS = ("lm_head", "re:.*vision_tower.*", "re:.*audio_tower.*", "model.embed_vision.embedding_projection")
ROUTERS = ("re:.*router.*", "model.layers.0.mlp.gate", r"re:.*mlp\.gate$", "re:.*mlp.shared_expert_gate$")
NAMED = "model.language_model.layers.3.mlp.down_proj"


def read(size: str, block: dict[str, object], **more: object):
    return model_from_config({**CONFIGS[size], **more, "quantization_config": block}, name="own")


def groups(*stated: tuple[dict[str, object], list[str]], ignore: tuple[str, ...] = ("lm_head",)) -> dict[str, object]:
    found = {f"group_{i}": {"targets": targets, "weights": weights} for i, (weights, targets) in enumerate(stated)}
    return {"quant_method": "compressed-tensors", "config_groups": found, "ignore": list(ignore)}


@pytest.mark.parametrize(
    ("block", "scheme", "in_bf16"),
    [
        (groups((NVFP4, ["Linear"])), "nvfp4", ()),
        (groups((NVFP4, ["Linear"]), ignore=TOWERS), "nvfp4", ()),
        (groups((NVFP4, ["Linear"]), ignore=ROUTERS), "nvfp4", ()),
        (groups((NVFP4, [ATTENTION]), (NVFP4, [EXPERTS, MLP])), "nvfp4", ()),
        (groups((INT4, [EXPERTS])), "w4a16", ("attention", "mlp")),
        (groups((INT4, ["Linear"]), ignore=("re:.*self_attn.*",)), "w4a16", ("attention",)),
        (groups((INT4, ["Linear"]), ignore=(NAMED,)), "w4a16", ("mlp",)),
        (groups((NVFP4, ["Linear"]), ignore=("re:.*self_attn.*",)), "nvfp4-mlp", ()),
        (groups((NVFP4, ["Linear"]), ignore=("re:.*self_attn.*", "re:.*mlp.*")), "nvfp4-experts", ()),
        (groups((FP8, ["Linear"]), ({"num_bits": 8}, ["Gemma4Attention"])), "fp8", ()),
    ],
    ids=[
        "all",
        "towers",
        "routers",
        "two groups",
        "experts",
        "attention",
        "one matrix",
        "mlp",
        "experts only",
        "cache",
    ],
)
def test_parts_that_a_config_leaves_out_stay_in_bf16(block: dict[str, object], scheme: str, in_bf16: tuple[str, ...]):
    """A part counts as bf16 as soon as one of its layers does: the server never needs more than planned."""
    spec = read("26B", block)
    assert spec.native_quantization == scheme
    assert spec.stored_bytes == tuple((role, 2.0) for role in in_bf16)


KV_FP8 = {"num_bits": 8, "type": "float", "dynamic": False}


@pytest.mark.parametrize(
    ("method", "named", "planned"),
    [
        ("modelopt", {"kv_cache_quant_algo": "FP8"}, "fp8"),
        ("modelopt", {"kv_cache_scheme": KV_FP8}, "fp8"),
        ("modelopt_fp4", {"kv_cache_scheme": {**KV_FP8, "dynamic": True}}, "auto"),
        ("modelopt", {"quantization": {"kv_cache_quant_algo": "fp8"}}, "fp8"),
        ("modelopt", {"kv_cache_quant_algo": "INT8"}, "auto"),
        ("modelopt", {"kv_cache_quant_algo": "NVFP4"}, "auto"),
        ("modelopt", {"kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "auto"),
        ("modelopt", {}, "auto"),
        ("compressed-tensors", {"kv_cache_scheme": KV_FP8}, "fp8"),
        ("compressed-tensors", {"kv_cache_scheme": None}, "auto"),
    ],
)
def test_the_kv_cache_is_what_vllm_takes_from_the_files(method: str, named: dict[str, object], planned: str):
    """The answers of get_kv_cache_quant_algo_string in vLLM 0.22.1 to 0.32.0, and of attention.py for compressed-tensors."""
    stored = {**groups((NVFP4, ["Linear"])), "quant_method": method, "quant_algo": "NVFP4"}
    spec = read("31B", {**stored, **named})
    assert spec.kv_cache_dtype == planned
    assert any("NVFP4 KV cache" in one for one in spec.unmodelled) is ("NVFP4" in str(named) or "4" in str(named))


EXAMPLE = ("lm_head", "re:.*embed.*", "re:.*router", "re:.*vision_tower.*", "re:.*audio_tower.*")


@pytest.mark.parametrize(
    ("size", "ignore", "quantizes"),
    [
        ("26B", ("lm_head",), ("encoders", "router")),
        ("26B", EXAMPLE, ()),
        ("26B", ("lm_head", "model.language_model.layers.0.router.proj", r"re:model\.(vision|embed).*"), ()),
        ("26B", ("re:.*vision.*",), ("router",)),
        ("26B", ("re:.*router", "re:.*vision_tower.*"), ("encoders",)),
        ("26B", ("re:(",), ()),
        ("31B", ("lm_head", "re:.*vision.*"), ()),
        ("E2B", ("re:.*vision.*",), ("encoders",)),
        ("E2B", EXAMPLE, ()),
        ("12B", ("lm_head",), ("embedders",)),
        ("12B", ("re:.*embed_.*",), ()),
    ],
)
def test_the_parts_beside_the_language_model_that_a_file_quantizes_are_judged_by_release(
    size: str, ignore: tuple[str, ...], quantizes: tuple[str, ...]
):
    """vLLM has no scales of a router, nor of 12B's embedders, and those of encoders from 0.23.0."""
    spec = read(size, groups((FP8, ["Linear"]), ignore=ignore))
    assert spec.quantizes == quantizes
    card = ACCELERATORS["RTX PRO 6000"]
    found = {version: support_of("fp8", spec, card, image_version=version).answer for version in ("0.22.1", "0.31.0")}
    old = "unknown" if quantizes or size == "12B" else "yes"
    dead = not {"router", "embedders"}.isdisjoint(quantizes)
    assert found == {
        "0.22.1": "no" if dead and size != "12B" else old,
        "0.31.0": "no" if dead else "yes",
    }


@pytest.mark.parametrize("size", ["26B", "12B"])
def test_only_a_class_of_compressed_tensors_means_them(size: str):
    assert read(size, groups((FP8, [ATTENTION, MLP]))).quantizes == ()
    assert read(size, {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}).quantizes == ()


def test_what_ignore_leaves_open_is_said():
    unknown = read("26B", groups((INT4, ["Linear"]), ignore=(NAMED, "re:.*per_layer.*"))).unmodelled
    assert "how many layers of its mlp stay in bf16 (all are counted)" in unknown
    assert "which layers its quantization_config leaves in bf16 by 're:.*per_layer.*'" in unknown


def test_groups_of_integers_count_their_scales_and_zero_points():
    spec = read("31B", groups(({**INT4, "group_size": 128, "symmetric": False}, ["Linear"])))
    assert dict(spec.stored_bytes)["mlp"] == 0.5 + 2.5 / 128


def test_tables_have_the_format_of_the_target_that_names_them():
    tables = {"embedding": 0.5625, "layer-embedding": 0.5625}
    assert dict(read("E2B", groups((INT4, ["Linear", "Embedding"]))).stored_bytes) == tables
    head = read("31B", groups((FP8, ["Linear", "lm_head"]), ignore=()), tie_word_embeddings=False)
    assert dict(head.stored_bytes) == {"lm-head": pytest.approx(1 + 4 / 2_816)}


def test_tables_have_a_format_of_their_own_beside_layers_of_one():
    """12B with int8 layers and 4-bit tables, served on v5e by a public rig."""
    int8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    spec = read("12B", groups((int8, ["Linear"]), (INT4, ["Embedding", "lm_head"]), ignore=()))
    assert spec.native_quantization == "fp8"
    assert dict(spec.stored_bytes) == {"embedding": 0.5625}


AUTOROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
FOUR = 0.5 + 2.5 / 128


@pytest.mark.parametrize(
    ("block", "attention", "mlp"),
    [
        (AUTOROUND, FOUR, FOUR),
        ({**AUTOROUND, "extra_config": {r".*self_attn.*": {"bits": 16}}}, 2.0, FOUR),
        ({**AUTOROUND, "extra_config": {"mlp.down_proj": {"bits": 16}}}, FOUR, 2.0),
        ({**AUTOROUND, "extra_config": {"lm_head": {"bits": 16}, r"mlp\.": {"bits": 4}}}, FOUR, FOUR),
        (AWQ, FOUR, FOUR),
        ({**AWQ, "modules_to_not_convert": ["vision_tower"]}, FOUR, FOUR),
        ({**AWQ, "modules_to_not_convert": ["self_attn"]}, 2.0, FOUR),
    ],
)
def test_layers_that_autoround_and_awq_leave_out_stay_in_bf16(block: dict[str, object], attention: float, mlp: float):
    spec = read("12B", block)
    assert (spec.native_quantization, spec.packing) == ("w4a16", block["quant_method"])
    assert dict(spec.stored_bytes) == {"attention": attention, "mlp": mlp}


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (groups((FP8, [ATTENTION]), (NVFP4, [EXPERTS, MLP])), "(fp8 of 1.001 bytes, nvfp4 of 0.5625 bytes)"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "has several formats (MIXED_PRECISION)"),
        ({**AUTOROUND, "extra_config": {"self_attn": {"bits": 8}}}, "8 bits in groups of 128 for 'self_attn'"),
        ({**AUTOROUND, "extra_config": {r"mlp\.": {"bits": 4, "group_size": 32}}}, "4 bits in groups of 32"),
        (groups((FP8, ["re:.*linear_attn.*"])), "by 're:.*linear_attn.*' is unknown"),
        (groups((FP8, ["re:.*vision_tower.*"])), "no target of quantization_config names a layer"),
        (groups((FP8, ["Linear"]), ({"num_bits": 2, "type": "int"}, [MLP])), "own, group_1: quantization"),
    ],
)
def test_several_or_unknown_formats_are_refused_in_one_sentence(block: dict[str, object], said: str):
    with pytest.raises(PlanningError, match=re.escape(said)) as caught:
        read("26B", block)
    assert str(caught.value).startswith("own")
