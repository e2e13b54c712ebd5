"""Spending limits: per hour for everything deployed, and per 24 hours for the agent's deployments."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from contracts.errors import CommandRefusedError, ScriptError
from scripts.agent.counts import AuditBook, Count, running, spent_usd
from scripts.cli.command import say

DEFAULT_USD_PER_HOUR: Final = 10.0
DEFAULT_USD: Final = 50.0
_UNSEEN_S: Final = 15 * 60.0
"""A deployment that has just started is not in any state yet, and not every backend names its lock."""
_REPEATED_S: Final = 12 * 3600.0
"""Longer runs are counted again, so that their line is not lost with an old audit file."""


def awake_or_not_s() -> float:
    """Return the seconds of a clock that cannot be set and that continues while the computer sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """Summary of the states."""

    usd_per_hour: Mapping[str, float]
    """Price of each stack that has a TPU or a service, with all its instances."""
    busy: frozenset[str] = frozenset()
    """Stacks that an engine is changing now. No state has their future cost yet."""


@dataclass(slots=True, kw_only=True)
class SpendingLimits:
    """Deployed and spent amounts, equal in every server. List prices and maximum instance counts: upper bounds."""

    book: AuditBook
    states: Callable[[], Deployed]
    """Reads the current deployments. Raises CommandRefusedError if they are unknown."""
    usd_per_hour_limit: float = DEFAULT_USD_PER_HOUR
    usd_limit: float = DEFAULT_USD
    clock: Callable[[], float] = time.time
    _counts: list[Count] | None = None
    _deployed: Deployed = field(default_factory=lambda: Deployed(usd_per_hour={}))

    def spent_usd(self) -> float | None:
        """Return the cost of the agent's deployments in the last 24 hours, as far as this server has read; None if it cannot be read."""
        try:
            counts = self._read() if self._counts is None else self._counts
        except CommandRefusedError:
            return None
        return round(spent_usd(counts, self.clock()), 4)

    def usd_per_hour(self) -> Mapping[str, float]:
        """Return the price of each stack per hour: from its state or from an agent's count, whichever is higher."""
        counted = {stack: count.usd_per_hour for stack, count in running(self._counts or ()).items()}
        deployed = self._deployed.usd_per_hour
        return {
            stack: max(counted.get(stack, 0.0), deployed.get(stack, 0.0)) for stack in sorted({*counted, *deployed})
        }

    def require(self, stack: str, usd_per_hour: float) -> None:
        """Read states and audit file, and refuse a deployment that will exceed a limit within its first hour.

        Raises CommandRefusedError, even if the deployed or spent amount is unknown.
        """
        self._deployed = self.states()
        self._read()
        self._end_what_is_gone()
        self._check(stack, usd_per_hour)

    def reserve(self, stack: str, usd_per_hour: float, *, counted: float) -> None:
        """Check again, including counts of other servers since `require`, and count the deployment from now on.

        Raises CommandRefusedError if a limit is exceeded, and ScriptError if the count cannot be recorded; then nothing must run.
        """
        with self.book.alone():
            self._read()
            self._check(stack, usd_per_hour)
            self.begins(stack, counted)

    def require_left(self) -> None:
        """Refuse paid work once the limit is reached. Raises CommandRefusedError, even if the spent amount is unknown."""
        self._read()
        spent = self._spent()
        if not spent < self.usd_limit:
            raise CommandRefusedError(
                f"${spent:.2f} was spent in the last 24 hours; the limit is ${self.usd_limit:.2f}. Tear down a stack and wait, or ask "
                "the user to start the agent with a higher --max-usd."
            )

    def price_of(self, stack: str) -> float | None:
        """Return the current price of a stack per hour; None if it is neither deployed nor counted."""
        return self.usd_per_hour().get(stack)

    def counted(self, stack: str) -> float | None:
        """Return the price that an agent counted for a stack; None if it is not counted."""
        one = running(self._counts or ()).get(stack)
        return one.usd_per_hour if one else None

    def sentence(self) -> str:
        """Return the counted amounts as a sentence."""
        rates, spent = self.usd_per_hour(), self.spent_usd()
        each = ", ".join(f"{stack} ${rate:.2f}" for stack, rate in rates.items())
        return (
            f"${sum(rates.values()):.2f} of ${self.usd_per_hour_limit:.2f} per hour is counted ({each or 'nothing is deployed'}), and "
            f"{'an unknown amount' if spent is None else f'${spent:.2f}'} of ${self.usd_limit:.2f} in the last 24 hours."
        )

    def begins(self, stack: str, usd_per_hour: float) -> None:
        """Count a deployment from now on, replacing an older count of the stack. Raises ScriptError if it cannot be recorded."""
        count = Count(at_s=self.clock(), stack=stack, usd_per_hour=usd_per_hour)
        self.book.add(count)
        self._counts = [*(self._counts or ()), count]

    def settles(self, stack: str, usd_per_hour: float | None) -> None:
        """Count a stack at this price from now on, or stop counting it if None. If this cannot be recorded, the previous, higher price stays."""
        rate = usd_per_hour or 0.0
        if rate == (self.counted(stack) or 0.0):
            return
        try:
            self.begins(stack, rate)
        except ScriptError as error:
            say("agent", f"stack {stack} is still counted at the previous price: {error}")
            return
        known = self._deployed.usd_per_hour.items()  # the state's old price no longer applies
        self._deployed = replace(self._deployed, usd_per_hour={name: one for name, one in known if name != stack})

    def ends(self, stack: str) -> None:
        """Stop counting a deleted stack, even if another server has counted it since."""
        with suppress(CommandRefusedError):
            self._read()
        self.settles(stack, None)

    def _read(self) -> Sequence[Count]:
        self._counts = list(self.book.read())
        return self._counts

    def _spent(self) -> float:
        return spent_usd(self._counts or (), self.clock())

    def _end_what_is_gone(self) -> None:
        """Stop counting stacks that the user deleted, and repeat old counts of those still running."""
        for stack, count in running(self._counts or ()).items():
            age_s = self.clock() - count.at_s
            is_there = stack in self._deployed.usd_per_hour or stack in self._deployed.busy
            if not is_there and age_s > _UNSEEN_S:
                self.settles(stack, None)
            elif age_s > _REPEATED_S:
                self.begins(stack, count.usd_per_hour)

    def _check(self, stack: str, usd_per_hour: float) -> None:
        others = {name: rate for name, rate in self.usd_per_hour().items() if name != stack}
        rate = sum(others.values()) + usd_per_hour
        if not (usd_per_hour >= 0 and rate <= self.usd_per_hour_limit):  # also refuses nan
            each = "".join(f", {name} ${price:.2f}" for name, price in others.items())
            raise CommandRefusedError(
                f"Stack {stack} costs up to ${usd_per_hour:.2f} per hour, ${rate:.2f} with the other deployments{each}; the limit is "
                f"${self.usd_per_hour_limit:.2f} per hour. Tear down a stack, or ask the user to start the agent with a higher --max-usd-per-hour."
            )
        spent = self._spent()
        if not spent + rate <= self.usd_limit:
            raise CommandRefusedError(
                f"${spent:.2f} was spent in the last 24 hours and one more hour costs ${rate:.2f}; the limit is ${self.usd_limit:.2f}. "
                "Ask the user to start the agent with a higher --max-usd."
            )
