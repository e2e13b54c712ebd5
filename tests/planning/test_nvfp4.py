"""The rate of prompts in NVFP4: 4-bit arithmetic where vLLM is known to use it, bf16's everywhere else."""

import pytest

from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.machine.devices import parse_device
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.model.hf_config import model_from_config
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.prefill import encoder_flops, prompt_of
from gemma_serving.planning.speed.steps import flops_per_s
from tests.records import replace

CONFIG = next(row["config"] for name, row in data_file("models.json").items() if name == "google/gemma-4-31B-it")
LAYERS, HIDDEN, WIDTH = 60, 5_376, 21_504
PLAIN = Question().changed(
    model="google/gemma-4-31B-it",
    accelerator="RTX PRO 6000",
    image=image_of_version("0.28.0"),
    vllm=VllmOptions(max_model_len=16_384, kv_cache_dtype="fp8"),
)
SMALL = PLAIN.changed(model="nvidia/Gemma-4-31B-IT-NVFP4")
B200 = parse_device("memory=180GiB,bandwidth=8TB/s,tflops=2250,name=B200")
LONG = Workload(input_tokens=8_192, users=32)
FOUR, SIXTEEN = ({"num_bits": bits, "type": "float", "group_size": 16} for bits in (4, 16))


def prompt_s(question: Question) -> float:
    return prompt_of(resolve(question), LONG).compute_s


def on(device: str) -> dict[str, object]:
    """Return the fields of a card; a B200 is no machine of this project."""
    return {"accelerator": "", "device": B200} if device == "B200" else {"accelerator": device}


@pytest.mark.parametrize(("device", "row"), [("RTX PRO 6000", "compute.nvfp4.blackwell"), ("B200", "compute.nvfp4")])
def test_only_the_layers_in_nvfp4_compute_in_four_bits(device: str, row: str):
    """31B's feed-forward blocks; attention, which stays in bf16, keeps its rate."""
    plain, small = (one.changed(**on(device)) for one in (PLAIN, SMALL))
    peak = resolve(plain).accelerator.bf16_tflops * 1e12
    flops = 2 * LONG.input_tokens * LAYERS * 3 * HIDDEN * WIDTH
    saved = flops / flops_per_s(resolve(plain)) - flops / (constant(row) * peak)
    assert prompt_s(plain) - prompt_s(small) == pytest.approx(saved)
    assert saved > prompt_s(plain) / 4


def test_all_dense_layers_of_a_checkpoint_in_nvfp4_compute_in_four_bits():
    whole = SMALL.changed(model="RedHatAI/gemma-4-31B-it-NVFP4")
    assert prompt_s(whole) < prompt_s(SMALL) * 0.85


def test_pictures_are_encoded_at_the_rate_of_bf16():
    """NVIDIA's conversions leave the towers alone."""
    seen = replace(LONG, images=4)
    plain, small = (prompt_of(resolve(one), seen).encoder_s for one in (PLAIN, SMALL))
    assert small == plain == encoder_flops(resolve(PLAIN).spec, seen) / flops_per_s(resolve(PLAIN))


@pytest.mark.parametrize(
    "unknown",
    [
        {"accelerator": "H100"},
        {"accelerator": "L4", "vllm": VllmOptions(max_model_len=1_024)},
        {"accelerator": "", "device": replace(B200, name="a card")},
        {"image": image_of_version("0.18.1")},
        {"image": image_of_version("")},
        {"image": image_of_version("0.28.1rc1.dev337")},
        {"vllm": VllmOptions(max_model_len=16_384, extra_args=("--linear-backend", "marlin"))},
        {"vllm": VllmOptions(max_model_len=16_384, extra_args=("--linear-backend=flashinfer_cutedsl",))},
    ],
    ids=["Hopper", "Ada", "an unknown card", "an old release", "no release", "a development build", "Marlin", "CuTe"],
)
def test_other_cards_releases_and_kernels_compute_in_bf16(unknown: dict[str, object]):
    plain, small = (one.changed(**unknown) for one in (PLAIN, SMALL))
    assert prompt_s(small) == pytest.approx(prompt_s(plain))


