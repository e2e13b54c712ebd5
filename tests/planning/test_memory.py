"""The rules of weights and KV cache, one by one."""

import pytest

from gemma_serving.planning.machine.devices import parse_device
from gemma_serving.planning.memory.budget import (
    captured_graphs,
    memory_plan,
    token_buckets,
    utilization_leaving,
    verification_gib,
)
from gemma_serving.planning.memory.kv_cache import blocks_per_request, layout_of
from gemma_serving.planning.memory.margins import one_request
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.memory.speculation import drafter_bytes
from gemma_serving.planning.memory.tpu_programs import warm_up_gib
from gemma_serving.planning.memory.weights import _share, weights_of
from gemma_serving.planning.model.catalog import spec_of
from gemma_serving.planning.model.spec import Tensor
from gemma_serving.planning.question.resolved import Resolved, Runtime
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.planning.speed.startup import xla_programs
from tests.records import replace

GIB = 2**30
GEMMA = "google/gemma-4-"


def resolved(model: str, accelerator: str, quantization: str | None = None, **options: object) -> Resolved:
    return resolve(
        Question().changed(
            model=f"{GEMMA}{model}",
            accelerator=accelerator,
            quantization=quantization,
            vllm=VllmOptions(**options),  # pyright: ignore[reportArgumentType] - a test's shorthand
        )
    )


@pytest.mark.parametrize(
    ("model", "gib"),
    [("E2B-it", 2.32275), ("E4B-it", 3.71792), ("12B-it", 6.50137), ("26B-A4B-it", 15.30885), ("31B-it", 14.59767)],
)
def test_a_chip_of_four_has_the_weights_that_upstreams_own_server_has_there(model: str, gib: float):
    """Built without a TPU: dev/docs/compiled.md."""
    assert weights_of(resolved(model, "v6e-4")).device / GIB == pytest.approx(gib, abs=0.0002)


@pytest.mark.parametrize(("runtime", "share"), [("cuda", 1), ("tpu-torch", 1), ("tpu-jax", 1 / 4)])
def test_a_single_kv_head_is_copied_to_every_device_but_by_jax(runtime: Runtime, share: float):
    assert _share(Tensor("attention", 1, "kv", kv_heads=1), 4, runtime) == share


def test_each_chip_of_a_slice_holds_the_logits_of_every_proposal_whole():
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    verified = [
        verification_gib(resolved("26B-A4B-it", name, max_num_seqs=256, speculative_config=ngram))
        for name in ("v6e-1", "v6e-4")
    ]
    assert verified == [1.75, 1.75], "compiled for v6e-4: 1.751 GiB"


def test_the_start_up_of_speculative_decoding_keeps_the_inputs_of_all_programs():
    """Summed over the programs that upstream's own server lists: dev/docs/compiled.md."""
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    figures = (("v6e-4", 256, 27.616, 2.25), ("v6e-4", 32, 1.79, 0.281), ("v6e-1", 256, 32.1, 2.25))
    for accelerator, sequences, inputs_gib, largest_gib in figures:
        gib = warm_up_gib(resolved("26B-A4B-it", accelerator, max_num_seqs=sequences, speculative_config=ngram))
        assert gib == pytest.approx(inputs_gib + largest_gib, abs=0.005)
    assert warm_up_gib(resolved("26B-A4B-it", "H100", speculative_config=ngram)) == 0


def test_the_audio_tower_is_loaded_on_gpus_only():
    on_tpu, on_gpu = weights_of(resolved("E2B-it", "v6e-1")), weights_of(resolved("E2B-it", "L4"))
    assert (on_gpu.device - on_gpu.tables - on_tpu.device) / GIB == pytest.approx(0.57, abs=0.01)


