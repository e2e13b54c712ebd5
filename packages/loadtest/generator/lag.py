"""Lateness of the load generator's event loop, which adds to every measured time, and its cause."""

import asyncio
from array import array
from pathlib import Path
from typing import Final

from loadtest.client.wire import now_s

PERIOD_S: Final = 0.01
TIMER_STEP_S: Final = 0.001
"""epoll wakes in whole milliseconds, so a timer of an idle loop is up to 1 ms late. Arriving bytes are not, so this is not counted."""

SCHEDSTAT: Final = Path("/proc/self/schedstat")
"""Time on a core, time ready and waiting for one, and time slices of the main thread, in ns (Linux, Documentation/scheduler/sched-stats)."""


def run_queue_s() -> float | None:
    """Return the time for which this process was ready to run but had no core, or None if the system does not report it."""
    try:
        return int(SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


class LagSampler:
    """Sample the loop's lateness evenly over time.

    A blocked loop misses many ticks. Each missed tick counts with the lateness of an event at that moment, so a
    long block has its full weight.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.lags_s: array[float] = array("d")

    def start(self) -> None:
        """Start sampling."""
        self._next_s = now_s() + PERIOD_S
        self._timer = self._loop.call_later(PERIOD_S, self._tick)

    def stop(self) -> None:
        """Stop sampling and keep the samples."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        at_s = now_s()
        while self._next_s <= at_s:
            self.lags_s.append(max(0.0, at_s - self._next_s - TIMER_STEP_S))
            self._next_s += PERIOD_S
        self._timer = self._loop.call_later(self._next_s - at_s, self._tick)
