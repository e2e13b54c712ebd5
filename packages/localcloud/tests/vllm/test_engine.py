"""The engine alone: order, limits and times, on an event loop whose time moves only when every task waits."""

import asyncio
import re
import sys
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

import pytest

from localcloud.tests.conftest import in_virtual_loop
from localcloud.vllm.engine import EngineGroup, PrefixCache, Sequence, SimulatedEngine, TokenTiming, timing
from localcloud.vllm.memory import KvCacheSize
from localcloud.vllm.metrics import EngineMetrics, Metrics
from localcloud.vllm.recorded import find_card, find_model
from localcloud.vllm.speculation import Speculation

OF_PROCESS = [
    *("virtual_memory_bytes", "resident_memory_bytes", "start_time_seconds", "cpu_seconds_total"),
    *("open_fds", "max_fds"),
]
"""Metrics of the process on a page of vLLM on Linux (vllm-project/vllm#26762), without `process_`."""


@dataclass
class Sink:
    length: int
    emitted: list[int] = field(default_factory=list)
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    last_start: int = 0
    """Index of the first token of the last event: a late engine sends several at once."""

    def emit(self, start: int, end: int) -> None:
        self.emitted.extend(range(start, end))
        self.last_start = start
        if end == self.length:
            self.finished.set()


