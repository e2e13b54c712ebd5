"""A benchmark's time to the first token is that of a steady server, and of the rounds that begin together."""

import pytest

from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.memory.budget import memory_plan
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.serving import LoadedServer, server_of, workload_plan
from tests.planning.corpus.measured import load
from tests.planning.corpus.sweeps import all_points
from tests.planning.corpus.traffic import Benchmark

USERS = 16.0


def server(input_tokens: int = 1_024, users: int = 16) -> LoadedServer:
    options = VllmOptions(max_model_len=16_384, max_num_seqs=64, max_num_batched_tokens=4_096)
    resolved = resolve(
        Question().changed(model="google/gemma-4-31B-it", accelerator="H200", quantization="fp8", vllm=options)
    )
    workload = Workload(input_tokens=input_tokens, output_tokens=512, users=users)
    return server_of(resolved, memory_plan(resolved), workload)


def test_more_rounds_lead_from_users_in_step_to_a_steady_server():
    """A mean contains the first round, in which all begin at once. A response takes what its first token does not."""
    found, rounds = server(), (2.0, 3.0, 5.0, 20.0, 1_000.0)
    steady = found.load(USERS)
    assert Benchmark(rounds=None, is_mean=True).times(found, USERS) == (steady.ttft_s, steady.tpot_s)
    first_s, _ = Benchmark(rounds=1.0, is_mean=True).times(found, USERS)
    times = [Benchmark(rounds=number, is_mean=False).times(found, USERS) for number in rounds]
    medians = [one for one, _ in times]
    assert medians == sorted(medians, reverse=True)
    assert (medians[0], medians[-1]) == pytest.approx((found.in_step_s(steady), steady.ttft_s), rel=0.01)
    assert medians[0] > 3 * medians[-1]
    for number, (median_s, token_s) in zip(rounds, times, strict=True):
        mean_s, _ = Benchmark(rounds=number, is_mean=True).times(found, USERS)
        assert mean_s == pytest.approx((first_s + (number - 1) * median_s) / number)
        assert median_s + 512 * token_s == pytest.approx(steady.ttft_s + 512 * steady.tpot_s)


@pytest.mark.parametrize("input_tokens", [16, 128, 512, 1_024, 4_096])
@pytest.mark.parametrize("users", [1, 2, 4, 8, 16, 32, 64])
def test_typical_users_are_not_in_step_and_the_band_holds_those_who_are(input_tokens: int, users: int):
    """Equal responses keep a benchmark's users in step."""
    found = server(input_tokens, users)
    running = float(min(users, found.slots))
    (first_s, token_s), steady = Benchmark(rounds=2.0, is_mean=False).times(found, running), found.load(running)
    planned = workload_plan(found, 1.0)
    assert planned.ttft_s.typical == pytest.approx(steady.ttft_s + planned.queue_s.typical)
    assert planned.tpot_s.typical == pytest.approx(steady.tpot_s)
    assert planned.in_step_ttft_s == pytest.approx(first_s + planned.queue_s.typical)
    assert planned.ttft_s.typical <= planned.in_step_ttft_s < planned.ttft_s.high
    assert planned.tpot_s.low < token_s < planned.tpot_s.high
    assert users > 1 or first_s == pytest.approx(steady.ttft_s)


def test_every_user_of_a_burst_waits_for_half_of_the_prompts():
    one, _ = Benchmark(rounds=1.0, is_mean=True).times(server(8_192, users=1), 1.0)
    many, _ = Benchmark(rounds=1.0, is_mean=True).times(server(8_192), USERS)
    assert many / one == pytest.approx((USERS + 1) / 2, rel=0.1)


def test_bursts_are_of_the_tool_that_waits_for_all_responses():
    bursts = {point.source for point in all_points() if point.note == "mean-bursts"}
    assert bursts == {"spark-26b", "spark-31b-nvfp4", "spark-benchmarks", "spark-e4b"}
    assert {point.benchmark.rounds for point in all_points() if point.source in bursts} == {1.0}


def test_published_bursts_that_the_comparison_leaves_out_are_within_a_factor_of_two():
    """One request for each user, on servers with a place for each; other sources sent prompts that the cache already had."""
    ratios: list[float] = []
    for point in all_points():
        if point.source not in {"air-gapped", "v5e-1-0929"} or not point.is_one_wave or point.ttft_ms is None:
            continue
        subject = examine(load().deployments[point.deployment])
        workload = Workload(input_tokens=point.input_tokens, output_tokens=point.output_tokens, users=point.users)
        found = server_of(subject.resolved, subject.memory, workload)
        if point.users <= found.slots:
            ratios.append(point.ttft_ms / 1e3 / point.benchmark.times(found, point.users)[0])
    assert len(ratios) >= 8
    assert all(1 / 2 <= ratio <= 2 for ratio in ratios)


def test_few_prompts_per_step_leave_the_first_token_of_many_users_near_that_of_one():
    """8 users compute a prompt in one of 60 steps, so another's rarely is in the way; a wave of all would take eight times as long."""
    one, many = (server(8_192, users).load(float(users)).ttft_s for users in (1, 8))
    assert one < many < 1.3 * one
