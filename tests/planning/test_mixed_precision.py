"""Checkpoints with several formats: each part at its own bytes, by the groups of their quantization_config."""

import re
from itertools import permutations

import pytest

from gemma_serving.planning import Deployment, PlanningError, VllmOptions, Workload, plan
from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.model.hf_config import model_from_config
from gemma_serving.planning.model.layer_names import named_modules
from gemma_serving.planning.model.spec import LayerGroup, tensors
from gemma_serving.planning.model.support import support_of
from gemma_serving.planning.speed.prefill import prompt_of
from gemma_serving.planning.speed.steps import flops_per_s
from tests.records import replace

GIB = 2**30
CONFIGS = {name.split("-")[2]: row["config"] for name, row in data_file("models.json").items()}
FP8, NVFP4, INT4 = "fp8", "nvfp4", "w4a16"
FORMATS = {
    FP8: ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}),
    NVFP4: ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}),
    INT4: ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}),
}
ATTENTION = r"re:.*self_attn\.(q|k|v|o)_proj$"
EXPERTS = r"re:.*\.experts\.\d+\.(gate|up|down)_proj$"
MLP = r"re:.*language_model.*\.mlp\.(gate|up|down)_proj$"
LAST = r"re:.*layers\.(27|28|29)\.mlp\.(gate|up|down)_proj$"
UNSLOTH = ((FP8, [ATTENTION]), (NVFP4, [EXPERTS, MLP]))
"""Groups of unsloth/gemma-4-26B-A4B-it-NVFP4@20df0542 and gemma-4-12b-it-NVFP4@b1f64973, as Danmoreng/gem16@4928f3fa reads and describes them."""
BYTES = {FP8: 1 + 4 / 2_816, NVFP4: 0.5625, INT4: 0.5625}


def read(size: str, *groups: tuple[str, list[str]], ignore: tuple[str, ...] = ("lm_head",), **more: object):
    block = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            f"group_{i}": {
                "targets": targets,
                "format": FORMATS[name][0],
                "weights": FORMATS[name][1],
                "input_activations": None if name == INT4 else FORMATS[name][1],
            }
            for i, (name, targets) in enumerate(groups)
        },
        "ignore": list(ignore),
    }
    return model_from_config({**CONFIGS[size], **more, "quantization_config": block}, name="own")


def checkpoint_gib(spec, accelerator: str = "H100") -> float:
    return plan(Deployment(model="own", accelerator=accelerator, model_spec=spec)).memory.checkpoint_gib


@pytest.mark.parametrize("groups", list(permutations(UNSLOTH)), ids=["fp8 first", "nvfp4 first"])
def test_fp8_attention_with_nvfp4_experts_has_the_size_of_its_files_in_any_order(groups):
    """16,903,408,612 bytes of tensors in the inventory of the published checkpoint."""
    spec = read("26B", *groups)
    assert spec.native_quantization == "nvfp4"
    assert spec.parts == (("attention", "fp8"), ("experts", "nvfp4"), ("mlp", "nvfp4"))
    assert checkpoint_gib(spec) == pytest.approx(16_903_408_612 / GIB, rel=0.001)
    options = VllmOptions(max_model_len=8_192)
    planned = plan(Deployment(model="own", accelerator="L4", model_spec=spec, vllm=options))
    assert planned.fits
    assert planned.memory.weights_gib == pytest.approx(16.1, abs=0.1)


def test_text_alone_takes_what_a_server_logged():
    """vLLM 0.26.0 without images: 6.05 GiB of parameters on the host and 9.16 GiB on the GPU (the same source)."""
    limits = {"image": 0, "audio": 0, "video": 0}
    options = VllmOptions(max_model_len=1_024, max_num_seqs=1, limit_mm_per_prompt=limits)
    planned = plan(Deployment(model="own", accelerator="L4", model_spec=read("26B", *UNSLOTH), vllm=options))
    assert planned.memory.weights_gib == pytest.approx(6.05 + 9.16, rel=0.015)


