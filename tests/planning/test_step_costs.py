"""What a decoding step costs beyond its bytes at the memory's rate, on cards that were measured."""

import itertools
from random import Random

import pytest

from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.machine.devices import parse_device
from gemma_serving.planning.memory.weights import weights_of
from gemma_serving.planning.settings.image import image_of_version
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.prefill import body_params, prompt_of
from gemma_serving.planning.speed.steps import StepTime, all_reduced_s, bytes_per_s, products_s, step_of

SMALL = "google/gemma-4-31B-it-qat-w4a16-ct"
TEXT = {"image": 0, "audio": 0, "video": 0}


def subject_of(model: str, device: str) -> Subject:
    """Return a text server on a card, by its specifications."""
    return examine(
        Question().changed(
            model=model,
            accelerator="",
            device=parse_device(device),
            image=image_of_version("0.26.0"),
            vllm=VllmOptions(max_model_len=4_096, limit_mm_per_prompt=TEXT),
        )
    )


def step_ms(model: str, device: str) -> float:
    """Return the time of a step of one request, in milliseconds."""
    return 1e3 / subject_of(model, device).throughput.decode_tok_per_s


def empty_step(subject: Subject) -> StepTime:
    """Return the time of a step of one request without a context."""
    return step_of(subject.resolved, weights_of(subject.resolved), subject.memory, batch=1, tokens=0)


def read_s(subject: Subject) -> float:
    """Return the time in which the memory alone would read a token's weights."""
    return weights_of(subject.resolved).read_per_token / bytes_per_s(subject.resolved.accelerator)


H100 = "memory=80GiB,bandwidth=3350GB/s,tflops=989,name=H100"
A100 = "memory=80GiB,bandwidth=2039GB/s,tflops=312,name=A100"
B200 = "memory=180GiB,bandwidth=8000GB/s,tflops=2250,name=B200"
FAST = (H100, A100, B200)
FOUR_BITS = (
    "google/gemma-4-12B-it-qat-w4a16-ct",
    "google/gemma-4-26B-A4B-it-qat-w4a16-ct",
    SMALL,
)


def layers_s(subject: Subject) -> float:
    """Return the time of the layers of an empty step of one request: all but the head, which is read at the memory's rate."""
    weights = weights_of(subject.resolved)
    head = weights.read_per_token - (weights.layers - weights.experts + weights.expert_read)
    return empty_step(subject).memory_s - head / bytes_per_s(subject.resolved.accelerator)


@pytest.mark.parametrize(("device", "model"), list(itertools.product(FAST, FOUR_BITS)))
def test_more_bandwidth_does_not_unpack_four_bits_faster(device: str, model: str):
    """The kernel has one block of threads on each SM. Two cards with the same SMs unpack layers and experts in the same time."""
    card = parse_device(device)
    more = Random(f"{device} {model}").uniform(1.1, 3.0)  # noqa: S311 - draws cases, not secrets
    faster = device.replace(f"{card.bandwidth_gb_per_s:.0f}GB/s", f"{card.bandwidth_gb_per_s * more:.0f}GB/s")
    slow, fast = subject_of(model, device), subject_of(model, faster)
    assert bytes_per_s(fast.resolved.accelerator) > 1.09 * bytes_per_s(slow.resolved.accelerator)
    assert layers_s(fast) == pytest.approx(layers_s(slow))


@pytest.mark.parametrize("model", FOUR_BITS)
def test_more_units_unpack_four_bits_faster_but_not_in_proportion(model: str):
    """The start and the end of a kernel take the same time on each card."""
    ampere, hopper, blackwell = (layers_s(subject_of(model, device)) for device in (A100, H100, B200))
    assert blackwell < hopper < ampere
    assert blackwell / ampere > constant("sm_ghz.ampere") / constant("sm_ghz.datacenter-blackwell")


@pytest.mark.parametrize(
    ("device", "model"),
    [
        ("memory=24GiB,bandwidth=936GB/s,tflops=71,name=RTX 3090", FOUR_BITS[0]),
        ("memory=24GiB,bandwidth=300GB/s,tflops=121,name=L4", FOUR_BITS[0]),
        (H100, "google/gemma-4-31B-it"),
    ],
)
def test_a_card_with_less_bandwidth_than_that_waits_for_its_memory_and_so_does_another_scheme(device: str, model: str):
    subject = subject_of(model, device)
    assert empty_step(subject).memory_s == pytest.approx(read_s(subject))


