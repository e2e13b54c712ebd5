"""The time of a server: first token, time per token and slots of the nearest recorded boot. A semaphore of `--max-num-seqs` is the queue.

Metrics of load come from the slots and from the tokens that running requests hold. Nothing else is computed: no batches, no blocks, no kernels.
"""

import asyncio
from bisect import bisect
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from localcloud.vllm.boot import KvCacheSize
from localcloud.vllm.metrics import Metrics
from localcloud.vllm.recorded import Model, SimulatedCard, nearest_boot

_ACCEPTED: Final = {"looked up": 0.25, "drafted": 0.60}
"""Accepted share of the proposals. Assumed; public reports of draft models have 0.5 to 0.8."""
_LOOKUPS: Final = frozenset({"ngram", "ngram_gpu", "suffix"})
_PROPOSAL_STEPS: Final = 0.15
"""Steps that a proposal takes, with its verification. Assumed."""
_REMEMBERED: Final = 256
"""Prompts that a later one is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """The mean draft of speculative decoding: its proposals, and those of them that the model accepts, which are always the first."""

    proposals: int = 0
    accepted: float = 0.0

    @property
    def steps_per_token(self) -> float:
        """Return the time of a token, in steps without proposals."""
        return (1 + self.proposals * _PROPOSAL_STEPS) / (1 + self.accepted)


def drafts_of(config: Mapping[str, Any]) -> Drafts:
    """Return the drafts of a value of `--speculative-config`."""
    proposals = int(config.get("num_speculative_tokens") or 0)
    is_looked_up = config.get("model") is None or str(config.get("method", "")) in _LOOKUPS
    return Drafts(proposals=proposals, accepted=proposals * _ACCEPTED["looked up" if is_looked_up else "drafted"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds of a recorded boot. `fixed_*` take their place. `step_s`: a step with one request; `sequence_s`: what each further one adds."""

    first_s: float
    prompt_tok_per_s: float
    step_s: float
    sequence_s: float
    drafts: Drafts = Drafts()
    fixed_ttft_s: float | None = None
    fixed_tpot_s: float | None = None

    def interval_s(self, running: int) -> float:
        """Return the time between two tokens of a request while this many run."""
        return self._step_s(running) * self.drafts.steps_per_token

    def _step_s(self, running: int) -> float:
        return self.step_s + (running - 1) * self.sequence_s if self.fixed_tpot_s is None else self.fixed_tpot_s

    def ttft_s(self, prompt_tokens: int, running: int = 1) -> float:
        """Return the time to the first token of a request that has a slot."""
        if self.fixed_ttft_s is not None:
            return self.fixed_ttft_s
        return self.first_s + prompt_tokens / self.prompt_tok_per_s + self._step_s(running)


def recorded_pace(
    model: Model,
    card: SimulatedCard,
    chips: int,
    *,
    drafts: Drafts,
    speed: float = 1.0,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
) -> Pace:
    """Return the pace of the nearest boot, `speed` times faster than real; on other chips times the ratio of the bandwidths."""
    boot = nearest_boot(model, card, chips)
    slower = boot.slower(card, chips) / speed
    return Pace(
        first_s=card.ttft_base_s / speed,
        prompt_tok_per_s=boot.prompt_tok_per_s / slower,
        step_s=boot.step_s * slower,
        sequence_s=boot.sequence_s * slower,
        drafts=drafts,
        fixed_ttft_s=None if ttft_s is None else ttft_s / speed,
        fixed_tpot_s=None if tpot_s is None else tpot_s / speed,
    )


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One request for a slot. Times are the event loop's; counts are tokens."""

    prompt: Sequence[int]
    length: int
    finish_reason: str
    arrived_at: float
    adapter: str = ""
    emitted: int = 0
    cached: int = 0
    is_ended: bool = False
    """True if the server ended it, because it shuts down."""
    admitted_at: float = 0.0
    first_at: float = 0.0
    task: "asyncio.Task[object] | None" = field(default_factory=asyncio.current_task)

    @property
    def tokens(self) -> int:
        """Return its tokens so far."""
        return len(self.prompt) + self.emitted


