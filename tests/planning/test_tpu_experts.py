"""Mixtures of experts on TPUs: what moving rows to experts costs, against two publishers, and what the plan says about its sources."""

import json
from typing import Any

import pytest

from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.machine.families import NotMeasuredError
from gemma_serving.planning.machine.hardware import Accelerator
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.model.hf_config import model_from_config
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.bands import BANDS
from gemma_serving.planning.speed.prefill import prompt_of
from gemma_serving.planning.speed.steps import expert_rows_s, step_of
from tests.planning.corpus.measured import load
from tests.planning.corpus.sweeps import all_points
from tests.planning.test_config import QWEN_30B
from tests.records import replace

SPARSE = Question().changed(
    model="google/gemma-4-26B-A4B-it", accelerator="v6e-4", vllm=VllmOptions(max_model_len=32_768, max_num_seqs=16)
)
DENSE = SPARSE.changed(model="google/gemma-4-31B-it")
SMALL = SPARSE.changed(model="google/gemma-4-12B-it", accelerator="v6e-1", vllm=VllmOptions(max_model_len=2_048))
LONG = Workload(input_tokens=20_000, output_tokens=256, users=1)


def prompt_s(question: Question, tokens: int) -> float:
    return prompt_of(resolve(question), replace(LONG, input_tokens=tokens)).compute_s


def test_prompts_of_a_mixture_of_experts_take_what_two_publishers_measured():
    """SGLang-JAX: 32,703 prompt tokens per second. vLLM: 26B-A4B on four chips against 12B on one, over prompts of two lengths."""
    qwen = SPARSE.changed(model="Qwen3-30B-A3B", model_spec=model_from_config(QWEN_30B, name="Qwen3-30B-A3B"))
    assert 4_096 / prompt_s(qwen, 4_096) == pytest.approx(32_703, rel=0.25)
    ours, other = ((prompt_s(one, 600) - prompt_s(one, 200)) for one in (SPARSE, SMALL))
    assert ours / other == pytest.approx(97.5 / 121, rel=0.25)


def test_more_chips_do_not_share_the_rows_of_experts():
    first = {name: plan(SPARSE.changed(accelerator=name, workload=LONG)).workload for name in ("v6e-4", "v6e-8")}
    four, eight = (first[name].ttft_s.typical for name in ("v6e-4", "v6e-8"))
    assert 0.9 < eight / four < 1
    dense = {
        name: plan(DENSE.changed(accelerator=name, workload=LONG)).workload.ttft_s.typical
        for name in ("v6e-4", "v6e-8")
    }
    assert dense["v6e-8"] / dense["v6e-4"] < 0.6


def test_a_row_is_a_token_in_each_layer_for_each_expert_that_it_chose():
    resolved = resolve(SPARSE)
    rate = resolved.accelerator.measured("TPU_EXPERT_ROWS_GB_PER_S") * 1e9
    assert expert_rows_s(resolved, 1_000) == pytest.approx(1_000 * 30 * 8 * 2_816 * 2 / rate)


@pytest.mark.parametrize("other", [DENSE, SPARSE.changed(accelerator="H100")])
def test_nothing_else_moves_rows_to_experts(other: Question):
    assert expert_rows_s(resolve(other), 1_000) == 0


def test_a_decoding_step_hides_its_rows_behind_the_experts_that_it_reads():
    subject = examine(SPARSE)
    step = step_of(subject.resolved, subject.weights, subject.memory, batch=16, tokens=256)
    assert expert_rows_s(subject.resolved, 16) < step.compute_s < step.memory_s


def test_a_family_without_that_rate_has_no_speed_of_prompts(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(NotMeasuredError):
        expert_rows_s(resolve(SPARSE.changed(accelerator="tpu7x-4")), 1)
    measured = Accelerator.measured

    def without_rows(card: Accelerator, name: str) -> float:
        return measured(card, "not measured" if name == "TPU_EXPERT_ROWS_GB_PER_S" else name)

    monkeypatch.setattr(Accelerator, "measured", without_rows)
    assert plan(SPARSE).unknown == ("prefill",)
    assert plan(DENSE).unknown == ()


def test_one_publisher_has_a_time_per_token_of_a_mixture_of_experts_on_a_tpu_and_the_plan_says_so(run):
    told = {}
    for question in (SPARSE, DENSE):
        asked = ("--model", question.settings.model, "--accelerator", "v6e-4")
        told[question.settings.model] = " ".join(run(*asked)[1].split())
    words = "only one public source has a time per token of a mixture of experts on this accelerator"
    assert words in told[SPARSE.settings.model]
    assert "public source" not in told[DENSE.settings.model]


@pytest.mark.parametrize("model", ["google/gemma-4-E2B-it", "google/gemma-4-12B-it"])
def test_a_plan_says_which_rate_is_that_of_the_api_process(run, model: str):
    asked = ("--model", model, "--accelerator", "v6e-4", "--set", "vllm.maxNumSeqs=256")
    code, out, _ = run(*asked, "--workload", "in=8,out=10,users=1024")
    text = " ".join(out.split())
    assert "limited by the API process" in text
    assert (
        f"{constant('API_REQUESTS_PER_S'):g} requests/s (that of the API process for any model, not the device's)"
        in text
    )
    few = " ".join(run(*asked, "--workload", "in=8,out=10,users=4")[1].split())
    assert "limited by the API process" not in few
    long = " ".join(run(*asked, "--workload", "in=8,out=400,users=1024")[1].split())
    assert "API process" not in long
    assert code == 0


def test_the_plan_names_the_share_of_a_step_that_it_cannot_explain(run):
    """On a GPU, and up to 16 requests, nothing is unexplained."""
    usual = BANDS["rate", "tpu"]
    for users, accelerator in ((16, "v6e-4"), (128, "v6e-4"), (128, "H200")):
        asked = (
            "--model",
            DENSE.settings.model,
            "--accelerator",
            accelerator,
            "--workload",
            f"in=64,out=256,users={users}",
        )
        found, text = json.loads(run(*asked, "--json")[1])["workload"], " ".join(run(*asked)[1].split())
        rate, share = found["output_tok_per_s"], found["unexplained_share"]
        assert (
            (share > 0.2) == (f"Unexplained: {share:.0%} of a step" in text) == ((users, accelerator) == (128, "v6e-4"))
        )
        if accelerator == "v6e-4":
            assert rate["low"] == pytest.approx(usual.low * (1 - share) * rate["typical"], rel=1e-3)
            assert rate["high"] == pytest.approx(usual.high * rate["typical"], rel=1e-3)


def rate_of(run, model: str, output_tokens: int) -> tuple[dict[str, Any], str]:
    """Return the planned requests per second of 1,024 users on v6e-4, and the text of the plan."""
    load = f"in=8,out={output_tokens},users=1024"
    asked = ("--model", f"google/gemma-4-{model}-it", "--accelerator", "v6e-4", "--workload", load)
    return json.loads(run(*asked, "--json")[1])["workload"], " ".join(run(*asked)[1].split())


def test_the_pytorch_path_on_several_chips_has_no_public_load_test(run):
    found, text = rate_of(run, "12B", 1)
    path = "several chips with vLLM's PyTorch path"
    assert found["not_measured"] == [path]
    assert path in text
    questions = {point.deployment for point in all_points()}
    servers = [examine(load().deployments[name]).resolved for name in questions]
    assert not [server for server in servers if server.runtime == "tpu-torch" and server.tp > 1]
