"""What vLLM's profiling run leaves for the KV cache of a GPU, by release and model runner."""

from dataclasses import replace
from itertools import pairwise

import pytest

from planning import plan
from planning.cost.subject import examine
from planning.data import overheads
from planning.errors import PlanningError
from planning.machine.devices import parse_device
from planning.memory.activations import gpu_activation_gib, profiled_items
from planning.memory.budget import captured_graphs, graph_gib, memory_plan
from planning.memory.kv_cache import layout_of
from planning.memory.resolve import resolve
from planning.memory.speculation import unknown_drafter_bytes
from planning.question.recommendation import TEXT_ONLY
from planning.question.releases import reserves_graphs, runners
from planning.question.resolved import Resolved
from planning.question.types import Deployment, Plan
from planning.question.vllm_args import VllmOptions

GIB = 2**30
GEMMA = "google/gemma-4-"

EAGLE = {"method": "eagle3", "model": "org/speculator", "num_speculative_tokens": 3}
ASSISTANT = {"model": f"{GEMMA}31B-it-assistant", "num_speculative_tokens": 3}


def asked(model: str, accelerator: str = "H100", version: str | None = None, **options: object) -> Deployment:
    return Deployment(
        model=f"{GEMMA}{model}",
        accelerator=accelerator,
        image_version=version,
        vllm=VllmOptions(**options),  # pyright: ignore[reportArgumentType] - a test's shorthand
    )


def resolved(model: str, accelerator: str = "H100", version: str | None = None, **options: object) -> Resolved:
    return resolve(asked(model, accelerator, version, **options))


@pytest.mark.parametrize(
    ("model", "version", "found"),
    [
        ("31B-it", "0.24.0", (1,)),
        ("31B-it", "0.25.0", (2,)),
        ("26B-A4B-it", "0.28.0", (1,)),
        ("26B-A4B-it", "0.29.0", (2,)),
        ("31B-it", "", (1, 2)),
    ],
)
def test_the_runner_follows_from_release_and_model(model: str, version: str, found: tuple[int, ...]):
    assert runners(resolved(model, version=version)) == found


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"method": "ngram", "num_speculative_tokens": 3}, (1,)),
        ({"method": "draft_model", "model": f"{GEMMA}E2B-it", "num_speculative_tokens": 3}, (1,)),
        (ASSISTANT, (2,)),
        (EAGLE, (2,)),
        ({"model": "org/speculator", "num_speculative_tokens": 3}, (1, 2)),
    ],
)
def test_some_kinds_of_speculation_stay_on_the_first_runner(config: dict[str, object], found: tuple[int, ...]):
    assert runners(resolved("31B-it", version="0.26.0", speculative_config=config)) == found


def test_an_unknown_release_counts_the_larger_figure():
    options = {"max_num_seqs": 256, "max_num_batched_tokens": 4_096}
    unknown = gpu_activation_gib(resolved("31B-it", version="", **options))
    assert unknown == max(gpu_activation_gib(resolved("31B-it", version=v, **options)) for v in ("0.24.0", "0.30.0"))


@pytest.mark.parametrize(
    ("batch", "sequences", "limits", "found"),
    [
        (16_384, 256, {"image": 4}, ("video", 6)),  # "profiled with 6 video items"
        (8_192, 256, {"image": 4}, ("video", 3)),
        (4_096, 256, None, ("video", 1)),
        (2_496, 256, None, ("video", 1)),
        (16_384, 2, {"image": 4}, ("video", 6)),
        (16_384, 2, {"video": 1}, ("video", 2)),
        (16_384, 2, {"video": 2}, ("video", 4)),
        (16_384, 256, {"video": 0}, ("image", 58)),
        (16_384, 256, TEXT_ONLY, ("", 0)),
    ],
)
def test_the_encoder_is_profiled_for_as_many_items_as_a_step_holds(
    batch: int, sequences: int, limits: dict[str, int] | None, found: tuple[str, int]
):
    options = {"max_num_batched_tokens": batch, "max_num_seqs": sequences, "limit_mm_per_prompt": limits}
    deployment = asked("31B-it", **options)
    if limits is None:
        deployment = replace(deployment, vllm=replace(deployment.vllm, limit_mm_per_prompt={}))
    assert profiled_items(resolve(deployment)) == found


def test_more_items_leave_less_for_the_kv_cache():
    sizes = [
        memory_plan(
            resolved("31B-it", version="0.24.0", max_num_seqs=16, max_num_batched_tokens=tokens)
        ).activations_gib
        for tokens in (4_096, 8_192, 16_384)
    ]
    one_video = 2_240 * 9 * 2 * (3 * 4_304 + 4 * 1_152) / GIB
    assert [more - less > steps * one_video for (less, more), steps in zip(pairwise(sizes), (2, 3), strict=True)] == [
        True
    ] * 2


def test_a_release_that_sorts_logits_reserves_more_of_a_large_vocabulary():
    """llm-d profiled 4.76 GiB for 1,024 sequences of Llama 3.1 8B, whose vocabulary has 128,256 tokens, with vLLM 0.11."""
    old, new = (overheads.SORTING_SAMPLER_BYTES_PER_LOGIT, overheads.SAMPLER_BYTES_PER_LOGIT)
    assert 1_024 * 128_256 * old / GIB == pytest.approx(4.76, rel=0.01)
    options = {"max_num_seqs": 1_024, "limit_mm_per_prompt": TEXT_ONLY}
    before, after = (gpu_activation_gib(resolved("31B-it", "H200", one, **options)) for one in ("0.18.1", "0.19.0"))
    assert before - after == pytest.approx(1_024 * 262_144 * (old - new) / GIB)


