"""Idle time of the server, by its own counters, as a guest attribute for the guard of `tpu.idleAfter`."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from contracts.guest_attributes import IDLE_FROM_S, IDLE_SINCE_KEY, NOT_IDLE
from vm_agent.publishing import PhasePublisher
from vm_agent.running_server import ServerLoad


@dataclass
class IdleTime:
    """Publisher of the time since which the ready server has had no request.

    A request that ran between two readings is in the counter of finished requests. After a reading that failed, the counter includes the
    requests of the time in between, so the idle time continues only if it has not changed.
    """

    publisher: PhasePublisher
    now: Callable[[], float] = time.time
    """Seconds since 1970."""
    poll_s: float = 15.0
    """Interval between two readings."""
    _since_s: float = 0.0
    _finished: "float | None" = None
    _read_at_s: float = 0.0

    def begin(self) -> None:
        """Start over because a server is ready. It counts as busy until it has been idle for `IDLE_FROM_S`."""
        self._since_s, self._finished, self._read_at_s = self.now(), None, 0.0
        self.publisher.set_fact(IDLE_SINCE_KEY, NOT_IDLE)

    def read(self, load: "Callable[[], ServerLoad | None]") -> None:
        """Read the load and publish the idle time, at most once in `poll_s`."""
        now_s = self.now()
        if 0 <= now_s - self._read_at_s < self.poll_s:
            return
        self._read_at_s = now_s
        self.publisher.set_fact(IDLE_SINCE_KEY, self._answer(load(), now_s))

    def _answer(self, load: "ServerLoad | None", now_s: float) -> str:
        if load is None:
            return ""
        if load.active or load.finished != self._finished:
            self._since_s, self._finished = now_s, load.finished
        if now_s - self._since_s < IDLE_FROM_S:
            return NOT_IDLE
        return datetime.fromtimestamp(self._since_s, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
