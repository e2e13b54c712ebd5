"""vLLM's command line, the recommended options, names and prices."""

from dataclasses import fields
from typing import Any

import pytest

from gemma_serving.contracts.path_guard import GUARD_ARGUMENT
from gemma_serving.planning.data.prices import LIST_PRICES
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.cloud_run import MountSettings
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import OPTIONS, VllmOptions, vllm_arguments, vllm_environment
from gemma_serving.planning.settings.workload import Workload
from tests.records import replace

CLOSED = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0",
    "VLLM_MAX_N_SEQUENCES": "64",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "0",
}
E2B = Question().changed(model="google/gemma-4-E2B-it", accelerator="v6e-4")


def test_a_server_with_a_key_has_the_path_guard():
    assert vllm_arguments(VllmOptions(), model_or_path="m", has_api_key=True)[-1] == GUARD_ARGUMENT
    assert GUARD_ARGUMENT not in vllm_arguments(VllmOptions(), model_or_path="m")


@pytest.mark.parametrize("given", [None, ()])
def test_no_domain_is_a_name_that_never_resolves(given: tuple[str, ...] | None):
    """An empty list would let vLLM read from everywhere."""
    arguments = vllm_arguments(VllmOptions(allowed_media_domains=given), model_or_path="m")
    assert "--allowed-media-domains=none.invalid" in arguments


def test_several_domains_are_several_words():
    arguments = vllm_arguments(VllmOptions(allowed_media_domains=("a.example", "b.example")), model_or_path="m")
    start = arguments.index("--allowed-media-domains")
    assert arguments[start : start + 4] == ("--allowed-media-domains", "a.example", "b.example", "--allowed-origins=[]")


def test_each_option_is_spelled_as_vllm_reads_it():
    options = VllmOptions(
        tensor_parallel_size=4,
        gpu_memory_utilization=0.9,
        max_model_len=16_384,
        cpu_offload_gib=14,
        enforce_eager=True,
        enable_prefix_caching=False,
        trust_remote_code=False,
        limit_mm_per_prompt={"image": 4, "audio": 1},
        speculative_config={"method": "ngram", "num_speculative_tokens": 3},
        extra_args=("--max-log-len=100",),
    )
    assert vllm_arguments(options, model_or_path="m", port=8000)[3:] == (
        "--tensor-parallel-size=4",
        "--gpu-memory-utilization=0.9",
        "--max-model-len=16384",
        "--enforce-eager",
        "--cpu-offload-gb=14",
        "--no-enable-prefix-caching",
        '--limit-mm-per-prompt={"audio":1,"image":4}',
        '--speculative-config={"method":"ngram","num_speculative_tokens":3}',
        "--allowed-media-domains=none.invalid",
        "--allowed-origins=[]",
        "--max-log-len=100",
    )


def test_every_option_has_a_flag_of_its_own_and_words_that_explain_it():
    options = OPTIONS.values()
    assert [option.name for option in options] == [f.name for f in fields(VllmOptions)]
    assert [option.name for option in options if not option.flag] == ["extra_args"]
    flags = [option.flag for option in options if option.flag]
    assert len(set(flags)) == len(flags)
    assert all(flag.startswith("--") for flag in flags)


def test_what_is_given_wins_over_what_is_recommended():
    merged = VllmOptions(max_model_len=1, extra_args=("--b",)).merged_over(
        VllmOptions(max_model_len=2, max_num_seqs=3, extra_args=("--a",))
    )
    assert (merged.max_model_len, merged.max_num_seqs, merged.extra_args) == (1, 3, ("--a", "--b"))
    assert VllmOptions(enforce_eager=False).merged_over(VllmOptions(enforce_eager=True)).enforce_eager is False


