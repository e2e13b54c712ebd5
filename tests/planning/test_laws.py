"""What must hold for every deployment, whatever its settings."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planning import CloudRunOptions, Deployment, PlanningError, StartupProbe, TpuOptions, VllmOptions, plan
from planning.machine.hardware import ACCELERATORS
from planning.memory.budget import memory_plan
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
UTILIZATIONS = st.floats(min_value=0.3, max_value=0.99)

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
@given(MODELS, PLACES, LENGTHS, UTILIZATIONS, st.floats(min_value=0, max_value=64))
def test_a_device_with_more_memory_never_holds_less(model, accelerator, length, utilization, more_gib):
    r = resolve(deployed(model, accelerator, max_model_len=length, gpu_memory_utilization=utilization))
    larger = replace(r, accelerator=replace(r.accelerator, usable_gib=r.accelerator.usable_gib + more_gib))
    before, after = memory_plan(r), memory_plan(larger)
    assert after.kv_gib >= before.kv_gib
    assert after.kv_tokens >= before.kv_tokens
    assert after.kv_blocks >= before.kv_blocks
    assert after.max_concurrency >= before.max_concurrency
    assert after.largest_max_model_len >= before.largest_max_model_len
    assert after.weights_gib == before.weights_gib


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
@given(MODELS, PLACES, LENGTHS, UTILIZATIONS, UTILIZATIONS)
def test_a_larger_budget_never_holds_less(model, accelerator, length, one, two):
    low, high = sorted((one, two))
    small, large = (
        plan(deployed(model, accelerator, max_model_len=length, gpu_memory_utilization=u)) for u in (low, high)
    )
    assert large.memory.kv_tokens >= small.memory.kv_tokens
    assert large.memory.max_concurrency >= small.memory.max_concurrency
    # A larger budget fits what the smaller one does, as long as it leaves the server what lies outside the budget.
    assert large.fits or not small.fits or [f.id for f in large.stopping] == ["FIT05"]
    assert large.memory.headroom_gib <= small.memory.headroom_gib


@laws
@given(MODELS, PLACES, st.floats(min_value=1, max_value=400), st.floats(min_value=1, max_value=400))
def test_more_host_memory_never_blocks(model, accelerator, one, two):
    low, high = (
        "FIT03" in {f.id for f in plan(replace(deployed(model, accelerator), host_memory_gib=gib)).findings}
        for gib in sorted((one, two))
    )
    assert low or not high


@laws
@given(MODELS, PLACES, UTILIZATIONS)
def test_the_largest_length_is_where_one_request_still_fits(model, accelerator, utilization):
    r = resolve(deployed(model, accelerator, gpu_memory_utilization=utilization, block_size=128))
    longest = memory_plan(r).largest_max_model_len
    assert longest <= r.spec.max_positions
    if longest:
        assert memory_plan(replace(r, max_model_len=longest)).max_concurrency >= 1
    if longest < r.spec.max_positions:
        assert memory_plan(replace(r, max_model_len=longest + 1)).max_concurrency < 1


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
@given(MODELS, st.sampled_from(["L4", "RTX PRO 6000"]), st.integers(1, 50), st.integers(1, 50), st.integers(0, 5))
def test_more_instances_never_cost_less(model, accelerator, one, two, idle):
    few, many = (
        plan(
            replace(
                deployed(model, accelerator),
                platform="cloud-run",
                cloud_run=CloudRunOptions(min_instances=idle, max_instances=n),
            )
        ).cost
        for n in sorted((one, two))
    )
    assert few.max_usd <= many.max_usd
    assert few.idle_usd_per_hour == many.idle_usd_per_hour


@laws
@given(MODELS, PLACES)
def test_a_full_batch_is_never_slower_than_one_request(model, accelerator):
    t = plan(deployed(model, accelerator)).throughput
    assert 0 < t.saturated_low_tok_per_s <= t.saturated_tok_per_s <= t.saturated_high_tok_per_s
    assert t.saturated_tok_per_s >= t.decode_tok_per_s * 0.999


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


@laws
@given(MODELS, PLACES)
def test_equal_deployments_give_equal_plans(model, accelerator):
    assert plan(deployed(model, accelerator)) == plan(deployed(model.upper(), accelerator.lower()))
