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

STAT: Final = Path("/proc/stat")
STEAL_COLUMN: Final = 8


def run_queue_s() -> float | None:
    """Return the time for which this process was ready to run but had no core, or None if the system does not report it."""
    try:
        return int(SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def machine_ticks() -> tuple[int, int] | None:
    """Return the ticks that the hypervisor took from all cores of this machine, and all ticks; None if the system does not report them.

    Source: proc_stat(5), line `cpu`, columns user to steal. Guests' time is already in user time.
    """
    try:
        ticks = [int(word) for word in STAT.read_text().partition("\n")[0].split()[1 : STEAL_COLUMN + 1]]
    except (OSError, ValueError):
        return None
    return (ticks[-1], sum(ticks)) if len(ticks) == STEAL_COLUMN else None


def steal_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Return the share of the time between two readings that the hypervisor took, or None without them or within one tick."""
    if before is None or after is None or after[1] <= before[1]:
        return None
    return round((after[0] - before[0]) / (after[1] - before[1]), 4)


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