def test_the_environment_is_what_the_hardware_needs():
    def found(*, is_tpu: bool, is_moe: bool, **more: Any) -> dict[str, str]:
        environment = vllm_environment(is_tpu=is_tpu, is_moe=is_moe, **more)
        assert CLOSED.items() <= environment.items()
        return {name: value for name, value in environment.items() if name not in CLOSED}

    assert found(is_tpu=False, is_moe=True) == {}
    assert found(is_tpu=True, is_moe=False) == {"VLLM_XLA_CACHE_PATH": "/dev/shm/vllm_cache"}
    assert found(is_tpu=True, is_moe=True, xla_cache_path=None) == {"VLLM_TPU_BUCKET_PADDING_GAP": "512"}
    assert found(is_tpu=False, is_moe=False, cuda_compatibility=True) == {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}


def test_a_measured_rate_decides_the_price_of_a_million_tokens():
    cost = plan(E2B.changed(measured_tok_per_s=1_000)).cost
    assert cost.usd_per_million_tokens == pytest.approx(5.4 / 3.6)
    estimated = plan(E2B)
    assert estimated.cost.usd_per_million_tokens == pytest.approx(
        5.4 / 3_600 * 1e6 / estimated.throughput.decode_tok_per_s
    )


def test_provisioning_and_redundancy_change_the_price():
    standard = plan(E2B.changed(tpu=replace(E2B.tpu, provisioning=("standard",)))).cost
    assert standard.usd_per_hour == 4 * LIST_PRICES.tpu_chip_hour("v6e", "standard").usd
    run = Question().changed(model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4")
    redundant = run.changed(cloud_run=replace(run.cloud_run, zonal_redundancy=True))
    # Zonal redundancy has a separate price: 0.0002909 per second, instead of 0.0001867 (Cloud Run pricing).
    assert plan(redundant).cost.usd_per_hour - plan(run).cost.usd_per_hour == pytest.approx(3600 * 0.0001042)


def test_the_rate_of_a_drafter_stands_beside_the_rate_without_it():
    drafter = {"model": "google/gemma-4-12B-it-assistant", "num_speculative_tokens": 3}
    without = Question().changed(model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4")

    def speed(share: float | None):
        vllm = replace(without.settings.vllm, speculative_config=drafter)
        return plan(without.changed(vllm=vllm, workload=Workload(accepted_share=share))).throughput

    plain, assumed, stated = plan(without).throughput, speed(None), speed(0.2)
    assert (plain.accepted_share, assumed.accepted_share, stated.accepted_share) == (None, 0.6, 0.2)
    assert (plain.tokens_per_step, assumed.tokens_per_step, stated.tokens_per_step) == pytest.approx((1, 2.8, 1.6))
    assert assumed.plain_tok_per_s == pytest.approx(plain.decode_tok_per_s)
    # The step takes longer by the proposals and their verification, whether they are accepted or not.
    assert stated.decode_tok_per_s / assumed.decode_tok_per_s == pytest.approx(1.6 / 2.8)
    assert 1 < assumed.decode_tok_per_s / plain.decode_tok_per_s < 2.8


def test_a_mount_with_buffered_reads_is_the_default_and_a_plain_one_starts_too_late():
    large = Question().changed(model="google/gemma-4-31B-it", accelerator="RTX PRO 6000")
    assert (plan(large).weights_mode, plan(large).fits) == (MountSettings().mode, True) == ("fuse-buffered", True)
    assert plan(large.changed(weights_mode="fuse")).fits is False


def test_a_mount_with_buffered_reads_has_no_second_reader():
    """With `prefetch`, vLLM's thread and its loader each fetch the bytes (dev/judges/real/tests/test_mount.py)."""
    asked = Question().changed(model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4")
    assert plan(asked).vllm.safetensors_load_strategy is None
    assert plan(asked.changed(weights_mode="fuse")).vllm.safetensors_load_strategy == "prefetch"


def test_offloaded_weights_are_not_pushed_out_by_prefetched_pages():
    asked = Question().changed(model="google/gemma-4-31B-it-qat-w4a16-ct", accelerator="L4", weights_mode="fuse")
    assert plan(asked).vllm.safetensors_load_strategy == "prefetch"
    offloaded = asked.changed(vllm=VllmOptions(cpu_offload_gib=14))
    assert plan(offloaded).vllm.safetensors_load_strategy == "lazy"
