"""The simulated engine: admits requests, waits as long as a model does, and emits tokens.

One callback on the event loop serves all sequences. It emits every token that is due and sleeps until the next one. Each due time is
computed from the previous one, not from the current time, so delays do not add up. If the process is too slow, overdue tokens are emitted
together, as vLLM does with several tokens in one chunk.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol

from localcloud.vllm.memory import KvCacheSize
from localcloud.vllm.metrics import EngineMetrics
from localcloud.vllm.recorded import Model, SimulatedCard, nearest_boot
from localcloud.vllm.speculation import Speculation

_HORIZON_S: Final = 0.0005
"""Tokens due within this time are emitted immediately. Timers have a resolution of 1 ms, so this centers their error."""
_PCIE_GB_PER_S: Final = 25.0
"""Rate at which offloaded weights cross PCIe in each step. Measured: 14 GiB resulted in 1.6 tok/s."""
_WAITING_WEIGHT: Final = 4
"""A waiting request counts as much as four running ones (vLLM v1/engine/core_client.py, DPLBAsyncMPClient)."""


@dataclass(slots=True, kw_only=True)
class BlockPool:
    """All blocks of the KV cache, in units of `block_size` tokens. `in_use` may exceed `blocks` for one sequence that is longer than the cache.

    Simpler than vLLM: a block belongs to one sequence, so prompts with a common start hold it twice.
    """

    block_size: int
    blocks: int
    in_use: int = 0

    def needed(self, tokens: int) -> int:
        """Return the blocks of a sequence with this many tokens."""
        return -(-tokens // self.block_size)

    def fits(self, more: int) -> bool:
        """Return whether this many blocks are free."""
        return self.in_use + more <= self.blocks

    @property
    def usage(self) -> float:
        """Return the fraction in use, at most 1."""
        return min(1.0, self.in_use / self.blocks)


class Sink(Protocol):
    """The receiver of a sequence's tokens."""

    def emit(self, start: int, end: int) -> None:
        """Emit the tokens from index `start` to before `end`. The last call ends at the sequence's length."""
        ...

    def abort(self, end: int) -> None:
        """End the response after its first `end` tokens, because the server shuts down."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTiming:
    """Durations in real seconds. `fixed_*` override the recorded ones. The first token takes `ttft_base_s`, the prefill and one step.

    `step_s`: a step with one request; `sequence_s`: what each further one adds.
    """

    ttft_base_s: float
    prefill_tokens_per_s: float
    step_s: float
    sequence_s: float
    fixed_ttft_s: float | None
    fixed_tpot_s: float | None

    def interval_s(self, running: int, speculation: Speculation | None = None) -> float:
        """Return the time between two tokens of a sequence while this many sequences run."""
        step_s = self._full_step_s(running)
        return step_s if speculation is None else step_s * speculation.steps / speculation.tokens_per_step

    def _full_step_s(self, running: int) -> float:
        return self.step_s + (running - 1) * self.sequence_s if self.fixed_tpot_s is None else self.fixed_tpot_s

    def ttft_s(self, prompt_tokens: int, running: int = 1) -> float:
        """Return the time to the first token of a request that is computed at once. The token comes from a step of all running requests."""
        if self.fixed_ttft_s is not None:
            return self.fixed_ttft_s
        return self.ttft_base_s + prompt_tokens / self.prefill_tokens_per_s + self._full_step_s(running)


def timing(
    model: Model,
    card: SimulatedCard,
    *,
    tensor_parallel: int,
    offload_gib: float,
    speed: float,
    ttft_s: float | None,
    tpot_s: float | None,
) -> TokenTiming:
    """Return the timing of a model on a card, `speed` times faster than real."""
    boot = nearest_boot(model, card, tensor_parallel)
    slower = boot.slower(model, card, tensor_parallel) / speed
    offload_s = offload_gib * 1.073741824 / _PCIE_GB_PER_S
    return TokenTiming(
        ttft_base_s=card.ttft_base_s / speed,
        prefill_tokens_per_s=boot.prompt_tok_per_s / slower,
        step_s=boot.step_s * slower + offload_s / speed,
        sequence_s=boot.sequence_s * slower,
        fixed_ttft_s=None if ttft_s is None else ttft_s / speed,
        fixed_tpot_s=None if tpot_s is None else tpot_s / speed,
    )


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request in the engine. Times are the event loop's, in seconds; counts are tokens."""

    prompt: Tokens[int]
    length: int
    max_tokens: int
    finish_reason: str
    sink: Sink
    arrived_at: float
    stall: tuple[int, float] | None = None
    proposes: bool = True
    """False if speculative decoding proposes nothing for it."""
    emitted: int = 0
    blocks: int = 0
    """Blocks of the KV cache that it holds."""
    turn: int = 0
    """Number of its turns among the running sequences; a callback of an earlier turn is void."""
    was_admitted: bool = False
    preemptions: int = 0
    """Preemptions that the metrics do not have yet. vLLM counts them with the sequence's next token (observed with 0.32.0)."""
    left_of_draft: int = 0
    """Tokens of its current step, with speculative decoding."""
    cached: int = 0
    admitted_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    next_at: float = 0.0
    prefilled_s: float = 0.0
    """Prefill time of all requests up to this sequence's last token."""
    state: str = "new"

    @property
    def tokens(self) -> int:
        """Return its tokens so far."""
        return len(self.prompt) + self.emitted