class Slots:
    """The slots of one server, and the tokens that its requests hold."""

    def __init__(self, *, capacity: KvCacheSize, replicas: int, pace: Pace, metrics: Metrics, caches: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._places = asyncio.Semaphore(capacity.max_num_seqs * replicas)
        self._tokens = capacity.tokens * replicas
        self._block_size = capacity.block_size
        self._pace, self._metrics, self._caches = pace, metrics, caches
        self._left = asyncio.Event()
        self._prompts: deque[Sequence[int]] = deque(maxlen=_REMEMBERED)
        self._waiting: dict[Job, None] = {}
        self._running: dict[Job, int] = {}
        """Tokens that each request holds, in the order of the admission."""
        self._used = 0
        metrics.show("num_requests_running", lambda: len(self._running))
        metrics.show("num_requests_waiting", lambda: len(self._waiting))
        metrics.show("num_requests_waiting_by_reason", lambda: len(self._waiting), "capacity")
        metrics.show("num_requests_waiting_by_reason", lambda: 0, "deferred")
        metrics.show("kv_cache_usage_perc", lambda: min(1.0, self._used / self._tokens))

    def end_all(self) -> None:
        """End all requests, whose clients get what was generated."""
        for job in (*self._waiting, *self._running):
            job.is_ended = True
            if job.task is not None:
                job.task.cancel()

    async def run(self, job: Job) -> AsyncIterator[int]:
        """Yield the tokens of a request that are due, each time that there are more. The last number is its length, unless the server ends it."""
        job.cached = self._cached(job.prompt)
        try:
            while job.emitted < job.length:
                await self._admit(job)
                try:
                    async for emitted in self._steps(job):
                        yield emitted
                finally:
                    self._leave(job)
        except asyncio.CancelledError:
            self._finish(job, "abort")
            if not job.is_ended or job.task is None:
                raise
            job.task.uncancel()
            return
        except GeneratorExit:
            self._finish(job, "abort")
            raise
        self._finish(job, job.finish_reason)

    async def _admit(self, job: Job) -> None:
        """Wait for a slot, and until the request's tokens fit."""
        waits = self._places.locked() or not self._fits(job)
        self._waiting[job] = None
        self._show_adapters()
        try:
            await self._places.acquire()
            while not self._fits(job):
                self._places.release()
                await self._left.wait()
                await self._places.acquire()
        finally:
            del self._waiting[job]
        self._hold(job, job.tokens)
        self._show_adapters()
        if not job.admitted_at:
            # A request that did not wait is timed from its arrival, so a busy event loop does not lengthen its first token.
            job.admitted_at = self._loop.time() if waits else job.arrived_at
            self._metrics.count("prompt_tokens", len(job.prompt))

    def _show_adapters(self) -> None:
        self._metrics.show_adapters((job.adapter for job in self._waiting), (job.adapter for job in self._running))

    def _fits(self, job: Job) -> bool:
        return not self._running or self._used + job.tokens <= self._tokens

    async def _steps(self, job: Job) -> AsyncIterator[int]:
        """Yield the tokens of one stay in a slot. It ends early if the request is the last that came, and no token more fits."""
        due = self._loop.time() if job.emitted else job.admitted_at
        due += self._pace.ttft_s(job.tokens - job.cached, len(self._running))
        last_at = due
        while job.emitted < job.length:
            now = self._loop.time()
            if due > now:
                await asyncio.sleep(due - now)
                now = self._loop.time()
            interval = self._pace.interval_s(len(self._running))
            more = job.length - job.emitted
            if interval > 0:
                more = min(more, 1 + int(max(now - due, 0.0) / interval) if job.emitted else 1)
            if self._used + more > self._tokens and len(self._running) > 1 and next(reversed(self._running)) is job:
                self._metrics.count("num_preemptions")
                return
            self._count(job, more, now, last_at)
            last_at, due = now, due + more * interval
            yield job.emitted

    def _count(self, job: Job, more: int, now: float, last_at: float) -> None:
        metrics = self._metrics
        if job.emitted:
            metrics.observe("inter_token_latency_seconds", (now - last_at) / more, more)
        else:
            job.first_at = now
            metrics.observe("time_to_first_token_seconds", now - job.arrived_at)
        drafted = more if job.emitted else more - 1  # the first token comes from the prompt
        metrics.count_drafts(
            drafted / (1 + self._pace.drafts.accepted), self._pace.drafts.proposals, self._pace.drafts.accepted
        )
        metrics.count("generation_tokens", more)
        job.emitted += more
        self._hold(job, job.tokens)

    def _hold(self, job: Job, tokens: int) -> None:
        self._used += tokens - self._running.get(job, 0)
        self._running[job] = tokens

    def _leave(self, job: Job) -> None:
        self._used -= self._running.pop(job)
        self._show_adapters()
        self._places.release()
        self._left.set()
        self._left = asyncio.Event()

    def _cached(self, prompt: Sequence[int]) -> int:
        """Return the tokens of a prompt, in whole blocks, with which an earlier one begins; never the last one, which must be computed."""
        if not self._caches:
            return 0
        size, found = self._block_size, 0
        for earlier in self._prompts:
            if earlier[:size] == prompt[:size]:
                most = min(len(earlier), len(prompt) - 1)
                same = bisect(range(1, most + 1), 0, key=lambda end, one=earlier: one[:end] != prompt[:end])
                found = max(found, same // size * size)
        self._prompts.append(prompt)
        self._metrics.count("prefix_cache_queries", len(prompt))
        self._metrics.count("prefix_cache_hits", found)
        return found

    def _finish(self, job: Job, reason: str) -> None:
        now_s = self._loop.time()
        self._metrics.count("request_success", 1, reason)
        self._metrics.observe("e2e_request_latency_seconds", now_s - job.arrived_at)
        if job.emitted:
            self._metrics.observe("request_decode_time_seconds", now_s - job.first_at)