def test_the_dense_12b_has_the_size_of_its_file():
    """9,304,966,064 bytes with 104,759,808 of image and audio projections, which its language model does not have."""
    spec = read("12B", (FP8, [ATTENTION]), (NVFP4, [MLP]))
    assert checkpoint_gib(spec) == pytest.approx((9_304_966_064 - 104_759_808) / GIB, rel=0.001)


@pytest.mark.parametrize("size", list(CONFIGS))
def test_named_modules_have_the_parameters_of_their_parts(size: str):
    spec = model_from_config(CONFIGS[size], name="own")
    layers: list[LayerGroup] = [group for group in spec.groups for _ in range(group.count)]
    for role in ("attention", "mlp", "experts", "embedding", "layer-embedding", "lm-head", "router"):
        counted = sum(tensor.params for tensor in tensors(spec) if tensor.role == role and not tensor.copy)
        named = sum(module.params for module in named_modules(spec, layers) if module.role == role)
        assert named == counted, role


@pytest.mark.parametrize(
    ("ignore", "attention", "mlp", "scheme"),
    [
        (("lm_head", "re:.*vision_tower.*"), 0.5625, 0.5625, "nvfp4"),
        (("re:.*self_attn.*",), 2, 0.5625, "nvfp4-mlp"),
        (("re:.*self_attn.*", "re:.*language_model.*mlp.*"), 2, 2, "nvfp4-experts"),
        (("re:.*layers.0.mlp.*",), 0.5625, 0.5625 + (2 - 0.5625) / 30, "nvfp4"),
        (("model.language_model.layers.3.mlp.down_proj",), 0.5625, 0.5625 + (2 - 0.5625) / 90, "nvfp4"),
        (("model.language_model.layers.3.mlp",), 0.5625, 0.5625, "nvfp4"),
    ],
    ids=["towers", "attention", "attention and dense", "one layer", "one matrix", "a parent without weights"],
)
def test_what_a_config_ignores_stays_in_bf16(ignore: tuple[str, ...], attention: float, mlp: float, scheme: str):
    spec = read("26B", (NVFP4, ["Linear"]), ignore=ignore)
    assert spec.native_quantization == scheme
    stored = dict(spec.stored_bytes)
    usual = {"attention": 2 if "-" in scheme else 0.5625, "mlp": 2 if scheme == "nvfp4-experts" else 0.5625}
    assert stored.get("attention", usual["attention"]) == pytest.approx(attention)
    assert stored.get("mlp", usual["mlp"]) == pytest.approx(mlp)
    assert "experts" not in stored


def _mean(*shares: tuple[str, float]) -> float:
    return sum(BYTES[name] * share for name, share in shares)


@pytest.mark.parametrize(
    ("groups", "attention", "mlp", "experts"),
    [
        # A class names what no name does, wherever it stands.
        (((NVFP4, ["Linear"]), (FP8, [ATTENTION])), _mean((FP8, 1)), BYTES[NVFP4], BYTES[NVFP4]),
        (((FP8, [ATTENTION]), (NVFP4, ["Linear"])), _mean((FP8, 1)), BYTES[NVFP4], BYTES[NVFP4]),
        # Of two targets that name a layer, the first: the form of unsloth/Qwen3.8-27B-NVFP4, whose last layers are in FP8.
        (
            ((FP8, [ATTENTION, LAST]), (NVFP4, [MLP, EXPERTS])),
            _mean((FP8, 1)),
            _mean((FP8, 0.1), (NVFP4, 0.9)),
            BYTES[NVFP4],
        ),
        (
            ((NVFP4, [MLP, EXPERTS]), (FP8, [ATTENTION, LAST])),
            _mean((FP8, 1)),
            BYTES[NVFP4],
            BYTES[NVFP4],
        ),
        # The same target twice has the format of the last group.
        (((NVFP4, ["Linear"]), (FP8, ["Linear"])), BYTES[FP8], BYTES[FP8], BYTES[FP8]),
        # The name that a fused matrix has in vLLM comes before those of its parts.
        (((FP8, [MLP]), (NVFP4, ["re:.*proj"])), BYTES[NVFP4], _mean((FP8, 1 / 3), (NVFP4, 2 / 3)), BYTES[NVFP4]),
    ],
    ids=["class first", "class last", "range first", "range last", "twice", "fused"],
)
def test_layers_have_the_format_that_vllm_gives_them(groups, attention: float, mlp: float, experts: float):
    """As vLLM 0.32.0 answers for the same names: its code agreed on 227,197 layers of 800 drawn configs."""
    spec = read("26B", *groups)
    usual = BYTES[spec.native_quantization or ""]
    stored = dict(spec.stored_bytes)
    got = tuple(stored.get(role, usual) for role in ("attention", "mlp", "experts"))
    assert got == pytest.approx((attention, mlp, experts))


