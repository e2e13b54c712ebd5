# pyright: basic, reportMissingImports=false
# ruff: noqa: PLC0415, ANN401 - the packages are vLLM's, and take seconds to load
"""Drive vLLM's own scheduler in a closed loop, without a model. Run by the Python of vLLM's environment.

`python scheduler_loop.py MODEL SCENARIOS.json` prints an answer for each scenario, whose fields are columns of scheduler.csv. A step takes the time that
the scenario's costs say, and is scheduled while the one before it runs, as `EngineCore.step_with_batch_queue` does with
asynchronous scheduling.
"""

import heapq
import json
import os
import random
import statistics
import sys
from collections import deque
from pathlib import Path
from typing import Any

BLOCK = 32
CLIENT = 0.01
"""Time from the end of a response until the client's next request arrives, in steps of one decoding request."""
APART = 0.001
"""Time between the first requests of two users, so that the first one starts alone."""
SEED = 4
IN_FLIGHT = 2
"""Steps that are scheduled before the first of them has ended."""
SPREAD = 0.5
"""Drawn lengths are between this fraction less and more than the stated one."""


def scheduler_of(model: str, scenario: dict[str, Any]) -> Any:
    """Return vLLM's scheduler with the scenario's limits, and more KV cache than it needs."""
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    longest = max(2 * (scenario["prompt_tokens"] + scenario["output_tokens"]), scenario["budget_tokens"])
    blocks = (scenario["users"] + 1) * (longest // BLOCK + 2)
    config = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=scenario["users"],
            max_num_batched_tokens=scenario["budget_tokens"],
            max_model_len=longest,
            enable_chunked_prefill=True,
            async_scheduling=True,
            is_encoder_decoder=False,
        ),
        model_config=ModelConfig(model=model, dtype="float32", max_model_len=longest, skip_tokenizer_init=True),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=scenario["shared_tokens"] > 0),
    )
    config.cache_config.num_gpu_blocks = blocks
    layer = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], layer)]
    return AsyncScheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
    )


class ClosedLoop:
    """A closed loop: each user sends the next request when the response to the last one has ended."""

    def __init__(self, model: str, scenario: dict[str, Any]) -> None:
        """Make the scheduler; nothing is sent yet."""
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256) if scenario["shared_tokens"] else None
        self.scheduler = scheduler_of(model, scenario)
        self.scenario = scenario
        self.random = random.Random(SEED)  # noqa: S311 - lengths of requests
        self.now = 0.0
        self.sent = self.scheduled = self.ended = 0
        self.arriving: list[tuple[float, int, int]] = []
        self.records: dict[str, dict[str, Any]] = {}

    def send(self, at: float) -> None:
        """Send a request, if the scenario has one left."""
        if self.sent < self.scenario["users"] * self.scenario["rounds"]:
            heapq.heappush(self.arriving, (at, self.sent, self.ended))
            self.sent += 1

    def length(self, tokens: int) -> int:
        """Return a length of the scenario, the stated or a drawn one."""
        drawn = self.random.uniform(1 - SPREAD, 1 + SPREAD) if self.scenario["drawn"] else 1.0
        return max(round(tokens * drawn), 1)

    def receive(self) -> None:
        """Hand each request that has arrived to the scheduler."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        shared = self.scenario["shared_tokens"]
        while self.arriving and self.arriving[0][0] <= self.now:
            at, number, ended = heapq.heappop(self.arriving)
            own = self.length(self.scenario["prompt_tokens"] - shared)
            output = self.length(self.scenario["output_tokens"])
            request = Request(
                request_id=str(number),
                prompt_token_ids=[1] * shared + [2 + number] * own,
                sampling_params=SamplingParams(ignore_eos=True, max_tokens=output),
                pooling_params=None,
                block_hasher=self.hasher,
            )
            self.scheduler.add_request(request)
            self.records[request.request_id] = {"at": at, "ended": ended, "left": output}

    def run(self) -> dict[str, Any]:
        """Send all requests, and return the answer."""
        for user in range(self.scenario["users"]):
            self.send(user * APART)
        running: deque[tuple[dict[str, Any], float]] = deque()
        free_at = 0.0
        while self.scheduler.get_num_unfinished_requests() or self.arriving:
            self.receive()
            step = self.schedule() if len(running) < IN_FLIGHT else None
            if step is not None:
                free_at = max(free_at, self.now) + step["time"]
                running.append((step, free_at))
            elif running:
                step, ended_at = running.popleft()
                self.now = max(self.now, ended_at)
                self.finish(step)
            else:
                self.now = max(self.now, self.arriving[0][0])
        return self.answer()

    def schedule(self) -> dict[str, Any] | None:
        """Schedule a step; None if nothing can be scheduled before the running step has ended."""
        if not self.scheduler.get_num_unfinished_requests():
            return None
        output = self.scheduler.schedule()
        counts = output.num_scheduled_tokens
        if not counts:
            return None
        of = {name: self.scheduler.requests[name] for name in counts}
        prompts = sum(
            count for name, count in counts.items() if of[name].num_computed_tokens - count < of[name].num_prompt_tokens
        )
        self.scheduled += 1
        took = 1 + self.scenario["prompt_cost"] * prompts / 1_000 + self.scenario["decode_cost"] * (len(counts) - 1)
        unfinished = {name for name, request in of.items() if request.is_prefill_chunk}
        return {"output": output, "time": took, "number": self.scheduled, "unfinished": unfinished}

    def finish(self, step: dict[str, Any]) -> None:
        """Give each request of an ended step its token, unless its prompt goes on."""
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(step["output"].num_scheduled_tokens)
        tokens: list[list[int]] = [[] if name in step["unfinished"] else [0] for name in names]
        places = {name: place for place, name in enumerate(names)}
        result = ModelRunnerOutput(req_ids=names, req_id_to_index=places, sampled_token_ids=tokens)
        self.scheduler.update_from_output(step["output"], result)
        self.ended = step["number"]
        for name in names:
            if name in step["unfinished"]:
                continue
            record = self.records[name]
            record.setdefault("first", (self.now - record["at"], self.ended - record["ended"]))
            record["left"] -= 1
            if record["left"] == 0:
                self.send(self.now + CLIENT)

    def answer(self) -> dict[str, Any]:
        """Return the answer: the first requests of all users, and those after the second ones, when lengths have spread the requests."""
        records = [self.records[str(number)] for number in range(len(self.records))]
        users = self.scenario["users"]
        later = records[users * 2 :] if self.scenario["drawn"] else records[users:]
        span = later[-1]["at"] - later[0]["at"]
        return {
            "requests_per_time": round((len(later) - 1) / span, 6),
            "first_time": round(statistics.fmean(record["first"][0] for record in records[:users]), 3),
            "later_time": round(statistics.fmean(record["first"][0] for record in later), 3),
            "later_median_time": round(statistics.median(record["first"][0] for record in later), 3),
            "later_steps": round(statistics.fmean(record["first"][1] for record in later), 3),
        }


if __name__ == "__main__":
    os.environ |= {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    scenarios = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    json.dump([ClosedLoop(sys.argv[1], one).run() for one in scenarios], sys.stdout)
