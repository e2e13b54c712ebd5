"""What vLLM's profiling run leaves for the KV cache of a GPU, by release and model runner."""

import pytest

from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.devices import parse_device
from gemma_serving.planning.machine.hardware import Accelerator
from gemma_serving.planning.memory.activations import gpu_activation_gib
from gemma_serving.planning.memory.budget import captured_graphs, graph_gib
from gemma_serving.planning.memory.kv_cache import blocks_per_request, layout_of
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.model.spec import Role
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.recommendation import TEXT_ONLY
from gemma_serving.planning.question.releases import keeps_stored_head, runners
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import VllmOptions
from tests.planning.corpus.pages import PageRow, stored_pages
from tests.records import replace

GIB = 2**30
GEMMA = "google/gemma-4-"

ASSISTANT = {"model": f"{GEMMA}31B-it-assistant", "num_speculative_tokens": 3}


def asked(model: str, accelerator: str = "H100", version: str | None = None, **options: object) -> Question:
    return Question().changed(
        model=f"{GEMMA}{model}",
        accelerator=accelerator,
        image=image_of_version(version),
        vllm=VllmOptions(**options),  # pyright: ignore[reportArgumentType] - a test's shorthand
    )


def resolved(model: str, accelerator: str = "H100", version: str | None = None, **options: object) -> Resolved:
    return resolve(asked(model, accelerator, version, **options))


def test_an_unknown_release_counts_the_larger_figure():
    options = {"max_num_seqs": 256, "max_num_batched_tokens": 4_096}
    unknown = gpu_activation_gib(resolved("31B-it", version="", **options))
    assert unknown == max(gpu_activation_gib(resolved("31B-it", version=v, **options)) for v in ("0.24.0", "0.30.0"))


def test_a_development_version_has_the_smaller_kv_cache_of_the_releases_beside_it():
    """31B on an RTX PRO 6000 with a build between 0.26.0 and 0.27.0 logged 23.57 GiB: 25.0 are planned with 0.26.0."""
    versions = ("0.26.0", "0.26.1rc1.dev162+g0123abcde", "0.27.0")
    old, between, new = (plan(asked("31B-it", "RTX PRO 6000", version)).memory.kv_gib for version in versions)
    assert between == min(old, new) < max(old, new)


def test_experts_have_two_workspaces_with_room_for_their_output():
    """26B-A4B converted to FP8 on an RTX PRO 6000 with 65,536 tokens per step logged 53.86 GiB of KV cache (MG-Cafe/gemma4-benchmark)."""
    options = {
        "max_model_len": 128_000,
        "gpu_memory_utilization": 0.95,
        "max_num_batched_tokens": 65_536,
        "max_num_seqs": 8,
    }
    found = asked("26B-A4B-it", "RTX PRO 6000", "0.19.0", **options, disable_chunked_mm_input=False)
    assert plan(found.changed(quantization="fp8", platform="gce")).memory.kv_gib == pytest.approx(53.86, rel=0.02)


def test_the_encoder_gets_what_a_tenth_of_the_memory_holds_from_0_22():
    options = {"max_num_seqs": 1, "max_num_batched_tokens": 8_192}
    for card, more in (("L4", 0.0), ("H200", 0.4)):
        one, many = (gpu_activation_gib(resolved("26B-A4B-it", card, v, **options)) for v in ("0.21.0", "0.22.0"))
        assert (many - one > more) is (card == "H200")


def test_a_release_that_sorts_logits_reserves_more_of_a_large_vocabulary():
    """llm-d profiled 4.76 GiB for 1,024 sequences of Llama 3.1 8B, whose vocabulary has 128,256 tokens, with vLLM 0.11."""
    old, new = (constant("SORTING_SAMPLER_BYTES_PER_LOGIT"), constant("SAMPLER_BYTES_PER_LOGIT"))
    assert 1_024 * 128_256 * old / GIB == pytest.approx(4.76, rel=0.01)
    options = {"max_num_seqs": 1_024, "limit_mm_per_prompt": TEXT_ONLY}
    before, after = (gpu_activation_gib(resolved("31B-it", "H200", one, **options)) for one in ("0.18.1", "0.19.0"))
    copies = 4 * constant("SAMPLER_PROGRAMS")
    assert before - after == pytest.approx(262_144 * (1_024 * (old - new) - copies) / GIB)


def test_buffers_of_the_second_runner_count_from_0_27():
    options = {"max_num_seqs": 1_024, "max_num_batched_tokens": 4_096, "limit_mm_per_prompt": TEXT_ONLY}
    before, after = (gpu_activation_gib(resolved("31B-it", version=v, **options)) for v in ("0.26.0", "0.27.0"))
    assert after - before == pytest.approx(1_024 * (262_144 + 8_192) * 4 / GIB)


