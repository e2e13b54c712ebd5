"""What clients ask: the parser of `--workload`, what it refuses, and what each part of a workload changes."""

import dataclasses
import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.devices import parse_device
from gemma_serving.planning.memory.adapters import adapter_bytes, adapter_options
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import WorkloadPlan
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.question import NO_SERVICE, Question
from gemma_serving.planning.settings.vllm_args import IMAGE_TOKENS, VllmOptions
from gemma_serving.planning.settings.workload import WORKLOAD_KEYS, Workload, format_workload, parse_workload
from tests.records import replace


def test_a_workload_is_read_from_one_text():
    assert parse_workload("in=4000, out=500,users=32") == Workload(input_tokens=4_000, output_tokens=500, users=32)
    assert parse_workload("rate=2.5,prefix=0.5,images=1,imageTokens=1120,audio=30,adapters=2,accepted=0.6") == Workload(
        rate_per_s=2.5, prefix_share=0.5, images=1, image_tokens=1_120, audio_s=30, adapters=2, accepted_share=0.6
    )


def test_what_is_no_number_is_refused_with_key_value_and_what_is_allowed(subtests: pytest.Subtests):
    no_numbers = ("nan", "inf", "-inf", "-1", "", "many", "1e400", "9" * 5_000, "true")
    for key, value in product(WORKLOAD_KEYS, no_numbers):
        with subtests.test(f"{key}={value[:20]}"):
            with pytest.raises(PlanningError) as caught:
                parse_workload(f"{key}={value}")
            text = str(caught.value)
            assert text.startswith(
                (f'--workload {key} is "{value[:40]}"; expected ', f'--workload {key} is "{value[:40]}"; expected ')
            )
            assert text.endswith(".")
            assert len(text) < 160


@given(
    st.builds(
        Workload,
        input_tokens=st.integers(1, 10_000_000),
        output_tokens=st.integers(1, 10_000_000),
        users=st.none() | st.integers(1, 1_000_000),
        prefix_share=st.floats(0, 1),
        images=st.integers(0, 1_000),
        image_tokens=st.sampled_from(IMAGE_TOKENS),
        accepted_share=st.none() | st.floats(0, 1),
    )
)
def test_a_workload_survives_the_way_there_and_back(workload: Workload):
    assert parse_workload(format_workload(workload)) == workload


E2B = Question().changed(model="gemma-4-E2B-it", accelerator="v6e-1")


def answer(question: Question, workload: Workload) -> WorkloadPlan:
    found = plan(question.changed(workload=workload)).workload
    assert found is not None
    return found


def test_prompts_take_time_that_decoding_does_not_have():
    """A public run of 2026-08-10 gives 232 tokens/s at 32 users with 32,000 tokens in and 128 out, a decode-only roofline 1,500."""
    long = E2B.changed(vllm=VllmOptions(max_model_len=65_536))
    found = answer(long, Workload(input_tokens=32_000, output_tokens=128, users=32))
    assert found.output_tok_per_s.typical == pytest.approx(232, rel=0.25)
    assert found.bound == "prefill"


def test_a_video_has_32_frames_and_half_a_minute_of_audio_750_tokens():
    assert answer(E2B, Workload(videos=1)).prompt_tokens == 768 + 2_496
    assert answer(E2B, Workload(audio_s=30)).prompt_tokens == 768 + 750


@pytest.mark.parametrize(
    ("options", "workload", "words"),
    [
        ({}, Workload(users=1, images=1), "images, videos and audio"),
        ({"kv_cache_dtype": "fp8_per_token_head"}, Workload(users=1), "a KV cache with a scale per token and head"),
        ({"enforce_eager": True}, Workload(users=1), "eager mode"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
            Workload(users=1, input_tokens=8_193),
            "a drafter with more than 8,192 tokens in, in the Triton kernel of this card",
        ),
    ],
)
def test_what_no_public_load_test_has_is_named_and_widens_each_band(
    options: dict[str, Any], workload: Workload, words: str
):
    card = E2B.changed(accelerator="RTX PRO 6000")
    plain, found = answer(card, Workload(users=1)), answer(card.changed(vllm=VllmOptions(**options)), workload)
    assert (plain.not_measured, found.not_measured) == ((), (words,))
    for figure in ("output_tok_per_s", "ttft_s", "tpot_s"):
        usual, wider = getattr(plain, figure), getattr(found, figure)
        assert wider.high / wider.low == pytest.approx(4 * usual.high / usual.low)
    assert found.to_json()["not_measured"] == [words]


