"""The ceilings of what this server may spend, an hour and in its whole life."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from scripts.errors import CommandRefusedError

DEFAULT_USD_PER_HOUR: Final = 10.0
DEFAULT_USD: Final = 50.0
_HOUR_S: Final = 3600.0


def awake_or_not_s() -> float:
    """Return the seconds of a clock that nobody sets and that goes on while the machine sleeps: Google bills those hours too."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(slots=True)
class _Running:
    usd_per_hour: float
    since_s: float


@dataclass(slots=True, kw_only=True)
class Purse:
    """What this server's deployments cost. List prices, and the most instances that a service may have: an upper bound.

    What ran before is not counted until this server deploys it again.
    """

    usd_per_hour_limit: float = DEFAULT_USD_PER_HOUR
    usd_limit: float = DEFAULT_USD
    clock: Callable[[], float] = awake_or_not_s
    _running: dict[str, _Running] = field(default_factory=dict[str, _Running])
    _ended_usd: float = 0.0

    def spent_usd(self) -> float:
        """Return what has been spent so far."""
        now_s = self.clock()
        running = (one.usd_per_hour * max(0.0, now_s - one.since_s) / _HOUR_S for one in self._running.values())
        return self._ended_usd + sum(running)

    def usd_per_hour(self) -> float:
        """Return what runs now costs an hour."""
        return sum(one.usd_per_hour for one in self._running.values())

    def require(self, stack: str, usd_per_hour: float) -> None:
        """Refuse a deployment that would break a ceiling within its first hour. Raises CommandRefusedError."""
        others = sum(one.usd_per_hour for name, one in self._running.items() if name != stack)
        rate = others + usd_per_hour
        if not (usd_per_hour >= 0 and rate <= self.usd_per_hour_limit):  # so that nan is refused
            raise CommandRefusedError(
                f"Stack {stack} costs at most ${usd_per_hour:.2f} an hour, ${rate:.2f} with what this agent deployed before; the ceiling is "
                f"${self.usd_per_hour_limit:.2f} an hour. A person can start the agent with a higher --max-usd-per-hour."
            )
        spent = self.spent_usd()
        if not spent + rate <= self.usd_limit:
            raise CommandRefusedError(
                f"${spent:.2f} are spent and one hour more costs ${rate:.2f}; the ceiling is ${self.usd_limit:.2f}. "
                "A person can start the agent with a higher --max-usd."
            )

    def require_left(self) -> None:
        """Refuse what costs money once the ceiling is reached. Raises CommandRefusedError."""
        spent = self.spent_usd()
        if not spent < self.usd_limit:
            raise CommandRefusedError(
                f"${spent:.2f} are spent, and the ceiling is ${self.usd_limit:.2f}. Tear a stack down, or let a person "
                "start the agent with a higher --max-usd."
            )

    def price_of(self, stack: str) -> float | None:
        """Return what a deployment of this server costs an hour; None if it has none of this stack."""
        one = self._running.get(stack)
        return one.usd_per_hour if one else None

    def begins(self, stack: str, usd_per_hour: float) -> None:
        """Count a deployment from now on. A change of one that runs ends the old price."""
        self.ends(stack)
        self._running[stack] = _Running(usd_per_hour, self.clock())

    def ends(self, stack: str) -> None:
        """Stop counting a deployment."""
        one = self._running.pop(stack, None)
        if one is not None:
            self._ended_usd += one.usd_per_hour * max(0.0, self.clock() - one.since_s) / _HOUR_S
