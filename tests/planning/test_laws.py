"""What must hold for every deployment, whatever its settings."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planning import CloudRunOptions, Deployment, PlanningError, StartupProbe, TpuOptions, VllmOptions, plan
from planning.machine.hardware import ACCELERATORS
from planning.memory.resolve import WEIGHTS_MODES, resolve
from planning.memory.weights import weights_of
from planning.model.catalog import model_ids
from planning.model.hf_config import model_from_config
from planning.solve.plan_json import plan_json
from planning.units import align_to, ceil_div, next_power_of_two
from tests.laws import examples

MODELS = st.sampled_from(model_ids())
PLACES = st.sampled_from(sorted(ACCELERATORS))
LENGTHS = st.integers(min_value=64, max_value=131_072)

laws = settings(
    max_examples=examples(test=15, part=60, night=2000), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def deployed(model: str, accelerator: str, **options: object) -> Deployment:
    return Deployment(
        model=model,
        accelerator=accelerator,
        vllm=VllmOptions(**options),  # pyright: ignore[reportArgumentType] - a test's shorthand
    )


@laws
@given(
    st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=1, max_size=12),
    st.sampled_from([1, 4, 16]),
    st.booleans(),
    st.sampled_from([0, 8]),
)
def test_a_checkpoint_has_two_bytes_for_each_parameter(layers, kv_heads, tied, experts):
    hidden, heads, dim, mlp, vocab = 512, 16, 64, 1_024, 10_000
    config = {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": len(layers), "layer_types": layers}
    config |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim, "vocab_size": vocab}
    config |= {"num_experts": experts, "num_experts_per_tok": 2, "tie_word_embeddings": tied, "sliding_window": 128}
    attention = 2 * hidden * dim * (heads + kv_heads)
    feed_forward = 3 * hidden * mlp * max(experts, 1) + hidden * experts
    layer = attention + feed_forward + 2 * hidden
    params = len(layers) * layer + vocab * hidden * (1 if tied else 2) + hidden
    spec = model_from_config({"model_type": "drawn", **config}, name="drawn")
    sizes = weights_of(resolve(Deployment(model="drawn", accelerator="H200", model_spec=spec)))
    assert sizes.checkpoint == 2 * params
    assert sizes.device - sizes.tables == 2 * params


@laws
@given(MODELS, PLACES, st.floats(min_value=1, max_value=400), st.floats(min_value=1, max_value=400))
def test_more_host_memory_never_blocks(model, accelerator, one, two):
    low, high = (
        "FIT03" in {f.id for f in plan(replace(deployed(model, accelerator), host_memory_gib=gib)).findings}
        for gib in sorted((one, two))
    )
    assert low or not high


@laws
@given(MODELS, st.sampled_from(["v5e-4", "v6e-1", "v6e-8"]), st.integers(1, 604_800), st.integers(1, 604_800))
def test_a_longer_run_never_costs_less(model, accelerator, one, two):
    short, long = (
        plan(replace(deployed(model, accelerator), tpu=TpuOptions(max_run_duration_s=s))).cost
        for s in sorted((one, two))
    )
    assert short.max_usd <= long.max_usd
    assert short.usd_per_hour == long.usd_per_hour


@laws
@given(
    MODELS,
    st.sampled_from(["L4", "RTX PRO 6000", "H100"]),
    st.floats(min_value=0, max_value=40),
    st.floats(min_value=0, max_value=40),
)
def test_more_offload_is_never_faster(model, accelerator, one, two):
    little, much = (
        plan(deployed(model, accelerator, cpu_offload_gib=gib)).throughput.decode_tok_per_s
        for gib in sorted((one, two))
    )
    assert much <= little * 1.000001


_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "max_model_len": st.integers(-1, 10_000_000),
        "max_num_seqs": st.integers(-1, 100_000),
        "max_num_batched_tokens": st.integers(-1, 1_000_000),
        "block_size": st.integers(-1, 4_096),
        "tensor_parallel_size": st.integers(-1, 64),
        "gpu_memory_utilization": st.floats(-1, 2, allow_nan=False),
        "cpu_offload_gib": st.floats(-1, 200, allow_nan=False),
        "kv_cache_dtype": st.sampled_from(["auto", "fp8", "FP8_E4M3", "int3"]),
        "enforce_eager": st.booleans(),
        "limit_mm_per_prompt": st.dictionaries(st.sampled_from(["image", "audio", "video"]), st.integers(0, 100)),
        "speculative_config": st.just({"method": "ngram", "num_speculative_tokens": 3}),
    },
)
_PROBES = st.builds(
    StartupProbe,
    initial_delay_s=st.integers(-10, 500),
    period_s=st.integers(0, 500),
    failure_threshold=st.integers(0, 500),
    timeout_s=st.integers(0, 500),
)
_RUN = st.builds(
    CloudRunOptions,
    region=st.sampled_from([None, "us-east4", "nowhere"]),
    concurrency=st.none() | st.integers(1, 1_000),
    min_instances=st.integers(0, 5),
    max_instances=st.integers(0, 100),
    startup_probe=st.none() | _PROBES,
    gpu_quota=st.none() | st.integers(0, 10),
    cpu_quota=st.none() | st.integers(0, 100),
    memory_quota_gib=st.none() | st.floats(0, 500, allow_nan=False),
    mount_uid=st.none() | st.integers(0, 3_000),
    image_uid=st.none() | st.integers(0, 3_000),
)


@pytest.mark.law
@settings(
    max_examples=examples(test=30, part=300, night=2000), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    model=MODELS,
    accelerator=PLACES,
    options=_OPTIONS,
    quantization=st.sampled_from([None, "bf16", "fp8", "w4a16"]),
    mode=st.sampled_from([None, *WEIGHTS_MODES]),
    host=st.none() | st.floats(-1, 500, allow_nan=False),
    run=_RUN,
    duration_s=st.none() | st.integers(-10, 10**7),
)
def test_no_settings_crash_the_planner(  # noqa: PLR0917 - hypothesis passes what @given names
    model, accelerator, options, quantization, mode, host, run, duration_s
):
    deployment = replace(
        deployed(model, accelerator, **options),
        quantization=quantization,
        weights_mode=mode,
        host_memory_gib=host,
        cloud_run=run,
        tpu=TpuOptions(max_run_duration_s=duration_s),
    )
    try:
        p = plan(deployment)
    except PlanningError as error:
        text = str(error)
        assert text.endswith(".")
        assert "\n" not in text
        return
    document = plan_json(p)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert p.fits == (p.verdict == "fits") == (not p.stopping and p.verdict != "out-of-memory")
    assert p.memory.kv_gib >= 0
    assert p.memory.weights_gib > 0
    assert p.startup.total_s > 0


@laws
@given(st.integers(min_value=1, max_value=2**40), st.integers(min_value=1, max_value=2**20))
def test_rounding_up_is_the_least_multiple_that_is_enough(value, step):
    assert align_to(value, step) % step == 0
    assert value <= align_to(value, step) < value + step
    assert ceil_div(value, step) * step == align_to(value, step)


@laws
@given(st.integers(min_value=1, max_value=2**40))
def test_the_next_power_of_two_is_the_least(value):
    power = next_power_of_two(value)
    assert power.bit_count() == 1
    assert power // 2 < value <= power