@pytest.mark.parametrize("version", ["0.19.1", "0.24.0", "0.29.0", "0.33.0"])
def test_every_release_that_was_read_computes_in_four_bits(version: str):
    asked = VllmOptions(max_model_len=16_384, extra_args=("--linear-backend=flashinfer_cutlass",))
    for options in (SMALL.settings.vllm, asked):
        small = SMALL.changed(image=image_of_version(version), vllm=options)
        assert prompt_s(small) == pytest.approx(prompt_s(SMALL))


def test_experts_keep_their_rate():
    plain, small = (PLAIN.changed(model=name) for name in ("google/gemma-4-26B-A4B-it", "nvidia/Gemma-4-26B-A4B-NVFP4"))
    assert prompt_s(small) == pytest.approx(prompt_s(plain))


@pytest.mark.parametrize(
    ("block", "is_fast"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, True),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "config_groups": {"a": {"weights": FOUR}}}, False),
        ({"config_groups": {"a": {"weights": FOUR, "input_activations": FOUR}}}, True),
        ({"config_groups": {"a": {"weights": FOUR, "input_activations": None}}}, False),
        ({"config_groups": {"a": {"weights": FOUR}}}, False),
        ({"config_groups": {"a": {"weights": FOUR, "input_activations": SIXTEEN}}}, False),
        (
            {
                "config_groups": {
                    "a": {"weights": FOUR, "input_activations": FOUR},
                    "b": {"weights": FOUR, "input_activations": None},
                }
            },
            False,
        ),
    ],
    ids=[
        "ModelOpt",
        "ModelOpt without inputs",
        "inputs in 4 bits",
        "no inputs",
        "not stated",
        "inputs in 16 bits",
        "some of both",
    ],
)
def test_a_config_says_whether_inputs_are_rounded_too(block: dict[str, object], is_fast: bool):
    """NVFP4A16 has the same weights, and vLLM multiplies them in bf16."""
    config = {**CONFIG, "quantization_config": {"quant_method": "compressed-tensors", **block}}
    read = PLAIN.changed(model="other", model_spec=model_from_config(config, name="other"))
    assert plan(read).quantization == "nvfp4"
    assert (prompt_s(read) < prompt_s(PLAIN) * 0.7) is is_fast
    assert is_fast or prompt_s(read) == pytest.approx(prompt_s(PLAIN))


def test_nvfp4_serves_long_prompts_faster_than_fp8():
    """Both halves of a card: prompts, and decoding steps of many requests."""
    rates = [
        plan(PLAIN.changed(model=name, workload=LONG)).workload.output_tok_per_s.typical
        for name in ("google/gemma-4-31B-it", "RedHatAI/gemma-4-31B-it-FP8-block", SMALL.settings.model)
    ]
    assert rates == sorted(rates)


@pytest.mark.parametrize("model", ["nvidia/Gemma-4-31B-IT-NVFP4", "nvidia/Gemma-4-26B-A4B-NVFP4"])
def test_the_kv_cache_of_nvidias_checkpoints_is_fp8_unless_a_setting_names_another_type(model: str):
    """A public log of 31B on two L4 without the flag has "KV cache: FP8 e4m3" and 3.58 requests of 16,384 tokens; 1.73 were planned."""
    wide = SMALL.changed(model=model, accelerator="H200")
    unset, named, plain = (
        plan(wide.changed(vllm=VllmOptions(max_model_len=65_536, kv_cache_dtype=one)))
        for one in (None, "fp8", "bfloat16")
    )
    assert unset.memory == named.memory
    assert unset.memory.kv_request_gib == pytest.approx(plain.memory.kv_request_gib / 2)
    assert plan(SMALL.changed(accelerator="L4x2", vllm=VllmOptions(max_model_len=16_384))).fits


def test_a_card_without_fp8_is_told_that_the_files_ask_for_it():
    found = plan(SMALL.changed(accelerator="A100-80GB", vllm=VllmOptions(max_model_len=16_384)))
    (told,) = [one for one in found.findings if one.id == "FIT06" and one.severity == "block"]
    assert (
        "vllm.kvCacheDtype fp8 (from the checkpoint's quantization_config) does not work on A100-80GB" in told.message
    )
    assert {"vllm.kv_cache_dtype": "bfloat16"} in [dict(one.changes) for one in told.remedies]