def sample(text: str, name: str) -> float:
    """The value of a metric with one series."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name}{{"))
    return float(line.rpartition(" ")[2])


def engine(
    *,
    seqs: int = 8,
    tokens: int = 1000,
    ttft_s: float = 0.002,
    tpot_s: float = 0.001,
    speculation: Speculation | None = None,
    metrics: EngineMetrics | None = None,
) -> SimulatedEngine:
    capacity = KvCacheSize(
        max_model_len=500,
        max_num_seqs=seqs,
        max_num_batched_tokens=512,
        block_size=16,
        num_blocks=64,
        tokens=tokens,
        weights_gib=1,
        available_gib=1,
    )
    pace = TokenTiming(
        ttft_base_s=0,
        prefill_tokens_per_s=1e6,
        step_s=0,
        sequence_s=0,
        fixed_ttft_s=ttft_s,
        fixed_tpot_s=tpot_s,
    )
    return SimulatedEngine(
        capacity=capacity,
        timing=pace,
        metrics=metrics or page(speculation.proposals if speculation else 0).engines[0],
        prefix_caching=False,
        speculation=speculation,
    )


def page(proposals: int = 0, engines: int = 1) -> Metrics:
    return Metrics("m", {}, max_model_len=500, proposals=proposals, engines=engines)


def text_of(running: SimulatedEngine) -> str:
    """The metrics page of a server with this engine."""
    return running._metrics.page.text()


def sequence_of(length: int, prompt: Tokens[int] = (1, 2, 3)) -> tuple[Sequence, Sink]:
    sink = Sink(length)
    arrived_at = asyncio.get_running_loop().time()
    sequence = Sequence(
        prompt=prompt, length=length, max_tokens=length, finish_reason="stop", sink=sink, arrived_at=arrived_at
    )
    return sequence, sink


def submit(running: SimulatedEngine, length: int, prompt: Tokens[int] = (1, 2, 3)) -> tuple[Sequence, Sink]:
    sequence, sink = sequence_of(length, prompt)
    running.submit(sequence)
    return sequence, sink


@in_virtual_loop
async def test_replicas_share_the_requests_and_export_metrics_by_engine():
    metrics = page(engines=4)
    group = EngineGroup([engine(seqs=2, metrics=each) for each in metrics.engines])
    submitted = [sequence_of(5) for _ in range(12)]
    chosen = [group.submit(sequence) for sequence, _ in submitted]
    assert [chosen.count(one) for one in dict.fromkeys(chosen)] == [3, 3, 3, 3]
    assert group.requests == 12
    text = metrics.text()
    for rank in range(4):
        assert f'vllm:num_requests_running{{engine="{rank}",model_name="m"}} 2.0' in text
        assert f'vllm:num_requests_waiting{{engine="{rank}",model_name="m"}} 1.0' in text
        assert f'vllm:cache_config_info{{engine="{rank}"}} 1.0' in text
    headers = [line for line in text.splitlines() if line.startswith("#")]
    assert len(headers) == len(set(headers)), "a metric has one header for all engines"
    assert "process_" not in text
    assert re.findall(r"^process_(\w+) ", page().text(), re.MULTILINE) == (
        OF_PROCESS if sys.platform == "linux" else []
    )
    await asyncio.gather(*(sink.finished.wait() for _, sink in submitted))
    assert group.requests == 0


@in_virtual_loop
async def test_a_late_engine_sends_the_first_token_alone_so_a_stream_is_one():
    running = engine()
    sequence, sink = submit(running, 40)
    parts, emit = [], sink.emit
    sink.emit = lambda start, end: (parts.append((start, end)), emit(start, end))[1]  # type: ignore[method-assign]
    sequence.next_at -= 60
    for _ in range(2):
        running._advance(sequence, asyncio.get_running_loop().time())
    assert parts == [(0, 1), (1, 40)]


@in_virtual_loop
async def test_blocks_fill_as_tokens_come_until_the_last_sequence_is_preempted_and_starts_again():
    running = engine(tokens=160)
    usages: list[float] = []
    sequences = [submit(running, 70, range(30)) for _ in range(2)]
    assert (running.running, running.kv_usage) == (2, 0.4)
    for _, sink in sequences:
        emit = sink.emit
        sink.emit = lambda start, end, emit=emit: (usages.append(running.kv_usage), emit(start, end))[1]  # type: ignore[method-assign]
    await asyncio.gather(*(sink.finished.wait() for _, sink in sequences))
    assert max(usages) == 1.0
    assert [sink.emitted for _, sink in sequences] == [list(range(70))] * 2
    assert (running.running, running.waiting, running.kv_usage) == (0, 0, 0)
    text = text_of(running)
    assert sample(text, "vllm:num_preemptions_total") == 1
    # A preempted prompt is computed again, but counted once.
    assert sample(text, "vllm:prompt_tokens_total") == 60
    assert sample(text, "vllm:request_queue_time_seconds_count") == 2


@in_virtual_loop
async def test_a_preempted_sequence_can_be_aborted(monkeypatch):
    running, preempted = engine(tokens=160), asyncio.Event()
    preempt = running._preempt

    def seen(sequence: Sequence) -> None:
        preempt(sequence)
        preempted.set()

    monkeypatch.setattr(running, "_preempt", seen)
    (first, first_sink), (second, _) = (submit(running, 70, range(30)) for _ in range(2))
    await preempted.wait()
    assert (second.state, second.preemptions) == ("waiting", 1)
    # As in vLLM, a preemption is counted with the next token, which never comes here.
    assert sample(text_of(running), "vllm:num_preemptions_total") == 0
    running.abort(second)
    await first_sink.finished.wait()
    assert (first.state, second.state) == ("done", "done")
    assert (running.running, running.waiting, running.kv_usage) == (0, 0, 0)


@in_virtual_loop
async def test_a_sequence_longer_than_the_cache_runs_alone():
    running = engine(tokens=32)
    _, sink = submit(running, 60)
    await sink.finished.wait()
    assert sample(text_of(running), "vllm:num_preemptions_total") == 0


@pytest.mark.parametrize(
    ("config", "share"),
    [
        ({"method": "ngram", "num_speculative_tokens": 3}, 0.25),
        ({"model": "google/gemma-4-31B-it-assistant", "num_speculative_tokens": 4}, 0.60),
    ],
)
def test_a_draft_accepts_the_share_of_its_kind(config, share):
    speculation = Speculation(config)
    accepted = sum(speculation.draft() for _ in range(2000))
    assert accepted / (2000 * speculation.proposals) == pytest.approx(share, abs=0.01)


@in_virtual_loop
async def test_every_token_but_the_first_comes_from_a_draft():
    running = engine(speculation=Speculation({"method": "ngram", "num_speculative_tokens": 3}))
    _, sink = submit(running, 41)
    await sink.finished.wait()
    text = text_of(running)
    drafts, accepted = (sample(text, f"vllm:spec_decode_num_{name}_total") for name in ("drafts", "accepted_tokens"))
    assert 40 <= drafts + accepted < 44  # the last step may propose more than is left
    assert sample(text, "vllm:spec_decode_num_draft_tokens_total") == 3 * drafts
    by_position = [
        line for line in text.splitlines() if line.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total{")
    ]
    assert [line.partition(",position=")[2][:3] for line in by_position] == ['"0"', '"1"', '"2"']
    assert sum(float(line.rpartition(" ")[2]) for line in by_position) == accepted


@in_virtual_loop
async def test_an_aborted_sequence_makes_room_at_once():
    running = engine(seqs=1, ttft_s=60)
    first, _ = submit(running, 5)
    second, _ = submit(running, 5)
    assert second.state == "waiting"
    running.abort(first)
    assert (first.state, second.state) == ("done", "running")
    running.abort(second)
    running.abort(second)
    assert running.running == 0
    assert 'finished_reason="abort",model_name="m"} 2.0' in text_of(running)


def test_the_prefix_cache_counts_whole_blocks_and_forgets_the_oldest():
    cache = PrefixCache(block_size=4, blocks=4)
    first, second = list(range(10)), list(range(100, 116))
    assert cache.visit(first) == 0
    assert cache.visit(first) == 8
    assert cache.visit(first[:8]) == 4  # the last token is always computed
    assert cache.visit([0, 1, 2, 3, 99, 99, 99, 99, 99]) == 4
    cache.visit(second)
    assert cache.visit(first) == 0


@pytest.mark.parametrize(
    ("model", "card", "requests", "tok_per_s"),
    [
        ("google/gemma-4-E2B-it", "v6e-1", 16, 1903.4),
        ("google/gemma-4-31B-it-qat-w4a16-ct", "v6e-1", 1, 36.0),
        ("google/gemma-4-E2B-it", "nvidia-l4", 1, 50.4),
        # Four chips, and twice the bytes: scaled.
        ("google/gemma-4-31B-it-qat-w4a16-ct", "v6e-4", 1, 4 * 36.0),
        ("/models/other-8b", "nvidia-l4", 1, 25.76 * 15.99 / 16),
    ],
)
def test_a_server_serves_at_the_rate_of_its_recorded_boot_or_a_scaled_one(
    model: str, card: str, requests: int, tok_per_s: float
):
    found, runs_on = find_model(model), find_card(card)
    assert found is not None
    assert runs_on is not None
    paces = [
        timing(found, runs_on, tensor_parallel=runs_on.devices, offload_gib=0, speed=speed, ttft_s=ttft_s, tpot_s=None)
        for speed, ttft_s in ((1, None), (10, 0.2))
    ]
    assert requests / paces[0].interval_s(requests) == pytest.approx(tok_per_s, rel=0.01)
    assert paces[1].interval_s(requests) == pytest.approx(paces[0].interval_s(requests) / 10)
    assert paces[1].fixed_ttft_s == pytest.approx(0.02)