def test_fp8_quantizes_its_activations_in_each_layer_where_it_computes_in_fp8():
    models = "RedHatAI/gemma-4-12B-it-FP8-Dynamic", "google/gemma-4-12B-it"
    for device, layers in ((H100, 48), (A100, 0)):
        fp8, bf16 = (empty_step(subject_of(model, device)).fixed_s for model in models)
        assert fp8 - bf16 == pytest.approx(layers * constant("fp8_layer_s")), device


def test_experts_in_fp8_compute_at_the_rate_of_bf16():
    """The kernels behind compute.fp8 are of dense layers; a prompt spends most of its products in experts."""

    def products(model: str) -> float:
        resolved = subject_of(model, H100).resolved
        return products_s(resolved, body_params(resolved.spec), 1_000)

    dense, sparse = (
        products(f"RedHatAI/gemma-4-{size}-it-FP8-Dynamic") / products(f"google/gemma-4-{size}-it")
        for size in ("31B", "26B-A4B")
    )
    assert dense == pytest.approx(1 / constant("compute.fp8"), rel=0.02)
    assert 0.75 < sparse < 0.9


RTX = "memory=96GiB,bandwidth=1597GB/s,tflops=503,usable=94.97GiB,name=RTX PRO 6000"


@pytest.mark.parametrize(("card", "share"), [(H100, "bandwidth.kv"), (RTX, "bandwidth.kv.blackwell")])
def test_keys_and_values_are_read_at_the_rate_of_the_kernel(card: str, share: str):
    subject = subject_of("google/gemma-4-31B-it", card)
    weights = weights_of(subject.resolved)
    one, other = (
        step_of(subject.resolved, weights, subject.memory, batch=16, tokens=tokens).memory_s
        for tokens in (2_000, 3_000)
    )
    full = 10 * 2 * 4 * 512 * 2 * 16 * 1_000
    assert other - one == pytest.approx(full / constant(share) / bytes_per_s(subject.resolved.accelerator))


@pytest.mark.parametrize(("card", "row"), [(RTX, ""), (H100.replace("H100", "MI300X"), ".cdna")])
@pytest.mark.parametrize(("proposals", "parts"), [(0, "attention_parts"), (2, "")])
def test_one_block_of_threads_reads_a_part_of_a_context_or_all_of_it_to_verify_proposals(
    card: str, row: str, proposals: int, parts: str
):
    subject = subject_of("google/gemma-4-31B-it", card)
    one, other = (
        step_of(subject.resolved, subject.weights, subject.memory, batch=4, tokens=tokens, proposals=proposals).fixed_s
        for tokens in (4_000, 5_000)
    )
    read = 10 * 1_000 / constant(f"wide_tokens_per_s{row}")
    assert other - one == pytest.approx(read / (constant(parts) if parts else 1))


def test_only_a_card_that_was_measured_shares_its_memory():
    cards = {name: f"memory=128GiB,bandwidth=273GB/s,tflops=125,usable=121GiB,name={name}" for name in ("GB10", "Thor")}
    shared, other = (bytes_per_s(parse_device(card)) for card in cards.values())
    assert (shared, other) == (273e9 * constant("bandwidth.shared"), 273e9 * constant("bandwidth"))


def test_a_real_h100_takes_a_step_as_planned():
    """vLLM 0.26.0 with random weights, measured for this repository: 10.42 ms in bf16, 6.92 in FP8."""
    assert step_ms("google/gemma-4-12B-it", H100) == pytest.approx(10.42, rel=0.03)
    assert step_ms("RedHatAI/gemma-4-12B-it-FP8-Dynamic", H100) == pytest.approx(6.92, rel=0.03)


TPU_CASES = list(
    itertools.product(
        ["E2B-it", "E4B-it", "12B-it", "26B-A4B-it", "31B-it"],
        ["v5e-", "v6e-"],
        ["auto", "fp8"],
        itertools.product([1, 4], [2_048, 4_096, 8_192, 16_384, 65_536], ["0.23.0", "0.28.0", "0.29.0", "0.32.0"]),
        itertools.product([1, 4], [2_048, 4_096, 8_192, 16_384, 65_536], ["0.23.0", "0.28.0", "0.29.0", "0.32.0"]),
    )
)


