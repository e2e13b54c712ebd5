"""The ceilings of what may be spent: an hour, with all that is deployed, and in 24 hours, by the agent's deployments."""

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
"""A deployment that has just begun is in no state yet, and not every backend names its lock."""
_REPEATED_S: Final = 12 * 3600.0
"""What runs longer is counted anew, so that its line is not lost with an old audit file."""


def awake_or_not_s() -> float:
    """Return the seconds of a clock that nobody sets and that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What the states say."""

    usd_per_hour: Mapping[str, float]
    """Of each stack that has a TPU or a service, with all instances that it may have."""
    busy: frozenset[str] = frozenset()
    """Stacks that an engine changes now: what they will cost is in no state yet."""


@dataclass(slots=True, kw_only=True)
class SpendingLimits:
    """What is deployed and what was spent, in every server alike. List prices, and the most instances that a service may have: upper bounds."""

    book: AuditBook
    states: Callable[[], Deployed]
    """Reads what is deployed now. Raises CommandRefusedError if that is unknown."""
    usd_per_hour_limit: float = DEFAULT_USD_PER_HOUR
    usd_limit: float = DEFAULT_USD
    clock: Callable[[], float] = time.time
    _counts: list[Count] | None = None
    _deployed: Deployed = field(default_factory=lambda: Deployed(usd_per_hour={}))

    def spent_usd(self) -> float | None:
        """Return what the agent's deployments cost in the last 24 hours, as far as this server has read; None if it cannot be read."""
        try:
            counts = self._read() if self._counts is None else self._counts
        except CommandRefusedError:
            return None
        return round(spent_usd(counts, self.clock()), 4)

    def usd_per_hour(self) -> Mapping[str, float]:
        """Return what each stack costs an hour: by its state or by the count of an agent, the higher of the two."""
        counted = {stack: count.usd_per_hour for stack, count in running(self._counts or ()).items()}
        deployed = self._deployed.usd_per_hour
        return {
            stack: max(counted.get(stack, 0.0), deployed.get(stack, 0.0)) for stack in sorted({*counted, *deployed})
        }

    def require(self, stack: str, usd_per_hour: float) -> None:
        """Read states and audit file, and refuse a deployment that would break a ceiling within its first hour.

        Raises CommandRefusedError, also if what is deployed or was spent is unknown.
        """
        self._deployed = self.states()
        self._read()
        self._end_what_is_gone()
        self._check(stack, usd_per_hour)

    def reserve(self, stack: str, usd_per_hour: float, *, counted: float) -> None:
        """Check again with what other servers counted since `require`, and count the deployment from now on.

        Raises CommandRefusedError if a ceiling would break, and ScriptError if it cannot be recorded: then nothing may run.
        """
        with self.book.alone():
            self._read()
            self._check(stack, usd_per_hour)
            self.begins(stack, counted)

    def require_left(self) -> None:
        """Refuse what costs money once the ceiling is reached. Raises CommandRefusedError, also if what was spent is unknown."""
        self._read()
        spent = self._spent()
        if not spent < self.usd_limit:
            raise CommandRefusedError(
                f"${spent:.2f} are spent in the last 24 hours, and the ceiling is ${self.usd_limit:.2f}. Tear a stack down and wait, or let "
                "a person start the agent with a higher --max-usd."
            )

    def price_of(self, stack: str) -> float | None:
        """Return what a stack costs an hour now; None if it is neither deployed nor counted."""
        return self.usd_per_hour().get(stack)

    def counted(self, stack: str) -> float | None:
        """Return what an agent counted for a stack; None if there is no count."""
        one = running(self._counts or ()).get(stack)
        return one.usd_per_hour if one else None

    def sentence(self) -> str:
        """Return what is counted, for people."""
        rates, spent = self.usd_per_hour(), self.spent_usd()
        each = ", ".join(f"{stack} ${rate:.2f}" for stack, rate in rates.items())
        return (
            f"${sum(rates.values()):.2f} of ${self.usd_per_hour_limit:.2f} an hour are counted ({each or 'nothing is deployed'}), and "
            f"{'an unknown sum' if spent is None else f'${spent:.2f}'} of ${self.usd_limit:.2f} in the last 24 hours."
        )

    def begins(self, stack: str, usd_per_hour: float) -> None:
        """Count a deployment from now on, instead of an older count of the stack. Raises ScriptError if it cannot be recorded."""
        count = Count(at_s=self.clock(), stack=stack, usd_per_hour=usd_per_hour)
        self.book.add(count)
        self._counts = [*(self._counts or ()), count]

    def settles(self, stack: str, usd_per_hour: float | None) -> None:
        """Count a stack at this price from now on; not at all if it is None. What cannot be recorded stays as it was, the higher price."""
        rate = usd_per_hour or 0.0
        if rate == (self.counted(stack) or 0.0):
            return
        try:
            self.begins(stack, rate)
        except ScriptError as error:
            say("agent", f"stack {stack} is still counted at the price before: {error}")
            return
        known = self._deployed.usd_per_hour.items()  # what the state said before does not hold any more
        self._deployed = replace(self._deployed, usd_per_hour={name: one for name, one in known if name != stack})

    def ends(self, stack: str) -> None:
        """Stop counting a stack that was deleted, also one that another server has counted since."""
        with suppress(CommandRefusedError):
            self._read()
        self.settles(stack, None)

    def _read(self) -> Sequence[Count]:
        self._counts = list(self.book.read())
        return self._counts

    def _spent(self) -> float:
        return spent_usd(self._counts or (), self.clock())

    def _end_what_is_gone(self) -> None:
        """End the counts of stacks that a person deleted, and repeat the old ones of what still runs."""
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
        if not (usd_per_hour >= 0 and rate <= self.usd_per_hour_limit):  # so that nan is refused
            each = "".join(f", {name} ${price:.2f}" for name, price in others.items())
            raise CommandRefusedError(
                f"Stack {stack} costs at most ${usd_per_hour:.2f} an hour, ${rate:.2f} with what is deployed{each}; the ceiling is "
                f"${self.usd_per_hour_limit:.2f} an hour. Tear a stack down, or let a person start the agent with a higher --max-usd-per-hour."
            )
        spent = self._spent()
        if not spent + rate <= self.usd_limit:
            raise CommandRefusedError(
                f"${spent:.2f} are spent in the last 24 hours and one hour more costs ${rate:.2f}; the ceiling is ${self.usd_limit:.2f}. "
                "A person can start the agent with a higher --max-usd."
            )
