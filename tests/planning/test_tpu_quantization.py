"""Rules by which vLLM on TPU converts weights while it loads them: what they convert, and what the plan makes of them."""

import json
import random
import re

import pytest

from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.memory.weights import weights_of
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.tpu_quantization import converted_scheme
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import VllmOptions, vllm_arguments
from gemma_serving.planning.units import to_gib

FP8 = {"module_path": ".*", "weight_qtype": "float8_e4m3fn", "act_qtype": "float8_e4m3fn"}
SEED = 20261130
LARGE = Question().changed(model="google/gemma-4-31B-it", accelerator="v6e-4")
PATHS = {
    "attention": "model/language_model/layers/0/self_attn/q_proj",
    "mlp": "model/language_model/layers/0/mlp/up_proj",
}
PATTERNS = (
    ".*",
    ".*self_attn.*",
    ".*attn/[qkvo]_proj",
    ".*/mlp/.*",
    "mlp",
    ".*layers.*",
    "(.*)/(mlp|self_attn)/.*",
    "",
)
TYPES = (None, "float8_e4m3fn", "int8", "int4")


def with_options(on, **options):
    return on.changed(vllm=VllmOptions(**options))


def config_of(*rules):
    return json.dumps({"quantization": {"qwix": {"rules": [*rules]}}})


def scheme_of(*rules):
    return converted_scheme(VllmOptions(extra_args=(f"--additional-config={config_of(*rules)}",)))


def test_the_first_rule_of_a_module_decides_and_one_type_of_one_byte_is_planned():
    draw = random.Random(SEED)  # noqa: S311 - a draw of cases
    planned = 0
    for _ in range(400):
        rules = [
            {"module_path": draw.choice(PATTERNS), "weight_qtype": draw.choice(TYPES)}
            for _ in range(draw.randint(1, 3))
        ]
        first = {
            role: next((rule["weight_qtype"] for rule in rules if re.fullmatch(rule["module_path"], path)), None)
            for role, path in PATHS.items()
        }
        types = {one for one in first.values() if one}
        found = scheme_of(*rules)
        if len(types) != 1 or "int4" in types:
            assert found is None, rules
            continue
        planned += 1
        assert found is not None, rules
        assert found.name == ("qwix-int8" if types == {"int8"} else "qwix-fp8")
        assert {role for role in PATHS if found.bytes_of(role) < 2} == {role for role, one in first.items() if one}
    assert planned > 100


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "{",
        config_of({**FP8, "module_path": "("}),
        config_of({**FP8, "tile_size": 32}),
        json.dumps({"quantization": {"qwix": {"rules": [FP8], "use_abstract_model": True}}}),
        json.dumps({"quantization": {"qwix": {"rules": [FP8]}}, "sharding": {}}),
        json.dumps({"quantization": "fp8_default.yaml"}),
    ],
)
def test_rules_beside_others_are_not_planned_and_said_so(text):
    found = plan(with_options(LARGE, extra_args=(f"--additional-config={text}",)))
    assert found.quantization == "bf16"
    assert "ARG05" in {one.id for one in found.findings} or text in {"{}", "[]", "{"}


def test_the_setting_and_the_same_words_are_one_plan():
    by_key = with_options(LARGE, tpu_quantization="qwix-fp8")
    [word] = [
        one for one in vllm_arguments(by_key.settings.vllm, model_or_path="m") if one.startswith("--additional-config")
    ]
    assert json.loads(word.partition("=")[2]) == json.loads(config_of(FP8))
    one, other = plan(by_key), plan(with_options(LARGE, extra_args=(word,)))
    assert (one.memory, one.throughput, one.startup) == (other.memory, other.throughput, other.startup)
    both = plan(with_options(LARGE, tpu_quantization="qwix-fp8", extra_args=(word,)))
    assert [finding.severity for finding in both.findings if finding.id == "ARG01"] == ["block"]


def test_a_chip_must_hold_both_forms_of_a_layer():
    before, after = resolve(LARGE), resolve(with_options(LARGE, tpu_quantization="qwix-fp8"))
    whole, small = weights_of(before), weights_of(after)
    assert small.checkpoint == whole.checkpoint
    halved = whole.device - small.device
    assert to_gib(small.load_extra) == pytest.approx(2 * to_gib(halved), rel=0.002)
    assert not plan(with_options(LARGE, tpu_quantization="qwix-fp8")).stopping
    one_chip = Question().changed(model="google/gemma-4-E4B-it", accelerator="v5e-1")
    found = plan(with_options(one_chip, tpu_quantization="qwix-fp8"))
    [finding] = [one for one in found.stopping if one.id == "FIT01"]
    assert "the bf16 form of the layers until they are converted" in finding.message


@pytest.mark.parametrize(
    ("model", "accelerator", "said"),
    [
        ("google/gemma-4-31B-it", "H100", "H100 is a GPU. Remove it or set vllm.quantization to fp8"),
        ("RedHatAI/gemma-4-31B-it-FP8-Dynamic", "v6e-4", 'conflicts with vllm.tpuQuantization "qwix-fp8"'),
    ],
)
def test_where_nothing_converts_one_sentence_says_so(model, accelerator, said):
    with pytest.raises(PlanningError, match=re.escape(said)):
        plan(with_options(Question().changed(model=model, accelerator=accelerator), tpu_quantization="qwix-fp8"))


def test_a_model_that_is_served_in_pytorch_is_blocked():
    found = plan(
        with_options(
            Question().changed(model="google/gemma-4-12B-it", accelerator="v6e-4"), tpu_quantization="qwix-fp8"
        )
    )
    [finding] = [one for one in found.stopping if one.id == "FIT06"]
    assert "no effect" in finding.message
    assert finding.remedies[0].changes == {"vllm.tpu_quantization": None}