def test_tables_and_towers_have_the_format_of_the_target_that_names_them():
    vision = r"re:.*vision_tower.*proj\.linear$"
    audio = {"hidden_size": 1_024, "num_hidden_layers": 12}
    towers = (FP8, [vision, r"re:.*audio_tower.*"])
    named = read("E2B", (INT4, ["Linear", "Embedding"]), towers, audio_config=audio)
    classes = read("E2B", (INT4, ["Linear"]), ignore=(), audio_config=audio)
    stored = dict(named.stored_bytes)
    assert (stored["embedding"], stored["layer-embedding"]) == (0.5625, 0.5625)
    assert 1 < stored["vision"] < 2
    assert 1 < stored["audio"] < 1.2
    assert classes.stored_bytes == (), "a class reaches no tower, and no table of another class"
    assert dict(named.parts)["audio"] == "fp8"


def test_a_head_of_its_own_has_the_format_of_its_group():
    spec = read("31B", (FP8, [ATTENTION, "lm_head"]), (NVFP4, [MLP]), ignore=(), tie_word_embeddings=False)
    assert dict(spec.stored_bytes)["lm-head"] == pytest.approx(BYTES[FP8])


def test_groups_of_integers_count_their_scales_and_zero_points():
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": False}
    block = {"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["Linear"], "weights": weights}}}
    spec = model_from_config({**CONFIGS["31B"], "quantization_config": block}, name="own")
    assert dict(spec.stored_bytes)["mlp"] == 0.5 + 2.5 / 128


@pytest.mark.parametrize("first", ["FP8", "NVFP4"])
def test_mixed_precision_of_modelopt_is_read_layer_by_layer(first: str):
    """ModelOpt names each layer (vllm-project/vllm#35047); the bytes are those of the same formats in compressed-tensors."""
    at = "model.language_model.layers"
    layers = {f"{at}.{i}.self_attn.{one}_proj": "FP8" for i in range(30) for one in "qkvo"}
    for i in range(30):
        for one in ("gate", "up", "down"):
            layers |= {f"{at}.{i}.mlp.{one}_proj": "NVFP4", f"{at}.{i}.experts.{i}.{one}_proj": "NVFP4"}
            layers[f"{at}.{i}.experts.0.{one}_proj"] = "NVFP4"
    ordered = sorted(layers, key=lambda one: layers[one] != first)
    block = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {one: {"quant_algo": layers[one]} for one in ordered},
    }
    spec = model_from_config({**CONFIGS["26B"], "quantization_config": block}, name="own")
    same = read("26B", *UNSLOTH)
    assert checkpoint_gib(spec) == checkpoint_gib(same)
    assert spec.parts == same.parts
    unnamed = [one for one in spec.unmodelled if "group" in one or "quantization_config" in one]
    assert [one for one in unnamed if "FP8" not in one] == []


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (((FP8, [ATTENTION]), (NVFP4, [r"re:.*self_attn\.k_proj$"]), (INT4, [MLP])), ""),
        (
            ((FP8, [r"re:.*self_attn\.k_proj$"]), (NVFP4, [ATTENTION])),
            "self_attn.k_proj is fp8, but vLLM fuses it with a projection that is nvfp4",
        ),
        (((FP8, [r"re:.*experts\.0\.up_proj$"]), (NVFP4, [EXPERTS])), "experts.0.up_proj is fp8, but vLLM fuses it"),
        (((FP8, ["re:.*linear_attn.*"]),), "no target of quantization_config names a layer"),
        (((FP8, ["re:(self_attn"]),), "'re:(self_attn' is not a regular expression"),
    ],
    ids=["shadowed", "attention", "experts", "none", "invalid"],
)
def test_groups_that_vllm_cannot_load_are_refused(groups, said: str):
    if not said:
        assert read("31B", *groups).parts == (("attention", "fp8"), ("mlp", "w4a16"))
        return
    with pytest.raises(PlanningError, match=re.escape(said)):
        read("26B", *groups)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"targets": [ATTENTION], "weights": FORMATS[FP8][1]},
                    "group_1": {"targets": [MLP], "weights": {"num_bits": 2, "type": "int"}},
                },
            },
            'own, group_1: quantization "compressed-tensors" with 2 bits',
        ),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, 'needs "quantized_layers"'),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"a.b": {"quant_algo": "Q"}},
            },
            "\"quant_algo\" of 'a.b' is 'Q'",
        ),
    ],
)
def test_a_format_of_a_later_group_is_refused_by_name(block: dict[str, object], said: str):
    with pytest.raises(PlanningError, match=re.escape(said)):
        model_from_config({**CONFIGS["31B"], "quantization_config": block}, name="own")