def test_the_embedder_of_the_12b_stays_on_a_gpu_that_serves_text():
    """vLLM leaves out what a model marks as a tower; 12B marks nothing (gemma4_unified.py)."""
    text = {"image": 0, "video": 0, "audio": 0}
    for model, stays in (("12B-it", True), ("31B-it", False)):
        served, limited = resolved(model, "H200"), resolved(model, "H200", limit_mm_per_prompt=text)
        assert (weights_of(served).device == weights_of(limited).device) is stays


@pytest.mark.parametrize(("accelerator", "gib"), [("v5e-1", 11.31), ("v5e-4", 3.25)])
def test_packed_tables_are_padded_and_whole_on_each_chip(accelerator: str, gib: float):
    """12B with int8 linear layers and 4-bit tables, text only, on an image with patches (xbill9/gemma4-dev, 2026-09-30 and 2026-10-02)."""
    text = replace(
        spec_of(f"{GEMMA}12B-it"),
        native_quantization="fp8",
        stored_bytes=(("embedding", 0.5625),),
        tpu_torch_path=False,
        other_vision_params=0,
        is_multimodal=False,
        accepts_audio=False,
    )
    plan = memory_plan(resolve(Question().changed(model="", model_spec=text, accelerator=accelerator)))
    assert plan.weights_gib == pytest.approx(gib, rel=0.005)


def test_the_weights_of_a_draft_model_are_on_the_device_too():
    drafts = {"model": f"{GEMMA}31B-it-assistant", "num_speculative_tokens": 3}
    drafted = resolved("31B-it", "H100", speculative_config=drafts)
    assert drafted.drafter is not None
    added_gib = memory_plan(drafted).weights_gib - memory_plan(resolved("31B-it", "H100")).weights_gib
    assert added_gib == pytest.approx(drafter_bytes(drafted) / GIB)
    assert added_gib > 0.5


def test_position_tables_are_as_long_as_the_model_not_as_the_request():
    short, long = resolved("31B-it", "H100", max_model_len=1_024), resolved("31B-it", "H100", max_model_len=16_384)
    assert weights_of(short).tables == weights_of(long).tables == (256 + 512) * 262_144 * 2


def test_the_pytorch_path_of_the_12b_keeps_a_second_output_head():
    assert weights_of(resolved("12B-it", "v6e-1")).device / GIB == pytest.approx(24.56, rel=0.005)


@pytest.mark.parametrize(
    ("model", "kib"), [("E2B-it", 6), ("E4B-it", 16), ("12B-it", 16), ("26B-A4B-it", 20), ("31B-it", 80)]
)
def test_on_gpus_a_long_request_grows_by_its_full_attention_layers_only(model: str, kib: int):
    assert layout_of(resolved(model, "H100")).bytes_per_token == kib * 1024


@pytest.mark.parametrize(("model", "kib"), [("E2B-it", 18), ("E4B-it", 56), ("26B-A4B-it", 220), ("31B-it", 880)])
def test_on_tpu_every_layer_holds_the_full_length(model: str, kib: int):
    assert layout_of(resolved(model, "v6e-1")).bytes_per_token == kib * 1024


def test_short_requests_fill_their_windows_only_as_far_as_they_go():
    layout = layout_of(resolved("31B-it", "H100"))
    assert blocks_per_request(layout, max_model_len=64, tokens_in_flight=4_096) == 64 // 32 + 5 * (64 // 16 + 1)


def test_the_largest_length_really_fits_and_a_token_more_does_not():
    r = resolved("31B-it", "H100")
    m = memory_plan(r)
    fits = memory_plan(replace(r, max_model_len=m.largest_max_model_len))
    over = memory_plan(replace(r, max_model_len=m.largest_max_model_len + 1))
    assert fits.max_concurrency >= 1 > over.max_concurrency


@pytest.mark.parametrize(("sequences", "graphs"), [(8, 5 + 4), (256, 51 + 35), (64, 19 + 11)])
def test_graphs_are_captured_for_the_sizes_that_vllm_captures(sequences: int, graphs: int):
    assert captured_graphs(resolved("31B-it", "H100", max_num_seqs=sequences)) == graphs