def test_the_second_runner_profiles_no_encoder_before_0_29():
    old, new = (
        resolved("31B-it", version=v, max_num_seqs=16, max_num_batched_tokens=16_384) for v in ("0.28.0", "0.29.0")
    )
    assert gpu_activation_gib(new) - gpu_activation_gib(old) > 1


@pytest.mark.parametrize(
    ("model", "version", "reserved"),
    [
        ("31B-it", "0.19.1", False),
        ("31B-it", "0.20.0", True),
        ("31B-it", "0.26.0", False),
        ("31B-it", "0.29.0", True),
        ("26B-A4B-it", "0.26.0", True),
    ],
)
def test_graphs_are_inside_the_budget_or_outside_it(model: str, version: str, *, reserved: bool):
    r = resolved(model, version=version)
    memory = memory_plan(r)
    assert reserves_graphs(r) is reserved
    assert memory.graphs_gib == (graph_gib(r) if reserved else 0)
    outside = memory.outside_needs_gib - overheads.CUDA_CONTEXT_GIB
    assert outside == pytest.approx(0 if reserved else graph_gib(r))


def test_buffers_of_the_second_runner_count_from_0_27():
    options = {"max_num_seqs": 1_024, "limit_mm_per_prompt": TEXT_ONLY}
    before, after = (gpu_activation_gib(resolved("31B-it", version=v, **options)) for v in ("0.26.0", "0.27.0"))
    assert after - before == pytest.approx(1_024 * (262_144 + 8_192) * 4 / GIB)


def test_two_runners_of_one_release_differ_as_in_a_public_log():
    """31B AWQ on two RTX 3090, vLLM 0.26.0: 11.43 GiB of KV cache with the second runner, and 10.54 with the first (compared in vLLM's issues, 2026-07-28)."""
    device = parse_device("memory=24GiB,bandwidth=936GB/s,tflops=71,usable=23.56GiB,count=2")
    base = asked(
        "31B-it-qat-w4a16-ct", "", "0.26.0", gpu_memory_utilization=0.94, max_num_seqs=48, max_num_batched_tokens=2_496
    )
    base = replace(base, device=device)
    second, first = (
        base,
        replace(base, vllm=replace(base.vllm, speculative_config={"method": "ngram", "num_speculative_tokens": 1})),
    )
    gap = memory_plan(resolve(second)).kv_gib - memory_plan(resolve(first)).kv_gib
    assert gap == pytest.approx(11.43 - 10.54, rel=0.25)


def test_a_draft_model_is_captured_too():
    alone, drafted = (
        captured_graphs(resolved("31B-it", max_num_seqs=64, speculative_config=c)) for c in (None, ASSISTANT)
    )
    with_ngram = captured_graphs(
        resolved("31B-it", max_num_seqs=64, speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    )
    assert alone < with_ngram < drafted


def test_an_unknown_drafter_is_reserved_for_and_may_fail_close_to_the_edge():
    r = resolved("31B-it", speculative_config=EAGLE)
    head, feed_forward, attention = 5_376 * 262_144, 3 * 5_376 * 21_504, 5_376 * 512 * (2 * 32 + 4)
    assert unknown_drafter_bytes(r) == pytest.approx(2 * (head + feed_forward + attention), rel=0.001)
    known = resolved("31B-it", speculative_config=ASSISTANT)
    assert layout_of(r).bytes_per_token == layout_of(known).bytes_per_token * 11 // 10

    def planned(utilization: float) -> Plan:
        options = {"quantization": "fp8", "max_model_len": 8_192, "speculative_config": EAGLE}
        return plan(asked("31B-it", "H200", gpu_memory_utilization=utilization, **options))

    far, close = planned(0.90), planned(0.98)
    assert far.margin is None
    assert close.margin is not None
    assert close.margin.finding == "FIT05"
    finding = next(f for f in close.findings if f.id == "FIT05")
    assert "CUDA graphs and a draft model of unknown size" in finding.message
    changes = finding.remedies[0].changes
    after = planned(float(str(changes["vllm.gpu_memory_utilization"])))
    assert "FIT05" not in {f.id for f in after.findings}


@pytest.mark.parametrize("dtype", ["int8_per_token_head", "fp8_per_token_head"])
def test_scales_per_token_and_head_cost_8_bytes_of_each_pair(dtype: str):
    plain, scaled = (layout_of(resolved("31B-it", kv_cache_dtype=kind)).bytes_per_token for kind in ("fp8", dtype))
    assert scaled == plain * (512 + 4) // 512
    with pytest.raises(PlanningError, match="vLLM on TPU does not have"):
        resolved("31B-it", "v6e-4", kv_cache_dtype=dtype)


def test_graphs_of_an_amd_gpu_grow_with_the_layers():
    """26B-A4B and 31B on an MI300X (xbill9/gemma4-dev 5a5636dc1cc2, 2026-10-08): 0.9 of 191.69 GiB are as much as 0.8822 and 0.8659 without graphs."""
    device = parse_device("memory=192GiB,bandwidth=5300GB/s,tflops=1307,usable=191.69GiB,name=MI300X")
    for model, without in (("26B-A4B-it", 0.8822), ("31B-it", 0.8659)):
        base = asked(model, "", "0.31.1rc1", max_num_seqs=1_024, max_num_batched_tokens=16_384)
        subject = examine(replace(base, device=device))
        assert graph_gib(subject.resolved) == pytest.approx(191.69 * (0.9 - without), rel=0.07)