def test_a_target_that_names_no_layer_is_said():
    spec = read("31B", (FP8, [ATTENTION, r"re:.*linear_attn\..*", "re:^mtp.*"]), (NVFP4, [MLP]))
    planned = plan(Deployment(model="own", accelerator="H100", model_spec=spec))
    message = next(finding.message for finding in planned.findings if finding.id == "MOD01")
    assert r"which layers group_0 of its quantization_config means by 're:.*linear_attn\\..*' and 1 more" in message
    assert "group_1 of" not in message
    assert "in nvfp4 (attention fp8, mlp nvfp4)" in message


@pytest.mark.parametrize(
    ("accelerator", "groups", "said"),
    [
        ("L4", UNSLOTH, "own, in its nvfp4 layers, computes in bf16 on L4"),
        ("v6e-4", ((FP8, [MLP]), (NVFP4, [ATTENTION])), "own, in its nvfp4 layers, does not load on v6e-4"),
        ("v6e-4", ((FP8, [MLP]), (FP8, [ATTENTION])), ""),
    ],
)
def test_the_precision_with_the_least_support_decides(accelerator: str, groups, said: str):
    spec = read("26B" if accelerator == "L4" else "31B", *groups)
    planned = plan(Deployment(model="own", accelerator=accelerator, model_spec=spec))
    messages = [finding.message for finding in planned.findings if finding.id == "FIT06"]
    assert len(messages) == bool(said)
    assert all(said in one for one in messages)


def test_a_part_in_fp8_comes_from_the_checkpoint():
    """vLLM on TPU loads stored fp8, and converts nothing to it while loading."""
    spec, chip = read("31B", (INT4, [MLP]), (FP8, [ATTENTION])), ACCELERATORS["v6e-4"]
    assert support_of("fp8", spec, chip).answer == "yes"
    assert support_of("fp8", replace(spec, parts=()), chip).answer == "no"