def test_accepted_proposals_make_tokens_come_sooner_and_refused_ones_later():
    ngram = E2B.changed(vllm=VllmOptions(speculative_config={"method": "ngram", "num_speculative_tokens": 3}))
    without = answer(E2B, Workload(users=1)).tpot_s.typical
    assert answer(ngram, Workload(users=1, accepted_share=0.8)).tpot_s.typical < without / 2
    assert answer(ngram, Workload(users=1, accepted_share=0.0)).tpot_s.typical >= without


def test_adapters_take_memory_and_slow_each_step_down():
    def of(adapters: int):
        workload = Workload(users=8, adapters=adapters)
        return plan(E2B.changed(vllm=VllmOptions(**adapter_options(workload)), workload=workload))

    plain, adapted = of(0), of(4)
    assert adapted.memory.weights_gib > plain.memory.weights_gib
    assert adapted.workload is not None
    assert plain.workload is not None
    assert adapted.workload.tpot_s.typical > plain.workload.tpot_s.typical


def test_adapters_of_a_higher_rank_slow_each_step_down_more():
    def tpot_s(rank: int):
        options = VllmOptions(lora_adapters={}, max_lora_rank=rank, max_loras=4)
        return answer(E2B.changed(vllm=options), Workload(users=8, adapters=4)).tpot_s.typical

    assert tpot_s(64) > tpot_s(16)


def test_the_memory_of_adapters_is_what_the_server_reserves_in_either_spelling():
    block = VllmOptions(lora_adapters={"a": "org/a"}, max_lora_rank=64, max_loras=2)
    flags = VllmOptions(
        extra_args=("--enable-lora", "--lora-modules=a=org/a", "--max-lora-rank=64", "--max-loras", "2")
    )
    planned = [plan(E2B.changed(vllm=options)).memory.weights_gib for options in (block, flags)]
    assert planned[0] == planned[1]
    reserved = planned[0] - plan(E2B).memory.weights_gib
    assert reserved == pytest.approx(2 * adapter_bytes(resolve(E2B).spec, 64) / 2**30)


def test_a_limit_of_adapters_without_lora_is_refused():
    for option in ({"max_loras": 2}, {"max_lora_rank": 32}):
        with pytest.raises(PlanningError, match=r"the server has no LoRA\. Set vllm\.lora\.adapters"):
            plan(E2B.changed(vllm=VllmOptions(**option)))


def test_a_shared_prefix_is_computed_and_held_once():
    alike = Workload(input_tokens=8_000, output_tokens=100, users=32)
    cold, warm = answer(E2B, alike), answer(E2B, replace(alike, prefix_share=0.9))
    assert warm.prefix_hit_share.typical == pytest.approx(0.9, abs=0.02)
    assert warm.output_tok_per_s.typical > 1.9 * cold.output_tok_per_s.typical
    assert warm.kv_share.typical < cold.kv_share.typical / 4
    off = E2B.changed(vllm=VllmOptions(enable_prefix_caching=False))
    assert answer(off, replace(alike, prefix_share=0.9)).prefix_hit_share.typical == 0


def test_users_beyond_the_places_wait():
    few = E2B.changed(vllm=VllmOptions(max_num_seqs=8))
    found = answer(few, Workload(users=24))
    assert (found.running_requests.typical, found.queued_requests.typical, found.bound) == (8, 16, "max-num-seqs")
    assert found.queue_s.typical == pytest.approx(16 / found.requests_per_s.typical)


ON_CLOUD_RUN = E2B.changed(
    accelerator="L4",
    platform="cloud-run",
    cloud_run=dataclasses.replace(NO_SERVICE, region="us-east4", concurrency=4),
)


@pytest.mark.parametrize(
    ("concurrency", "running", "limits"),
    [(4, 4, ("concurrency",)), (8, 8, ("max-num-seqs", "concurrency")), (64, 8, ("max-num-seqs",))],
)
def test_an_instance_of_cloud_run_runs_no_more_requests_than_its_concurrency(concurrency: int, running: int, limits):
    run = dataclasses.replace(ON_CLOUD_RUN.cloud_run, concurrency=concurrency)
    planned = plan(
        ON_CLOUD_RUN.changed(
            cloud_run=run,
            vllm=VllmOptions(max_num_seqs=8),
            workload=Workload(input_tokens=700, output_tokens=300, users=24),
        )
    )
    found = planned.workload
    assert found is not None
    assert (found.running_requests.typical, found.queued_requests.typical) == (running, 24 - running)
    assert (found.most_users, found.limits, found.bound) == (running, limits, limits[0])
    assert planned.throughput.saturated_batch == running


