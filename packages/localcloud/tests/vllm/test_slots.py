"""The slots alone: order, limits and times, on an event loop whose time moves only when every task waits."""

import asyncio
import re
import sys
from collections.abc import Sequence

import pytest

from localcloud.tests.conftest import in_virtual_loop
from localcloud.vllm.boot import KvCacheSize
from localcloud.vllm.metrics import Metrics
from localcloud.vllm.recorded import find_card, find_model
from localcloud.vllm.slots import Drafts, Job, Pace, Slots, drafts_of, recorded_pace

OF_PROCESS = [
    *("virtual_memory_bytes", "resident_memory_bytes", "start_time_seconds", "cpu_seconds_total"),
    *("open_fds", "max_fds"),
]
"""Metrics of the process on a page of vLLM on Linux (vllm-project/vllm#26762), without `process_`."""
NO_DRAFTS = Drafts()
NGRAMS = drafts_of({"method": "ngram", "num_speculative_tokens": 3})


class Served:
    """Slots, and their metrics page."""

    def __init__(self, *, seqs: int = 8, tokens: int = 1000, ttft_s: float = 2.0, drafts: Drafts = NO_DRAFTS) -> None:
        capacity = KvCacheSize(
            max_model_len=500,
            max_num_seqs=seqs,
            block_size=16,
            num_blocks=64,
            tokens=tokens,
            available_gib=1,
        )
        pace = Pace(
            first_s=0,
            prompt_tok_per_s=1e6,
            step_s=0,
            sequence_s=0,
            drafts=drafts,
            fixed_ttft_s=ttft_s,
            fixed_tpot_s=1.0,
        )
        self.metrics = Metrics("m", {}, has_drafts=drafts.proposals > 0, max_loras=2)
        self.slots = Slots(capacity=capacity, replicas=1, pace=pace, metrics=self.metrics, caches=True)

    def ask(self, length: int, prompt: Sequence[int] = (1, 2, 3), adapter: str = "") -> "asyncio.Task[Job]":
        """Start a request."""
        return asyncio.create_task(self._run(length, prompt, adapter))

    async def _run(self, length: int, prompt: Sequence[int], adapter: str) -> Job:
        now = asyncio.get_running_loop().time()
        job = Job(prompt=prompt, length=length, finish_reason="stop", arrived_at=now, adapter=adapter)
        async for _ in self.slots.run(job):
            pass
        return job

    def value(self, name: str, more: str = "") -> float:
        """Return a metric of the page."""
        found = re.search(rf"^vllm:{name}{{[^}}]*{more}[^}}]*}} (\S+)$", self.metrics.text(), re.MULTILINE)
        assert found is not None, name
        return float(found[1])


@in_virtual_loop
async def test_the_metrics_of_load_move_with_the_slots_and_the_tokens_held():
    served = Served(seqs=2, tokens=100)
    asked = [served.ask(20, range(20)) for _ in range(3)]
    await asyncio.sleep(10)
    assert (served.value("num_requests_running"), served.value("num_requests_waiting")) == (2, 1)
    assert 0.4 < served.value("kv_cache_usage_perc") <= 0.6
    jobs = await asyncio.gather(*asked)
    assert [round(job.admitted_at - jobs[0].arrived_at) for job in jobs] == [0, 0, 21]
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert served.value(name) == 0
    assert served.value("generation_tokens_total") == 60
    assert served.value("request_success_total", 'reason="stop"') == 3


@in_virtual_loop
async def test_when_no_token_more_fits_the_last_request_starts_again():
    served = Served(tokens=160)
    first, last = await asyncio.gather(*(served.ask(70, range(start, start + 30)) for start in (0, 100)))
    assert (first.emitted, last.emitted) == (70, 70)
    assert served.value("num_preemptions_total") == 1
    # A preempted prompt is computed again, but counted once.
    assert served.value("prompt_tokens_total") == 60


@in_virtual_loop
async def test_a_request_longer_than_the_cache_runs_alone():
    served = Served(tokens=32)
    assert (await served.ask(60)).emitted == 60
    assert served.value("num_preemptions_total") == 0