def test_only_parts_in_nvfp4_compute_in_four_bits():
    """On Blackwell, attention in FP8 keeps the rate that the planner has for it without 4-bit arithmetic."""
    mixed, whole = read("31B", (FP8, [ATTENTION]), (NVFP4, [MLP])), read("31B", (NVFP4, [ATTENTION, MLP]))
    asked = Deployment(model="own", accelerator="RTX PRO 6000", vllm=VllmOptions(max_model_len=16_384))
    resolved = [resolve(replace(asked, model_spec=spec)) for spec in (mixed, whole)]
    load = Workload(input_tokens=8_192, users=32)
    slow, fast = (prompt_of(one, load).compute_s for one in resolved)
    attention = sum(t.params for t in tensors(mixed) if t.role == "attention" and not t.copy)
    flops = 2 * load.input_tokens * attention
    four_bits = constant("compute.nvfp4") * resolved[0].accelerator.bf16_tflops * 1e12
    assert slow - fast == pytest.approx(flops / flops_per_s(resolved[0]) - flops / four_bits)


def test_modelopt_states_the_inputs_of_each_layer():
    layers = {
        "model.language_model.layers.0.mlp.down_proj": "NVFP4",
        "model.language_model.layers.0.self_attn.o_proj": "FP8",
    }

    def rounds(**more: str) -> bool:
        stated = {name: {"quant_algo": one} for name, one in (layers | more).items()}
        block = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": stated}
        return model_from_config({**CONFIGS["31B"], "quantization_config": block}, name="own").has_fp4_activations

    assert rounds()
    assert not rounds(**{"model.language_model.layers.1.mlp.down_proj": "W4A16_NVFP4"})


AUTOROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
FOUR, EIGHT = 0.5 + 2.5 / 128, 1 + 3 / 128
ATTENTION_OF_12B = "model.language_model.layers.0.self_attn."


@pytest.mark.parametrize(
    ("block", "attention", "mlp"),
    [
        (AUTOROUND, FOUR, FOUR),
        ({**AUTOROUND, "extra_config": {r".*self_attn.*": {"bits": 16}}}, 2.0, FOUR),
        ({**AUTOROUND, "extra_config": {r"language_model.*self_attn": {"bits": 8}}}, EIGHT, FOUR),
        ({**AUTOROUND, "extra_config": {"mlp.down_proj": {"bits": 16}}}, FOUR, (2 * FOUR + 2) / 3),
        ({**AUTOROUND, "extra_config": {r"mlp\.": {"bits": 4, "group_size": 32}}}, FOUR, 0.5 + 2.5 / 32),
        (AWQ, FOUR, FOUR),
        ({**AWQ, "modules_to_not_convert": ["vision_tower"]}, FOUR, FOUR),
        ({**AWQ, "modules_to_not_convert": ["self_attn"]}, 2.0, FOUR),
        ({**AWQ, "modules_to_not_convert": ["mlp.down_proj", "lm_head"]}, FOUR, (2 * FOUR + 2) / 3),
    ],
)
def test_layers_that_autoround_and_awq_store_otherwise_count_as_such(block: dict[str, object], attention, mlp):
    spec = model_from_config({**CONFIGS["12B"], "quantization_config": block}, name="own")
    stored = dict(spec.stored_bytes)
    assert (spec.native_quantization, spec.packing) == (INT4, block["quant_method"])
    assert (stored["attention"], stored["mlp"]) == (pytest.approx(attention), pytest.approx(mlp))


def test_autoround_of_one_fused_projection_or_of_other_bits_is_refused():
    for extra, message in (
        ({f"{ATTENTION_OF_12B}q_proj": {"bits": 16}}, "vLLM fuses it with a projection"),
        ({f"{ATTENTION_OF_12B}q_proj": {"bits": 3}}, "has 3 bits. Supported: 4, 8 and 16."),
        ({"(": {"bits": 16}}, "is not a regular expression"),
    ):
        with pytest.raises(PlanningError, match=message):
            model_from_config(
                {**CONFIGS["12B"], "quantization_config": {**AUTOROUND, "extra_config": extra}}, name="own"
            )
