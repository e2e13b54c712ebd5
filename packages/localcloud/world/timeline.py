"""The three times of the simulation.

Waits (queues, operations, probes) pass in simulated seconds, faster than real ones. Time stamps show the real time. Lifetimes (a flex-start
run duration) pass in real seconds unless the scenario sets otherwise: at speed 200 a run of four hours lasts 72 seconds.
`advance` moves all three forward.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


class Clock:
    """Simulated time: `speed` simulated seconds per real second.

    Durations in the simulation (a wait in the queue, a load of weights, a probe's period) are simulated seconds.
    """

    def __init__(self, *, speed: float = 200.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Start at the current time. `monotonic` returns real seconds."""
        self.speed = speed
        self._monotonic = monotonic
        self._started_at = datetime.now(UTC)
        self._started_s = monotonic()

    def now(self) -> datetime:
        """Return the simulated time, in UTC. It never goes backward."""
        return self._started_at + timedelta(seconds=(self._monotonic() - self._started_s) * self.speed)

    def real_s(self, simulated_s: float) -> float:
        """Convert a simulated duration in seconds to real seconds."""
        return simulated_s / self.speed

    async def sleep(self, simulated_s: float) -> None:
        """Wait for a simulated duration, in seconds."""
        await asyncio.sleep(max(0.0, self.real_s(simulated_s)))


class Timeline:
    """Time since the state folder was created, continued across restarts."""

    def __init__(self, clock: Clock, *, simulated_s: float = 0.0, advanced_s: float = 0.0) -> None:
        """Continue at `simulated_s` and `advanced_s` (seconds), which an earlier run on the same state reached."""
        self.clock = clock
        self._origin = clock.now()
        self._base_s = simulated_s
        self.advanced_s = advanced_s

    def simulated_s(self) -> float:
        """Return the elapsed simulated seconds, which measure waits."""
        return self._base_s + (self.clock.now() - self._origin).total_seconds()

    def life_s(self) -> float:
        """Return elapsed real plus advanced seconds, which measure lifetimes."""
        return time.time() + self.advanced_s

    def now(self) -> datetime:
        """Return the time for time stamps (UTC)."""
        return datetime.now(UTC) + timedelta(seconds=self.advanced_s)

    def of_process(self, text: str) -> str:
        """Return a past time stamp of a process, whose clock is this machine's, as the simulated time. Return any other text as it is."""
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return text
        is_past = moment.tzinfo is not None and moment <= datetime.now(UTC)
        return rfc3339(moment + timedelta(seconds=self.advanced_s)) if is_past and self.advanced_s else text

    def stamp(self) -> str:
        """Return the time as RFC 3339 text with microseconds."""
        return rfc3339(self.now())

    def advance(self, seconds: float) -> None:
        """Advance all times by `seconds`."""
        self._base_s += seconds
        self.advanced_s += seconds


def rfc3339(moment: datetime) -> str:
    """Return a time such as `2026-11-20T08:00:00.123456Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds(duration: str) -> float:
    """Return the seconds of a google.protobuf.Duration in JSON, such as `14400s`. The caller has checked the format."""
    return float(duration.removesuffix("s"))
