"""Words that go to vLLM are known words: each value of a key, each flag, and each option that the plan ignores."""

import dataclasses
import json
import typing
from collections.abc import Mapping

import pytest

from gemma_serving.planning import Deployment, PlanningError, VllmOptions, plan
from gemma_serving.scripts.plan.question import Question, settings_of
from gemma_serving.scripts.plan.set_option import option_value, parse_set, set_keys
from tests.records import replace

TPU = Deployment(model="google/gemma-4-E2B-it", accelerator="v6e-1")


def with_options(on: Deployment, **options: object) -> Deployment:
    return replace(on, vllm=VllmOptions(**options))  # type: ignore[arg-type]


def blocked_by(deployment: Deployment) -> Mapping[str, str]:
    return {one.id: one.message for one in plan(deployment).findings if one.severity == "block"}


LISTS = {
    "acceptFindings": ("ARG01", "ARG02"),
    "cloudRun.invokers": ("user:a@example.com", "user:b@example.com"),
    "cloudRun.mount.options": ("implicit-dirs", "log-severity=info"),
    "image.supports": ("fp8", "w4a16"),
    "tpu.provisioning": ("spot:5m", "standard"),
    "tpu.tunnelMembers": ("user:a@example.com", "user:b@example.com"),
    "tpu.zones": ("us-east5-a", "us-east5-b"),
    "vllm.allowedMediaDomains": ("a.example.com", "b.example.com"),
    "vllm.extraArgs": ("--max-logprobs", "5"),
}


def test_each_list_takes_words_brackets_and_json(subtests: pytest.Subtests):
    lists = {key for key, field in set_keys().items() if typing.get_origin(field.hint) is tuple}
    assert lists == set(LISTS)
    for key, words in LISTS.items():
        with subtests.test(key):
            forms = (" ".join(words), f"[{', '.join(words)}]", json.dumps(words))
            assert [list(parse_set([f"{key}={form}"]).values())[-1] for form in forms] == [words] * 3


def test_a_stacks_list_takes_the_same_forms_and_an_item_may_have_spaces_and_commas():
    words = ("--hf-overrides", '{"a": 1, "b": 2}')
    forms = (json.dumps(words), f"[--hf-overrides, '{words[1]}']", option_value(set_keys()["vllm.extraArgs"], words))
    for form in forms:
        pair = f"vllm.extraArgs={form}"
        assert parse_set([pair])["vllm.extra_args"] == words
        assert settings_of(Question(stack="l4-qat", set=(pair,))).vllm.extra_args == words
    for form in ("[a", "[{a: 1}]"):
        for stack in (None, "l4-qat"):
            with pytest.raises(PlanningError, match="expected a list such as"):
                (
                    settings_of(Question(stack=stack, set=(f"vllm.extraArgs={form}",)))
                    if stack
                    else parse_set([f"vllm.extraArgs={form}"])
                )


@pytest.mark.parametrize("accelerator", ["v6e-1", "v6e-4", "v6e-8"])
def test_no_recommended_value_makes_its_own_plan_impossible(accelerator: str, subtests: pytest.Subtests):
    proposed = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    for model in ("google/gemma-4-E2B-it", "google/gemma-4-E4B-it", "google/gemma-4-31B-it"):
        plain = Deployment(model=model, accelerator=accelerator)
        if blocked_by(plain):
            continue
        with subtests.test(model):
            assert not blocked_by(with_options(plain, speculative_config=proposed))


def test_given_sequences_stay_and_the_way_out_names_fewer():
    proposed = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    e4b = Deployment(model="google/gemma-4-E4B-it", accelerator="v6e-1")
    blocked = plan(with_options(e4b, max_num_seqs=256, speculative_config=proposed))
    assert blocked.vllm.gpu_memory_utilization == 0.9
    [finding] = [one for one in blocked.findings if one.severity == "block"]
    assert {"vllm.max_num_seqs": 64} in [one.changes for one in finding.remedies]
    low = plan(with_options(e4b, max_num_seqs=256, gpu_memory_utilization=0.05, speculative_config=proposed))
    first = next(one for one in low.findings if one.id == "FIT01")
    assert any("vllm.max_num_seqs" in one.changes for one in first.remedies)


def test_the_slice_of_a_question_is_that_of_its_accelerator():
    own = dataclasses.replace(TPU.tpu, api="compute-engine")
    assert plan(replace(TPU, tpu=own)).verdict == "fits"
    with pytest.raises(PlanningError, match="api compute-engine does not support v5e-1; set"):
        plan(replace(TPU, accelerator="v5e-1", tpu=own))