@pytest.mark.parametrize("users", [12, 24])
@pytest.mark.parametrize("sequences", [8, 16])
@pytest.mark.parametrize("concurrency", [4, 8, 16])
def test_the_first_remedy_for_waiting_users_leaves_no_contradiction(users: int, sequences: int, concurrency: int):
    run = dataclasses.replace(ON_CLOUD_RUN.cloud_run, concurrency=concurrency)
    asked = ON_CLOUD_RUN.changed(
        cloud_run=run,
        vllm=VllmOptions(max_num_seqs=sequences),
        workload=Workload(input_tokens=700, output_tokens=300, users=users),
    )
    waiting = [finding for finding in plan(asked).findings if finding.id == "WRK02"]
    assert bool(waiting) is (users > min(sequences, concurrency))
    for finding in waiting:
        after = plan(with_changes(asked, finding.remedies[0].changes))
        assert {one.id for one in after.findings} & {"WRK02", "SCL01"} == set()


SPARK = "memory=128GiB,bandwidth=273GB/s,tflops=125,name=GB10"


def on_a_spark(model: str) -> Question:
    options = VllmOptions(max_model_len=131_072, max_num_batched_tokens=8_192, kv_cache_dtype="fp8")
    return Question().changed(
        model=model, accelerator="", device=parse_device(SPARK), image=image_of_version("0.26.0"), vllm=options
    )


def test_few_tokens_of_nvfp4_experts_take_longer_than_their_bytes():
    """A public run that no constant was fitted to: 29.9 tokens/s for one request, 25 for each of five (dgx-spark-benchmarks, nvfp4-v23)."""
    for users, measured in ((1, 29.9), (5, 24.97)):
        found = answer(on_a_spark("nvidia/Gemma-4-26B-A4B-NVFP4"), Workload(input_tokens=1_024, users=users))
        assert 1 / found.tpot_s.typical == pytest.approx(measured, rel=0.15)


def test_tokens_of_one_step_share_experts():
    """The same rig: ten requests of 256 tokens decode 11.4 tokens/s each; with independent choices, a step would read half as much again."""
    found = answer(on_a_spark("google/gemma-4-26B-A4B-it"), Workload(input_tokens=256, output_tokens=4_096, users=10))
    assert 1 / found.tpot_s.typical == pytest.approx(11.4, rel=0.2)


def test_all_prompts_may_arrive_together_in_a_closed_loop():
    """Responses of equal length end together; with arrivals at random they do not."""
    card = E2B.changed(accelerator="H100")
    one, many = (answer(card, Workload(input_tokens=8_192, output_tokens=128, users=users)) for users in (1, 32))
    assert many.ttft_s.high >= 32 * (one.ttft_s.typical - constant("HTTP_SERVER_S") - one.tpot_s.typical)
    loose = answer(card, Workload(input_tokens=8_192, output_tokens=128, rate_per_s=0.1))
    assert loose.ttft_s.high < many.ttft_s.high / 5


def test_requests_that_outgrow_the_kv_cache_are_preempted_and_lower_the_rate(run):
    """The cache holds 50 requests of 256 tokens in the middle of 2,048 more, but 27 at their end."""
    asked = ("--model", "google/gemma-4-31B-it", "--accelerator", "v6e-4", "--workload")
    full, half, few = (
        json.loads(run(*asked, f"in=256,out=2048,users={users}", "--json")[1])["workload"] for users in (64, 40, 27)
    )
    assert (full["whole_users"], full["running_requests"]["typical"]) == (27, 50)
    assert full["recomputed_tokens"] == 2_048 > half["recomputed_tokens"] > 0 == few["recomputed_tokens"]
    assert 0.1 > full["preemption_share"] > half["preemption_share"] > 0 == few["preemption_share"]
    text = " ".join(run(*asked, "in=256,out=2048,users=64")[1].split())
    assert "the KV cache holds 27 requests of full length, but 50 run" in text
    assert "computes about 2,000 tokens per response again, which lowers the rate by 4." in text
    assert "Preemption" not in " ".join(run(*asked, "in=256,out=2048,users=27")[1].split())


def test_a_short_prompt_is_no_proposal_to_verify():
    """64 tokens of a prompt: the rejection sampler of a TPU would take 11 ms for as many proposals."""
    found = plan(E2B.changed(image=image_of_version("0.29.1rc1"))).throughput
    assert found.ttft_s < constant("HTTP_SERVER_S") + 1.5 / found.decode_tok_per_s