@in_virtual_loop
async def test_a_request_that_leaves_makes_room_at_once_and_the_end_of_the_server_ends_all():
    served = Served(seqs=1, ttft_s=60)
    first, second = served.ask(5), served.ask(5)
    await asyncio.sleep(1)
    first.cancel()
    await asyncio.sleep(1)
    assert (served.value("num_requests_running"), served.value("num_requests_waiting")) == (1, 0)
    served.slots.end_all()
    job = await second
    assert (job.is_ended, job.emitted, served.value("num_requests_running")) == (True, 0, 0)
    assert served.value("request_success_total", 'reason="abort"') == 2


@in_virtual_loop
async def test_the_prefix_hits_are_whole_blocks_of_an_earlier_prompt():
    served, long = Served(), [*range(40)]
    prompts = (long, long, long[:32], [*long[:20], 7, 7])
    cached = [(await served.ask(1, prompt)).cached for prompt in prompts]
    assert cached == [0, 32, 16, 16]  # the last token is always computed
    assert (served.value("prefix_cache_queries_total"), served.value("prefix_cache_hits_total")) == (134, 64)


@in_virtual_loop
async def test_the_page_names_the_adapters_that_run_and_wait():
    served = Served(seqs=1)
    asked = [served.ask(2, adapter=name) for name in ("sql", "poems")]
    await asyncio.sleep(1)
    running = 'max_lora="2",running_lora_adapters="sql",waiting_lora_adapters="poems"'
    assert f"vllm:lora_requests_info{{{running}}}" in served.metrics.text()
    await asyncio.gather(*asked)


@in_virtual_loop
async def test_every_token_but_the_first_comes_from_a_draft():
    served = Served(drafts=NGRAMS)
    await served.ask(41)
    drafts, accepted = (served.value(f"spec_decode_num_{name}_total") for name in ("drafts", "accepted_tokens"))
    assert drafts + accepted == pytest.approx(40)
    assert served.value("spec_decode_num_draft_tokens_total") == pytest.approx(3 * drafts)


def test_a_draft_accepts_the_share_of_its_kind():
    drafted = drafts_of({"model": "google/gemma-4-31B-it-assistant", "num_speculative_tokens": 4})
    assert (NGRAMS.accepted, drafted.accepted) == (3 * 0.25, 4 * 0.60)


def test_each_replica_states_its_memory_and_one_has_the_load():
    text = Metrics("m", {"block_size": 16}, replicas=4).text()
    for rank in range(4):
        assert f'vllm:cache_config_info{{block_size="16",engine="{rank}"}} 1.0' in text
    headers = [line for line in text.splitlines() if line.startswith("#")]
    assert len(headers) == len(set(headers)), "a metric has one header for all engines"
    assert "process_" not in text
    alone = Metrics("m", {}).text()
    assert re.findall(r"^process_(\w+) ", alone, re.MULTILINE) == (OF_PROCESS if sys.platform == "linux" else [])


@pytest.mark.parametrize(
    ("model", "card", "requests", "tok_per_s"),
    [
        ("google/gemma-4-E2B-it", "v6e-1", 16, 1903.4),
        ("google/gemma-4-31B-it-qat-w4a16-ct", "v6e-1", 1, 36.0),
        ("google/gemma-4-E2B-it", "nvidia-l4", 1, 50.4),
        # Four chips: four times the bandwidth of the recorded server.
        ("google/gemma-4-31B-it-qat-w4a16-ct", "v6e-4", 1, 4 * 36.0),
        ("google/gemma-4-E2B-it", "nvidia-rtx-pro-6000", 1, 50.4 * 1597 / 300),
    ],
)
def test_a_server_serves_at_the_rate_of_its_recorded_boot_or_by_the_ratio_of_the_bandwidths(
    model: str, card: str, requests: int, tok_per_s: float
):
    found, runs_on = find_model(model), find_card(card)
    assert found is not None
    assert runs_on is not None
    paces = [
        recorded_pace(found, runs_on, runs_on.devices, drafts=Drafts(), speed=speed, ttft_s=ttft_s)
        for speed, ttft_s in ((1, None), (10, 0.2))
    ]
    assert requests / paces[0].interval_s(requests) == pytest.approx(tok_per_s, rel=0.01)
    assert paces[1].interval_s(requests) == pytest.approx(paces[0].interval_s(requests) / 10)
    assert paces[1].fixed_ttft_s == pytest.approx(0.02)
