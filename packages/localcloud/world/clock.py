"""The accelerated clock: simulated seconds pass faster than real ones."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Simulated time: `speed` simulated seconds per real second.

    Durations in the simulation (a wait in the queue, a load of weights, a probe's period) are simulated seconds.
    """

    speed: float = 200.0
    _started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    _started_monotonic_s: float = field(default_factory=monotonic)

    def now(self) -> datetime:
        """Return the simulated time, in UTC. It never goes backward."""
        return self._started_at + timedelta(seconds=(monotonic() - self._started_monotonic_s) * self.speed)

    def real_s(self, simulated_s: float) -> float:
        """Convert a simulated duration in seconds to real seconds."""
        return simulated_s / self.speed

    async def sleep(self, simulated_s: float) -> None:
        """Wait for a simulated duration, in seconds."""
        await asyncio.sleep(max(0.0, self.real_s(simulated_s)))