def chunk_positions(subject: Subject) -> int:
    """Return the positions that the kernel of tpu-inference computes for a short sequence in a decoding step, by its own formula."""
    resolved, packing = subject.resolved, {2: 2, 1: 4}[subject.resolved.kv_bytes]
    total = 0
    for group in resolved.spec.groups:
        heads = -(-2 * max(1, group.attention.kv_heads // resolved.tp) // packing) * packing
        padded = 2 ** (heads - 1).bit_length()
        pages = -(-resolved.max_model_len // resolved.block_size)
        full = 16 * 1024 * 1024 * packing // 4 // (-(-group.attention.head_dim // 128) * 128) // padded
        total += group.count * min(full, pages * resolved.block_size)
    return total


@pytest.mark.law
def test_a_sequence_adds_its_whole_chunks_to_a_tpu_s_step_in_each_release(subtests: pytest.Subtests):
    for model, family, cache, *servers in Random(100).sample(TPU_CASES, 60):  # noqa: S311 - not for secrets
        found = [
            examine(
                Question().changed(
                    model=f"google/gemma-4-{model}",
                    accelerator=f"{family}{chips}",
                    image=image_of_version(release),
                    vllm=VllmOptions(max_model_len=length, kv_cache_dtype=cache),
                )
            )
            for chips, length, release in servers
        ]
        with subtests.test(f"{model} {family} {cache} {servers}"):
            first, second = (added_s(subject) / chunk_positions(subject) for subject in found)
            assert first == pytest.approx(second)
            assert first > 0


def added_s(subject: Subject) -> float:
    """Return the time that a further sequence of 64 tokens adds to a decoding step, without its bytes."""
    one, nine = (
        step_of(subject.resolved, subject.weights, subject.memory, batch=batch, tokens=64).fixed_s for batch in (1, 9)
    )
    return (nine - one) / 8


FOUR_3090 = "memory=24GiB,bandwidth=936GB/s,tflops=71,count=4,name=RTX 3090"


def test_four_cards_without_nvlink_decode_as_fast_as_public_ones():
    """76.9 tokens per second of 31B in w4a16, the median of a week (https://ollama.linkworksinc.com/posts/vllm-tp4-3090-benchmark)."""
    assert 1e3 / step_ms(SMALL, FOUR_3090) == pytest.approx(76.9, rel=0.1)


def test_two_cards_add_up_as_fast_as_cards_with_nvlink_do():
    """A public run of 31B in 4 bits on two RTX 3090: 59 tokens per second (noonghunna/club-3090). vLLM's own all-reduce serves two; four wait for NCCL."""
    two = FOUR_3090.replace("count=4", "count=2")
    assert 1e3 / step_ms(SMALL, two) == pytest.approx(59, rel=0.1)
    fixed = [
        empty_step(subject_of(SMALL, f"{cards}{link}")).fixed_s
        for cards in (two, FOUR_3090)
        for link in ("", " with NVLink")
    ]
    assert fixed[0] == fixed[1] == fixed[3] < fixed[2]


@pytest.mark.parametrize(
    ("device", "crosses"),
    [
        (FOUR_3090, True),
        (f"{FOUR_3090} with NVLink", False),
        (f"{H100},count=4", False),
        (H100, False),
    ],
)
def test_only_several_cards_without_nvlink_send_each_tokens_state_over_pcie(device: str, crosses: bool):
    resolved = subject_of(SMALL, device).resolved
    one_s, many_s = (all_reduced_s(resolved, tokens) for tokens in (1, 4_096))
    assert many_s == pytest.approx(4_096 * one_s)
    # 120 all-reduces of 5,376 bf16 values, of which each card sends one and a half times the bytes at half of 31.5 GB/s.
    assert one_s == pytest.approx(120 * 5_376 * 2 * 1.5 / 15.75e9 if crosses else 0)


def test_a_prompts_states_cross_pcie_too():
    slow, fast = (subject_of(SMALL, f"{FOUR_3090},link={rate}GB/s").resolved for rate in (31.5, 315))
    prompts = [prompt_of(one, Workload(input_tokens=2_048, output_tokens=1)).compute_s for one in (slow, fast)]
    assert prompts[0] - prompts[1] == pytest.approx(0.9 * all_reduced_s(slow, 2_048))