@pytest.mark.parametrize(("length", "block"), [(16_384, 32), (32_768, 64), (2_048, 128)])
def test_tpu_blocks_grow_with_the_length(length: int, block: int):
    assert resolved("E2B-it", "v6e-1", max_model_len=length, max_num_seqs=256).block_size == block


@pytest.mark.parametrize(("tokens", "gap", "buckets"), [(4_096, 0, 9), (4_096, 512, 13), (16, 0, 1), (1_024, 0, 7)])
def test_xla_buckets_double_until_the_gap(tokens: int, gap: int, buckets: int):
    assert token_buckets(tokens, gap) == buckets


def test_a_model_that_sees_compiles_everything_twice():
    assert xla_programs(resolved("E2B-it", "v6e-1")) == 18


def test_the_head_is_there_twice_while_a_gpu_server_is_built():
    r = resolved("31B-it-qat-w4a16-ct", "L4")
    m = memory_plan(r)
    assert m.load_peak_device_gib - m.weights_gib == pytest.approx(262_144 * 5_376 * 2 / GIB + 0.33)


def test_offload_moves_layers_and_never_more_than_there_are():
    some = memory_plan(resolved("31B-it-qat-w4a16-ct", "L4", cpu_offload_gib=14))
    all_of_it = memory_plan(resolved("31B-it-qat-w4a16-ct", "L4", cpu_offload_gib=500))
    assert some.offloaded_gib == 14
    assert 15 < all_of_it.offloaded_gib < 17
    assert all_of_it.weights_gib > 3.5


@pytest.mark.parametrize(
    ("model", "length", "serves"), [("12B-it", 8_192, True), ("12B-it", 16_384, False), ("E4B-it", 65_536, True)]
)
def test_one_chip_serves_the_lengths_that_a_public_sweep_could_boot(model: str, length: int, *, serves: bool):
    m = memory_plan(resolved(model, "v6e-1", max_model_len=length, max_num_seqs=64))
    assert (m.max_concurrency >= 1) is serves


def test_experts_of_more_chips_never_take_more_of_each():
    parts = [weights_of(resolved("26B-A4B-it", "v6e-8", tensor_parallel_size=tp)).experts for tp in (1, 2, 4, 8)]
    assert parts == sorted(parts, reverse=True)


@pytest.mark.parametrize(
    ("model", "accelerator", "factor"), [("31B-it", "H100", 2), ("31B-it", "v6e-1", 2), ("E2B-it", "v6e-1", 1)]
)
def test_fp8_halves_kv_unless_a_tpu_chip_has_one_kv_head(model: str, accelerator: str, factor: int):
    plain, small = (layout_of(resolved(model, accelerator, kv_cache_dtype=dtype)) for dtype in ("auto", "fp8"))
    assert plain.bytes_per_token == factor * small.bytes_per_token


def test_the_budget_of_a_gpu_is_weights_activations_graphs_and_kv_cache():
    m = memory_plan(resolved("31B-it", "H100"))
    assert m.weights_gib + m.activations_gib + m.graphs_gib + m.kv_gib == pytest.approx(m.budget_gib)


def test_a_suggested_utilization_is_rounded_down():
    assert utilization_leaving(0.4, 100) == 0.99


def test_a_stated_length_is_never_shortened():
    """On cards from too small to large, one of which just misses a request of this length: 12B shortens its default there."""
    cards = (parse_device(f"memory={gib}GiB,bandwidth=936GB/s,tflops=71,name=card") for gib in range(24, 36))
    stated = VllmOptions(max_model_len=65_536)
    found = [
        resolve(Question().changed(model="google/gemma-4-12B-it", accelerator="", device=card, vllm=stated))
        for card in cards
    ]
    assert {one.max_model_len for one in found} == {65_536}
    assert any(one_request(memory_plan(one)).may_fail for one in found)