@pytest.mark.parametrize(
    ("model", "width", "options"),
    [
        ("31B-it", 5_376, {"limit_mm_per_prompt": TEXT_ONLY}),
        ("31B-it", 5_376, {"speculative_config": ASSISTANT}),
        ("E4B-it", 42 * 256, {"limit_mm_per_prompt": TEXT_ONLY}),
        ("31B-it", 0, {}),
        ("31B-it", 0, {"limit_mm_per_prompt": TEXT_ONLY, "enforce_eager": True}),
    ],
)
def test_the_compiler_holds_the_widest_table_that_it_compiles(model: str, width: int, options: dict[str, object]):
    sizes = {"max_num_seqs": 1, "max_num_batched_tokens": 2_560, "disable_chunked_mm_input": False}
    left = gpu_activation_gib(resolved(model, "H200", "0.26.0", **sizes, **options))
    table = (262_144 + 2 * 2_560) * width * 2 / GIB + constant("NON_TORCH_GIB")
    assert left == pytest.approx(table) if width else left < 1


@pytest.mark.parametrize(
    ("packed", "size"),
    [
        ((), 35 * 256 * 2.0),
        (("layer-embedding",), 35 * 256 * 0.5625),
        (("embedding",), 35 * 256 * 2.0),
        (("embedding", "layer-embedding"), 35 * 256 * 0.5625),
    ],
)
def test_the_compiler_holds_a_packed_table_in_its_packed_size(packed: tuple[Role, ...], size: float):
    options = {"max_num_seqs": 1, "max_num_batched_tokens": 2_560, "limit_mm_per_prompt": TEXT_ONLY}
    found = resolved("E2B-it", "H200", "0.26.0", **options)
    spec = replace(found.spec, stored_bytes=tuple((role, 0.5625) for role in packed))
    left = gpu_activation_gib(replace(found, spec=spec)) - constant("NON_TORCH_GIB")
    assert left == pytest.approx((262_144 * size + 2 * 2_560 * 35 * 256 * 2) / GIB)


@pytest.mark.parametrize(
    ("model", "accelerator", "limits", "is_text"),
    [
        ("31B-it", "H200", {"image": 0, "audio": 0}, False),  # video has no limit
        ("31B-it", "H200", {"image": 0, "video": 0}, True),  # it has no audio
        ("E4B-it", "H200", {"image": 0, "video": 0}, False),
        ("E4B-it", "H200", TEXT_ONLY, True),
        ("31B-it", "v6e-8", {"image": 0, "audio": 0}, True),  # a TPU looks at stated limits only
    ],
)
def test_a_gpu_serves_text_only_if_every_supported_modality_has_the_limit_0(
    model: str, accelerator: str, limits: dict[str, int], is_text: bool
):
    assert resolved(model, accelerator, limit_mm_per_prompt=limits).serves_only_text is is_text


def test_a_general_draft_model_moves_to_the_second_runner_in_0_31():
    drafts = {"method": "draft_model", "model": "google/gemma-4-31B-it-assistant", "num_speculative_tokens": 3}
    found = [runners(resolved("31B-it", version=one, speculative_config=drafts)) for one in ("0.30.0", "0.31.0", "")]
    assert found == [(1,), (2,), (1, 2)]


def test_a_stored_head_of_e2b_stays_from_0_29():
    kept = [keeps_stored_head(resolved("E2B-it-qat-w4a16-ct", version=one)) for one in ("0.28.0", "0.29.0", "")]
    assert kept == [False, True, True]