class PrefixCache:
    """Blocks of earlier prompts. The least recently used ones are evicted first."""

    def __init__(self, *, block_size: int, blocks: int) -> None:
        self._block_size = block_size
        self._blocks = blocks
        self._known: OrderedDict[int, None] = OrderedDict()

    def visit(self, prompt: Tokens[int]) -> int:
        """Return the number of leading tokens that are cached (never the last one, which must be computed), and remember the prompt."""
        size = self._block_size
        digest = 0
        hits = 0
        unbroken = True
        for start in range(0, len(prompt) - size + 1, size):
            digest = hash((digest, tuple(prompt[start : start + size])))
            if digest in self._known:
                self._known.move_to_end(digest)
                if unbroken and start + size < len(prompt):
                    hits = start + size
            else:
                unbroken = False
                self._known[digest] = None
        while len(self._known) > self._blocks:
            self._known.popitem(last=False)
        return hits


class SimulatedEngine:
    """Runs sequences on the current event loop. Admission is first come, first served, limited by sequences and by KV cache.

    A sequence is admitted if all its tokens so far fit, and takes further blocks as its tokens come. If none is free, the sequence that was
    admitted last is preempted. It loses its blocks, waits before all others, and computes its tokens again (v1/core/sched/scheduler.py,
    with vLLM's default `scheduler_reserve_full_isl`).
    """

    def __init__(
        self,
        *,
        capacity: KvCacheSize,
        timing: TokenTiming,
        metrics: EngineMetrics,
        prefix_caching: bool,
        speculation: Speculation | None = None,
    ) -> None:
        self._capacity = capacity
        self._timing = timing
        self._metrics = metrics
        self._speculation = speculation
        self._prefix = (
            PrefixCache(block_size=capacity.block_size, blocks=capacity.num_blocks) if prefix_caching else None
        )
        self._pool = BlockPool(block_size=capacity.block_size, blocks=max(capacity.tokens // capacity.block_size, 1))
        self._waiting: deque[Sequence] = deque()
        self._heap: list[tuple[float, int, int, Sequence]] = []
        self._order = count()
        self._running: dict[Sequence, None] = {}
        """In the order of their admission."""
        self._prefill_free_at = 0.0
        self._prefilled_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        metrics.show("num_requests_running", lambda: self.running)
        metrics.show("num_requests_waiting", lambda: self.waiting)
        metrics.show("num_requests_waiting_by_reason", lambda: self.waiting, "capacity")
        metrics.show("kv_cache_usage_perc", lambda: self.kv_usage)

    @property
    def running(self) -> int:
        """Return the number of running sequences."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Return the number of waiting sequences."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Return the fraction of the KV cache that running sequences use."""
        return self._pool.usage

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence; its sink is called from the event loop."""
        sequence.state = "waiting"
        self._waiting.append(sequence)
        self._admit(self._loop.time(), at_once=True)
        self._schedule()

    def abort(self, sequence: Sequence) -> None:
        """Drop a sequence whose client has disconnected. A finished one is ignored."""
        if sequence.state == "waiting":
            self._waiting.remove(sequence)
            sequence.state = "done"
            self._metrics.count("request_success", 1, "abort")
        elif sequence.state == "running":
            self._finish(sequence, "abort", self._loop.time())
            self._admit(self._loop.time(), at_once=False)
            self._schedule()

    def abort_all(self) -> None:
        """Abort all sequences, whose clients get what was generated."""
        for sequence in (*self._waiting, *self._running):
            self.abort(sequence)
            sequence.sink.abort(sequence.emitted)

    def _admit(self, now: float, *, at_once: bool) -> None:
        while self._waiting and self.running < self._capacity.max_num_seqs:
            sequence = self._waiting[0]
            if self._running and not self._pool.fits(self._pool.needed(sequence.tokens)):
                return
            self._waiting.popleft()
            # A sequence that did not wait is timed from its arrival, so a busy event loop does not lengthen its TTFT.
            self._start(sequence, sequence.arrived_at if at_once else now)

    def _start(self, sequence: Sequence, now: float) -> None:
        sequence.state = "running"
        sequence.turn += 1
        self._running[sequence] = None
        self._hold(sequence, sequence.tokens)
        cached = 0 if self._prefix is None else self._prefix.visit(sequence.prompt)
        if not sequence.was_admitted:
            # vLLM counts a prompt and its time in the queue once, however often the sequence is preempted.
            sequence.was_admitted = True
            sequence.admitted_at = now
            sequence.cached = cached
            self._count_prompt(sequence)
        fixed = self._timing.fixed_ttft_s
        if fixed is not None:
            sequence.next_at = now + fixed
        else:
            begin = max(now, self._prefill_free_at)
            prefill_s = (sequence.tokens - cached) / self._timing.prefill_tokens_per_s
            self._prefill_free_at = begin + prefill_s
            self._prefilled_s += prefill_s
            sequence.next_at = self._prefill_free_at + self._timing.ttft_s(0, self.running)
        sequence.prefilled_s = self._prefilled_s
        self._stall(sequence)
        self._push(sequence)

    def _count_prompt(self, sequence: Sequence) -> None:
        prompt = len(sequence.prompt)
        if self._prefix is not None:
            self._metrics.count("prefix_cache_queries", prompt)
            self._metrics.count("prefix_cache_hits", sequence.cached)
            self._metrics.count("prompt_tokens_cached", sequence.cached)
        self._metrics.count("prompt_tokens", prompt)

    def _push(self, sequence: Sequence) -> None:
        heappush(self._heap, (sequence.next_at, next(self._order), sequence.turn, sequence))

    def _hold(self, sequence: Sequence, tokens: int) -> None:
        """Assign a sequence the blocks for this many tokens; 0 frees them all."""
        blocks = self._pool.needed(tokens)
        self._pool.in_use += blocks - sequence.blocks
        sequence.blocks = blocks

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Preempt sequences until this one can hold `tokens` tokens. Return False if it was preempted itself."""
        more = self._pool.needed(tokens) - sequence.blocks
        while self.running > 1 and not self._pool.fits(more):
            last = next(reversed(self._running))
            self._preempt(last)
            if last is sequence:
                return False
        self._hold(sequence, tokens)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        del self._running[sequence]
        self._hold(sequence, 0)
        sequence.state = "waiting"
        sequence.left_of_draft = 0
        self._waiting.appendleft(sequence)
        sequence.preemptions += 1

    @staticmethod
    def _stall(sequence: Sequence) -> None:
        if sequence.stall is not None and sequence.emitted >= sequence.stall[0]:
            sequence.next_at += sequence.stall[1]
            sequence.stall = None

    def _schedule(self) -> None:
        """Set the timer to the next token that is due."""
        if not self._heap:
            return
        due = self._heap[0][0]
        if self._timer is not None:
            if self._timer.when() <= due and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        heap = self._heap
        while heap and heap[0][0] <= now + _HORIZON_S:
            _, _, turn, sequence = heappop(heap)
            if sequence.state == "running" and sequence.turn == turn:
                self._advance(sequence, now)
        self._admit(now, at_once=False)
        self._schedule()

    def _advance(self, sequence: Sequence, now: float) -> None:
        """Emit the sequence's due tokens: one, or all overdue ones. The first is alone, because it comes from the step of the prompt."""
        speculation = self._speculation if sequence.proposes else None
        interval = self._timing.interval_s(self.running, speculation)
        begin, left = sequence.emitted, sequence.length - sequence.emitted
        tokens = 1
        if interval <= 0:
            tokens = left
        elif begin and sequence.stall is None and now - sequence.next_at > interval:
            tokens = min(left, 1 + int((now - sequence.next_at) / interval))
        if not self._make_room(sequence, sequence.tokens + tokens):
            return
        sequence.emitted = end = begin + tokens
        metrics = self._metrics
        if sequence.preemptions:
            metrics.count("num_preemptions", sequence.preemptions)
            sequence.preemptions = 0
        self._speculate(sequence, tokens - (begin == 0))
        metrics.count("generation_tokens", tokens)
        if begin == 0:
            sequence.first_at = now
            metrics.observe("time_to_first_token_seconds", now - sequence.arrived_at)
        else:
            metrics.observe("inter_token_latency_seconds", (now - sequence.last_at) / tokens, tokens)
        sequence.last_at = now
        if end == sequence.length:
            self._finish(sequence, sequence.finish_reason, now)
        else:
            # The prefills of other requests take steps from this one.
            sequence.next_at += tokens * interval + self._prefilled_s - sequence.prefilled_s
            sequence.prefilled_s = self._prefilled_s
            self._stall(sequence)
            self._push(sequence)
        sequence.sink.emit(begin, end)

    def _speculate(self, sequence: Sequence, tokens: int) -> None:
        """Count the drafts of these tokens. The first token of a sequence comes from its prompt, without a draft."""
        speculation = self._speculation
        while speculation is not None and sequence.proposes and tokens > 0:
            if sequence.left_of_draft == 0:
                accepted = speculation.draft()
                self._metrics.count_draft(speculation.proposals, accepted)
                sequence.left_of_draft = accepted + 1
            taken = min(tokens, sequence.left_of_draft)
            sequence.left_of_draft -= taken
            tokens -= taken

    def _finish(self, sequence: Sequence, reason: str, now: float) -> None:
        sequence.state = "done"
        del self._running[sequence]
        self._hold(sequence, 0)
        metrics = self._metrics
        metrics.count("request_success", 1, reason)
        metrics.observe("e2e_request_latency_seconds", now - sequence.arrived_at)
        metrics.observe("request_queue_time_seconds", sequence.admitted_at - sequence.arrived_at)
        metrics.observe("request_inference_time_seconds", now - sequence.admitted_at)
        if sequence.emitted:
            metrics.observe("request_prefill_time_seconds", sequence.first_at - sequence.admitted_at)
            metrics.observe("request_decode_time_seconds", now - sequence.first_at)
        if sequence.emitted > 1:
            between_s = (now - sequence.first_at) / (sequence.emitted - 1)
            metrics.observe("request_time_per_output_token_seconds", between_s)
        metrics.observe("request_prompt_tokens", len(sequence.prompt))
        metrics.observe("request_generation_tokens", sequence.emitted)
        metrics.observe("request_params_max_tokens", sequence.max_tokens)


class EngineGroup:
    """The engines of one server: with data parallelism several behind one port, each with its own KV cache, queue and metrics.

    Sends each request to the least loaded engine. Of equally loaded ones the next in turn gets it, as vLLM has an API server for each engine.
    """

    def __init__(self, engines: Tokens[SimulatedEngine]) -> None:
        self._engines = tuple(engines)
        self._turns = count()

    @property
    def requests(self) -> int:
        """Return the number of running and waiting requests of all engines."""
        return sum(engine.running + engine.waiting for engine in self._engines)

    def abort_all(self) -> None:
        """Abort all requests, as vLLM does when it shuts down."""
        for engine in self._engines:
            engine.abort_all()

    def submit(self, sequence: Sequence) -> SimulatedEngine:
        """Queue a sequence, and return its engine."""
        turn = next(self._turns) % len(self._engines)
        in_turn = (*self._engines[turn:], *self._engines[:turn])
        chosen = min(in_turn, key=lambda engine: _WAITING_WEIGHT * engine.waiting + engine.running)
        chosen.submit(sequence)
        return chosen
