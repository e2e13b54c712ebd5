"""What must hold when one thing changes and all else stays: the memory of a device, the tokens of a step, the number of chips."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gemma_serving.planning.cost.subject import subject_of
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.hardware import ACCELERATORS, Accelerator
from gemma_serving.planning.memory.budget import memory_plan
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.model.catalog import model_ids
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import MemoryPlan
from gemma_serving.planning.settings.image import NO_IMAGE, image_of_version
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import IMAGE_TOKENS, VllmOptions
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed import steps
from gemma_serving.planning.speed.serving import LoadedServer, server_of, throughput_plan, workload_plan
from tests.laws import examples
from tests.records import replace

RELEASES = (None, "0.11.1", "0.18.0", "0.19.0", "0.21.0", "0.24.0", "0.25.1", "0.26.1", "0.27.1", "0.28.0", "0.29.1")
LATER = ("0.30.0", "0.31.0", "0.33.0", "0.99.0", "nightly")
"""Releases on both sides of each change of `planning.question.releases`, and an unknown one."""
TEXT_ONLY = {"image": 0, "video": 0, "audio": 0}
ROUNDING = 1e-6

laws = settings(
    max_examples=examples(test=15, part=200, night=4_000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def often_unset(*values: object) -> st.SearchStrategy[object]:
    """None in half of the cases, otherwise one of the values."""
    return st.none() | st.sampled_from(values)


OPTIONS = st.builds(
    VllmOptions,
    tensor_parallel_size=often_unset(1, 2, 4, 8),
    data_parallel_size=often_unset(2, 4),
    gpu_memory_utilization=often_unset(0.5, 0.85, 0.95, 0.97),
    max_model_len=often_unset(512, 2_048, 10_000, 32_768, 131_072),
    max_num_seqs=often_unset(1, 8, 64, 256, 1_024),
    max_num_batched_tokens=often_unset(64, 512, 2_048, 2_496, 8_192, 16_384),
    block_size=often_unset(16, 32, 128),
    kv_cache_dtype=often_unset("fp8", "int8_per_token_head"),
    enforce_eager=often_unset(True),
    cpu_offload_gib=often_unset(1.0, 5.0),
    async_scheduling=often_unset(False),
    disable_chunked_mm_input=often_unset(False),
    limit_mm_per_prompt=often_unset({}, TEXT_ONLY, {"image": 0}, {"image": 4}, {"image": 1, "audio": 2}),
    image_tokens=often_unset(*IMAGE_TOKENS),
    speculative_config=often_unset(
        {"method": "ngram", "num_speculative_tokens": 3},
        {"model": "google/gemma-4-E2B-it", "num_speculative_tokens": 4},
        {"model": "google/gemma-4-12B-it-assistant", "num_speculative_tokens": 4},
        {"model": "my/drafter", "num_speculative_tokens": 2},
    ),
    lora_adapters=often_unset({}, {"sql": "org/sql"}),
)


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """A model on a TPU or a GPU of any memory, with any options that change memory."""
    release = draw(st.sampled_from((*RELEASES, *LATER)))
    card = ACCELERATORS[draw(st.sampled_from(sorted(ACCELERATORS)))]
    usable_gib = draw(st.sampled_from([card.usable_gib, 39.0]) | st.floats(5, 150))
    return Question().changed(
        model=draw(st.sampled_from(model_ids())),
        accelerator=card.name,
        device=replace(card, usable_gib=usable_gib),
        quantization=draw(often_unset("fp8")),
        image=image_of_version(release) if release else NO_IMAGE,
        vllm=draw(OPTIONS),
        workload=draw(st.none() | st.just(Workload(input_tokens=100, output_tokens=100, users=4, adapters=3))),
    )


MORE_GIB = st.sampled_from([0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 60.0])


def resolved(question: Question) -> Resolved:
    """Return the deployment with its defaults; one that is refused is no example."""
    try:
        return resolve(question)
    except PlanningError:
        assume(False)
        raise


def pinned(found: Resolved) -> Question:
    """Return a deployment that states the values of its defaults, so that none of them follows from what changes."""
    options = replace(
        found.vllm,
        tensor_parallel_size=found.tp,
        gpu_memory_utilization=found.utilization,
        max_model_len=found.max_model_len,
        max_num_seqs=found.max_num_seqs,
        max_num_batched_tokens=found.max_num_batched_tokens,
        block_size=found.block_size,
        lora_adapters=found.question.settings.vllm.lora_adapters,
    )
    return found.question.changed(vllm=options)


def with_memory(question: Question, usable_gib: float) -> Question:
    assert question.facts.device is not None
    return question.changed(device=replace(question.facts.device, usable_gib=usable_gib))


def fits(question: Question) -> bool:
    return plan_of(subject_of(resolve(question))).fits


def assert_no_less(less: MemoryPlan, more: MemoryPlan) -> None:
    assert more.kv_tokens >= less.kv_tokens
    assert more.kv_gib >= less.kv_gib - ROUNDING
    assert more.max_concurrency >= less.max_concurrency
    assert more.largest_max_model_len >= less.largest_max_model_len


@pytest.mark.law
@laws
@given(questions(), MORE_GIB)
def test_a_device_with_more_memory_never_loses_the_fit_of_settings_that_leave_defaults(question: Question, more: float):
    """With more memory the planner recommends more sequences, larger steps and longer requests, but none that no longer fit."""
    usable_gib = resolved(question).accelerator.usable_gib
    assert fits(with_memory(question, usable_gib + more)) or not fits(question)


def test_the_sequences_of_a_large_card_never_cost_it_the_fit():
    """From 40 GiB on, 256 sequences are recommended instead of 16. 31B in fp8 fits only with the fewer."""
    options = VllmOptions(kv_cache_dtype="int8_per_token_head", block_size=128, image_tokens=1_120)
    card = ACCELERATORS["A100-80GB"]
    for model, usable_gib, sequences in (("31B-it-FP8-Dynamic", 40.5, 16), ("31B-it-FP8-Dynamic", 60, 256)):
        found = resolve(
            Question().changed(
                model=f"RedHatAI/gemma-4-{model}",
                accelerator=card.name,
                device=replace(card, usable_gib=usable_gib),
                image=image_of_version("0.30.0"),
                vllm=options,
            )
        )
        assert (plan_of(subject_of(found)).fits, found.max_num_seqs) == (True, sequences)


@pytest.mark.law
@laws
@given(questions(), st.floats(0, 1))
def test_smaller_steps_have_no_fewer_kv_tokens(question: Question, share: float):
    same = pinned(resolved(question))
    tokens = same.settings.vllm.max_num_batched_tokens or 0
    smaller = same.changed(vllm=replace(same.settings.vllm, max_num_batched_tokens=max(int(tokens * share), 1)))
    assert_no_less(memory_plan(resolve(same)), memory_plan(resolve(smaller)))


# --- more chips ---

SLICES = (("v6e-1", "v6e-4"), ("v6e-4", "v6e-8"), ("v6e-1", "v6e-8"), ("v5e-1", "v5e-4"), ("v5e-4", "v5e-8"))
COUNTS = ((1, 2), (2, 4), (4, 8), (1, 8))
GPUS = sorted(one.name for one in ACCELERATORS.values() if not one.is_tpu and one.devices == 1)
WORKLOADS = st.builds(
    Workload,
    input_tokens=st.integers(1, 60_000),
    output_tokens=st.integers(1, 5_000),
    users=st.none() | st.integers(1, 3_000),
    prefix_share=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    images=st.integers(0, 2),
    adapters=st.sampled_from([0, 0, 3]),
)


@st.composite
def fewer_and_more_chips(draw: st.DrawFn) -> tuple[Accelerator, Accelerator]:
    """A slice and a larger one of its generation, or numbers of one card."""
    if draw(st.booleans()):
        few, many = (ACCELERATORS[name] for name in draw(st.sampled_from(SLICES)))
        return few, many
    card = ACCELERATORS[draw(st.sampled_from(GPUS))]
    few, many = (replace(card, devices=count) for count in draw(st.sampled_from(COUNTS)))
    return few, many


def without_communication(name: str) -> float:
    """Return a constant, with all-reduces that take no time and chunks of the longest sequence, however many heads a chip has."""
    changed = {"ALL_REDUCES_PER_LAYER": 0.0, "TPU_CHUNK_BYTES": 2.0**60}
    return changed[name] if name in changed else CONSTANT(name)


CONSTANT = steps.constant


@pytest.mark.law
@laws
@given(questions(), fewer_and_more_chips(), WORKLOADS)
def test_more_chips_are_slower_only_by_the_communication_between_them(
    question: Question, chips: tuple[Accelerator, Accelerator], workload: Workload
):
    """With all-reduces that take no time, and chunks of one length, a step of any size takes no longer on more chips, and no rate falls. Copied KV
    heads and padded experts are on each of the few chips too, and so never make more chips slower."""
    few = chips[0]
    whole = replace(question.settings.vllm, tensor_parallel_size=None, data_parallel_size=None, cpu_offload_gib=None)
    plain = question.changed(accelerator=few.name, device=few, vllm=whole, workload=None)
    same = pinned(resolved(plain)).changed(workload=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "constant", without_communication)
        slow, fast = (served(same.changed(device=one), one, workload) for one in chips)
        assume(slow.memory.kv_gib > 0)
        assert fast.memory.kv_tokens >= slow.memory.kv_tokens
        for requests in (1, 4, 16, 64, 256):
            assert fast.step(requests).total_s <= slow.step(requests).total_s * (1 + ROUNDING)
        rates = rates_of(fast)
        for name, rate in rates_of(slow).items():
            assert rates[name] >= rate * (1 - ROUNDING), name


def served(question: Question, accelerator: Accelerator, workload: Workload) -> LoadedServer:
    options = replace(question.settings.vllm, tensor_parallel_size=accelerator.devices)
    found = resolve(question.changed(vllm=options))
    return server_of(found, memory_plan(found), workload)


def rates_of(server: LoadedServer) -> dict[str, float]:
    """Return tokens per second of one request and of all, requests per second, and prompts that finish alone per second."""
    rates, found = throughput_plan(server), workload_plan(server, 1.0)
    return {
        "decode": rates.decode_tok_per_s,
        "plain": rates.plain_tok_per_s,
        "saturated": rates.saturated_tok_per_s,
        "first tokens": 1 / rates.ttft_s,
        "requests": found.requests_per_s.typical,
        "most requests": found.most_requests_per_s,
    }