def test_a_draft_model_is_captured_too():
    alone, drafted = (
        captured_graphs(resolved("31B-it", max_num_seqs=64, speculative_config=c)) for c in (None, ASSISTANT)
    )
    with_ngram = captured_graphs(
        resolved("31B-it", max_num_seqs=64, speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    )
    assert alone < with_ngram < drafted
    # Only the graphs of the served model are captured with and without adapters.
    adapted = [
        captured_graphs(resolved("31B-it", max_num_seqs=64, lora_adapters={"a": "org/a"}, speculative_config=c))
        for c in (None, ASSISTANT)
    ]
    assert adapted == [2 * alone, drafted + with_ngram]


@pytest.mark.parametrize(("card", "copies"), [("RTX PRO 6000", 3), ("H100", 0)])
def test_the_kernel_of_nvfp4_experts_before_0_21_has_three_more_copies_of_each_experts_tokens(card: str, copies: int):
    """Eight experts of each of 16,384 tokens, 2,816 wide, in bf16: 2.06 GiB. A log of an RTX 5090 with 0.20.2 has 2.5 less than was planned."""
    options = {
        "max_num_batched_tokens": 16_384,
        "max_num_seqs": 2,
        "limit_mm_per_prompt": TEXT_ONLY,
        "enforce_eager": True,
    }
    nvfp4 = asked("26B-A4B-it", card, **options)
    old, new = (
        gpu_activation_gib(
            resolve(nvfp4.changed(model="RedHatAI/gemma-4-26B-A4B-it-NVFP4", image=image_of_version(one)))
        )
        for one in ("0.20.2", "0.21.0")
    )
    assert old - new == pytest.approx(copies * 8 * 16_384 * 2_816 * 2 / GIB)


def test_nccl_keeps_memory_of_captured_all_reduces_on_pcie_before_0_20():
    """31B on four L4 with 0.19.0, 256 sequences and a utilization of 0.92 ran out of memory while it captured; eager with 8 sequences ran."""
    four = parse_device("memory=24GiB,bandwidth=300GB/s,tflops=121,usable=21.96GiB,count=4,name=L4")
    options = {"tensor_parallel_size": 4, "max_model_len": 8_192, "gpu_memory_utilization": 0.92}

    def severity(version: str, device: Accelerator, **more: object) -> str | None:
        found = plan(asked("31B-it", "", version, **options, **more).changed(device=device)).findings
        return next((one.severity for one in found if one.id == "FIT05"), None)

    assert severity("0.19.0", four, max_num_seqs=256) == "block"
    assert severity("0.19.0", four, max_num_seqs=8, enforce_eager=True) is None
    assert severity("0.20.0", four, max_num_seqs=256) is None
    for linked in ("4 x H100", "4 x A100"):
        assert severity("0.19.0", replace(four, name=linked), max_num_seqs=256) is None


def test_a_page_that_does_not_divide_the_largest_one_is_padded():
    """A public measurement on an L40S with 0.26.0 (vllm-project/vllm#40388): 15.18 GiB hold 12.73 requests of 32,768 tokens, and 9.93 with scales."""
    for dtype, requests in (("fp8", 12.73), ("fp8_per_token_head", 9.93)):
        layout = layout_of(resolved("26B-A4B-it", kv_cache_dtype=dtype))
        blocks = int(15.18 * GIB // layout.block_bytes)
        held = blocks_per_request(layout, max_model_len=32_768, tokens_in_flight=8_192)
        assert blocks / held == pytest.approx(requests, abs=0.01)


def test_a_scale_per_head_is_told_not_to_double_the_cache():
    options = {"kv_cache_dtype": "fp8_per_token_head", "max_num_batched_tokens": 8_192}
    found = [plan(asked("31B-it", "H200", "0.31.0", max_model_len=n, **options)) for n in (65_536, 262_144)]
    told = [next(one for one in each.findings if one.id == "FIT07") for each in found]
    assert [one.severity for one in told] == ["info", "warn"]
    assert "1.23 times as many as with bf16. With a scale per head, the pages of one kind" in told[1].message
    assert "FIT07" not in [one.id for one in plan(asked("31B-it", "H200", kv_cache_dtype="fp8")).findings]


@pytest.mark.parametrize("row", stored_pages(), ids=str)
def test_layouts_are_those_of_vllm(row: PageRow):
    layout = layout_of(resolved(row.model, tensor_parallel_size=row.tp, kv_cache_dtype=row.kv_cache_dtype))
    held = blocks_per_request(layout, max_model_len=row.max_model_len, tokens_in_flight=row.tokens_in_flight)
    assert (layout.block_bytes, held) == (row.block_bytes, row.blocks)


@pytest.mark.parametrize("dtype", ["int8_per_token_head", "fp8_per_token_head"])
def test_a_scale_per_token_and_head_is_refused_on_a_tpu(dtype: str):
    with pytest.raises(PlanningError, match="vLLM on TPU does not have"):
        resolved("31B-it", "v6e-4", kv_cache_dtype=dtype)


def test_graphs_of_an_amd_gpu_grow_with_the_layers():
    """26B-A4B and 31B on an MI300X (xbill9/gemma4-dev 5a5636dc1cc2, 2026-10-08): 0.9 of 191.69 GiB are as much as 0.8822 and 0.8659 without graphs."""
    device = parse_device("memory=192GiB,bandwidth=5300GB/s,tflops=1307,usable=191.69GiB,name=MI300X")
    for model, without in (("26B-A4B-it", 0.8822), ("31B-it", 0.8659)):
        base = asked(model, "", "0.31.1rc1", max_num_seqs=1_024, max_num_batched_tokens=16_384)
        subject = examine(base.changed(device=device))
        assert graph_gib(subject.resolved) == pytest.approx(191.69 * (0.9 - without), rel=0.07)
