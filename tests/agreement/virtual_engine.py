"""The simulated server's engine on a virtual clock: loads of a stack in no time, and the same on every machine."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean

import pytest

from localcloud.vllm import engine
from localcloud.vllm.engine import EngineGroup, Sequence, SimulatedEngine
from localcloud.vllm.metrics import Metrics
from tests.agreement.simulated_stacks import Served


class VirtualClock:
    """The part of an event loop that the engine uses, with a clock that jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, VirtualTimer]] = []
        self._order = count()

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, call: Callable[[], None]) -> "VirtualTimer":
        timer = VirtualTimer(due, call)
        heapq.heappush(self._timers, (due, next(self._order), timer))
        return timer

    def run(self) -> None:
        while self._timers:
            due, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                self.now = max(self.now, due)
                timer.call()


@dataclass
class VirtualTimer:
    due: float
    call: Callable[[], None]
    is_cancelled: bool = False

    def when(self) -> float:
        return self.due

    def cancelled(self) -> bool:
        return self.is_cancelled

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class User:
    """A user of a closed loop: sends its next request when a response is complete."""

    number: int
    load: "ClosedLoop"
    clock: VirtualClock
    server: EngineGroup
    done: int = 0
    arrived_s: float = 0.0
    firsts_s: list[float] = field(default_factory=list[float])
    """Times to the first token."""
    lasts_s: list[float] = field(default_factory=list[float])
    """Times from the first token to the last one."""

    def send(self) -> None:
        self.arrived_s = self.clock.now
        start = (self.number * self.load.requests + self.done) * self.load.prompt_tokens
        prompt = range(start, start + self.load.prompt_tokens)
        self.server.submit(
            Sequence(
                prompt=prompt,
                length=self.load.output_tokens,
                max_tokens=self.load.output_tokens,
                finish_reason="length",
                sink=self,
                arrived_at=self.clock.now,
            )
        )

    def emit(self, start: int, end: int) -> None:
        if start == 0:
            self.firsts_s.append(self.clock.now - self.arrived_s)
        if end == self.load.output_tokens:
            self.lasts_s.append(self.clock.now - self.arrived_s - self.firsts_s[-1])
            self.done += 1
            if self.done < self.load.requests:
                self.send()


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """Users that each send a request as soon as their last one is complete."""

    prompt_tokens: int
    output_tokens: int
    users: int
    requests: int
    """Of each user."""

    def run(self, one: Served, monkeypatch: pytest.MonkeyPatch) -> "Rates":
        """Return what the stack's simulated engine does, without a wait of this machine."""
        clock, room = VirtualClock(), one.capacity()
        assert room is not None
        monkeypatch.setattr(engine.asyncio, "get_running_loop", lambda: clock)
        speculation = one.speculation()
        metrics = Metrics(
            "m",
            {},
            max_model_len=room.max_model_len,
            proposals=speculation.proposals if speculation else 0,
            engines=one.arguments.data_parallel_size,
        )
        server = EngineGroup(
            [
                SimulatedEngine(
                    capacity=room,
                    timing=one.pace(),
                    metrics=each,
                    prefix_caching=False,
                    speculation=one.speculation(),
                )
                for each in metrics.engines
            ]
        )
        users = [User(number=number, load=self, clock=clock, server=server) for number in range(self.users)]
        for user in users:
            user.send()
        clock.run()
        monkeypatch.undo()
        # The first requests arrive together; the others as a closed loop spreads them.
        firsts_s = [first_s for user in users for first_s in user.firsts_s[1:] or user.firsts_s]
        decode_s = fmean(last_s for user in users for last_s in user.lasts_s)
        return Rates(
            output_tok_per_s=self.users * self.requests * self.output_tokens / clock.now,
            ttft_s=fmean(firsts_s),
            decode_tok_per_s=(self.output_tokens - 1) / decode_s,
        )


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Results of a closed loop; the rate of one stream is after its first token."""

    output_tok_per_s: float
    ttft_s: float
    decode_tok_per_s: float
