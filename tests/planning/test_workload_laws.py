"""What must hold for the answers to every workload of every deployment."""

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.memory.budget import memory_plan
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.model.catalog import model_ids, spec_of
from gemma_serving.planning.question.drafters import drafters_for
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import Band, WorkloadPlan
from gemma_serving.planning.settings.image import NO_IMAGE, image_of_version
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import IMAGE_TOKENS, VllmOptions
from gemma_serving.planning.settings.workload import DEFAULT_IMAGE_TOKENS, Workload
from gemma_serving.planning.speed.serving import server_of, workload_plan
from tests.laws import examples
from tests.records import replace

USD_PER_HOUR = 2.0
LEAST = 1e-6
MEASURED = sorted(one.name for one in ACCELERATORS.values() if not one.is_tpu or one.has_measured("TPU_STEP_S"))
"""Relative rounding of sums."""

laws = settings(
    max_examples=examples(test=15, part=120, night=2_000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)


@st.composite
def servers(draw: st.DrawFn) -> Resolved:
    options = VllmOptions(
        max_model_len=draw(st.sampled_from([4_096, 16_384, 131_072])),
        max_num_seqs=draw(st.sampled_from([1, 8, 64, 256])),
        max_num_batched_tokens=draw(st.sampled_from([512, 4_096, 8_192])),
        data_parallel_size=draw(st.sampled_from([None, 2, 4])),
        enforce_eager=draw(st.booleans()),
        enable_prefix_caching=draw(st.sampled_from([None, True, False])),
        speculative_config=draw(
            st.sampled_from(
                [
                    None,
                    {"method": "ngram", "num_speculative_tokens": 3},
                    {"model": "google/gemma-4-E2B-it", "num_speculative_tokens": 4},
                    {"model": "my/drafter", "num_speculative_tokens": 2},
                ]
            )
        ),
    )
    return resolve(
        Question().changed(
            model=draw(st.sampled_from(model_ids())),
            accelerator=draw(st.sampled_from(MEASURED)),
            image=draw(st.sampled_from([NO_IMAGE, *map(image_of_version, ("0.26.1", "0.29.1"))])),
            vllm=options,
        )
    )


workloads = st.builds(
    Workload,
    input_tokens=st.integers(1, 200_000),
    output_tokens=st.integers(1, 20_000),
    users=st.none() | st.integers(1, 5_000),
    prefix_share=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    images=st.integers(0, 4),
    image_tokens=st.sampled_from([None, *IMAGE_TOKENS]),
    videos=st.integers(0, 2),
    audio_s=st.sampled_from([0.0, 30.0]),
    adapters=st.sampled_from([0, 3]),
    accepted_share=st.none() | st.floats(0, 1),
)
RATES = st.floats(1e-6, 1e6)


def answer(server: Resolved, workload: Workload) -> WorkloadPlan:
    return workload_plan(server_of(server, memory_plan(server), workload), USD_PER_HOUR)


def bands_of(found: WorkloadPlan) -> dict[str, Band]:
    return {name: value for name, value in asdict(found).items() if isinstance(value, Band)}


def at_least(value: float, least: float) -> bool:
    return value >= least * (1 - LEAST) - LEAST


@pytest.mark.law
@laws
@given(servers(), workloads, st.none() | RATES)
def test_every_answer_is_a_number_inside_its_band(server: Resolved, workload: Workload, rate: float | None):
    asked = workload if rate is None else replace(workload, users=None, rate_per_s=rate)
    found = answer(server, asked)
    for name, band in bands_of(found).items():
        assert all(math.isfinite(value) and value >= 0 for value in (band.low, band.typical, band.high)), name
        assert band.low <= band.typical <= band.high, name
    assert found.ttft_s.low > 0
    assert found.tpot_s.low > 0
    assert found.output_tok_per_s.low > 0
    assert found.kv_share.high <= 1
    assert 0 <= found.prefix_hit_share.typical < 1
    assert found.most_users >= 1
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["bound"] == found.bound


DRAFTED = [(model, drafter) for model in model_ids() for drafter in drafters_for(spec_of(model))]


@pytest.mark.law
@laws
@given(st.sampled_from(DRAFTED), st.sampled_from(MEASURED), st.integers(1, 7), st.integers(1, 64), workloads)
def test_a_drafter_pays_from_the_share_that_breaks_even(
    drafted: tuple[str, str], accelerator: str, proposals: int, users: int, workload: Workload
):
    model, drafter = drafted
    options = VllmOptions(speculative_config={"model": drafter, "num_speculative_tokens": proposals})
    found = resolve(Question().changed(model=model, accelerator=accelerator, vllm=options))
    memory = memory_plan(found)

    def rate(share: float | None) -> float:
        """Return the tokens per second of one of the users; None is without speculative decoding."""
        server = server_of(found, memory, replace(workload, accepted_share=share))
        server = server if share is not None else replace(server, drafter=None)
        return server.tokens_per_step / server.step(users).total_s

    even, plain = server_of(found, memory, workload).break_even_share(users), rate(None)
    assert even is not None
    if even == 0:
        assert rate(0) >= plain
    elif even >= 1:
        assert rate(1) <= plain
    else:
        assert rate(even) == pytest.approx(plain)
        assert rate(even / 2) < plain < rate((even + 1) / 2)


@pytest.mark.law
@laws
@given(servers(), workloads, st.sampled_from([None, *IMAGE_TOKENS]))
def test_images_have_the_server_s_size_unless_the_workload_states_one(
    server: Resolved, workload: Workload, size: int | None
):
    with_size = replace(server, vllm=replace(server.vllm, image_tokens=size))
    text, pictures = (answer(with_size, replace(workload, images=images)).prompt_tokens for images in (0, 3))
    assert pictures - text == 3 * ((workload.image_tokens or size or DEFAULT_IMAGE_TOKENS) + 2)


@pytest.mark.law
@laws
@given(servers(), workloads, st.integers(1, 100_000))
def test_longer_prompts_are_never_faster(server: Resolved, workload: Workload, more: int):
    plain = replace(workload, prefix_share=0.0)
    short, long = answer(server, plain), answer(server, replace(plain, input_tokens=plain.input_tokens + more))
    assert at_least(long.request_s.typical, short.request_s.typical * 0.999) or plain.users is None
    assert at_least(short.output_tok_per_s.typical, long.output_tok_per_s.typical)
    assert short.most_users >= long.most_users
    assert at_least(short.most_requests_per_s, long.most_requests_per_s)


@pytest.mark.law
@laws
@given(servers(), workloads, st.integers(1, 256))
def test_what_preempted_requests_compute_again_is_in_the_time_of_tokens(
    server: Resolved, workload: Workload, users: int
):
    """vLLM preempts a request in the middle of its response, so its first token is as early as on a server with more room."""
    found = server_of(server, memory_plan(server), workload)
    full, roomy = (replace(found, whole_slots=slots).load(float(users)) for slots in (1, found.kv_slots))
    assert at_least(roomy.ttft_s, full.ttft_s)
    assert full.tpot_s >= roomy.tpot_s
    assert at_least(
        full.ttft_s + full.tpot_s * workload.output_tokens, roomy.ttft_s + roomy.tpot_s * workload.output_tokens
    )
