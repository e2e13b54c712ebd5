"""A load that rises over time: users of a closed loop, or the rate of an open loop."""

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

FORM: Final = 'such as "users 1..32 over 60s" or "rate 0.5..8 over 60s"'
_RAMP: Final = re.compile(
    r"(?:(users|rate)\s+)?(\d+(?:\.\d+)?)\.\.(\d+(?:\.\d+)?)\s+over\s+(\d+(?:\.\d+)?)\s*s", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A linear rise from `first` to `last` within `over_s` seconds. The load then stays at `last`."""

    of: Literal["users", "rate"]
    first: float
    last: float
    over_s: float

    @property
    def text(self) -> str:
        """The ramp in the option's format."""
        return f"{self.of} {self.first:g}..{self.last:g} over {self.over_s:g}s"

    def level_at(self, at_s: float) -> float:
        """Return the users or the requests per second at a time from the start."""
        share = min(1.0, max(0.0, at_s / self.over_s))
        level = self.first + (self.last - self.first) * share
        return float(math.floor(level + 1e-9)) if self.of == "users" else level

    def user_starts_s(self, user: int) -> float:
        """Return when a user starts. The first ones start immediately."""
        extra = user + 1 - self.first
        return 0.0 if extra <= 0 else self.over_s * extra / (self.last - self.first)

    def arrivals(self, seed: int, *, poisson: bool) -> Iterator[float]:
        """Yield the intended send times of a rising rate, without end.

        The expected number of requests until `t` is the integral of the rate. Its inverse turns unit steps into times (time change of
        a Poisson process: Cinlar, Introduction to Stochastic Processes, 1975, section 4.7).
        """
        rng = random.Random(seed)  # noqa: S311 - filler text and load patterns, no secret
        total = 0.0
        while True:
            yield self._time_of(total)
            total += rng.expovariate(1.0) if poisson else 1.0

    def _time_of(self, expected: float) -> float:
        slope = (self.last - self.first) / self.over_s
        in_ramp = (self.first + self.last) / 2 * self.over_s
        if expected >= in_ramp:
            return self.over_s + (expected - in_ramp) / self.last
        if slope == 0:
            return expected / self.first
        return (math.sqrt(self.first**2 + 2 * slope * expected) - self.first) / slope


def parse_ramp(text: str) -> Ramp:
    """Read `users 1..32 over 60s`. The default first word is users."""
    found = _RAMP.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"a start, an end and a time, {FORM}")
    of, first, last, over_s = found[1] or "users", float(found[2]), float(found[3]), float(found[4])
    if over_s <= 0 or first <= 0 or last <= 0:
        raise ValueError(f"a start, an end and a time above 0, {FORM}")
    if of == "rate":
        return Ramp(of="rate", first=first, last=last, over_s=over_s)
    if not first.is_integer() or not last.is_integer() or last <= first:
        raise ValueError(f"whole numbers of users that rise, {FORM}")
    return Ramp(of="users", first=first, last=last, over_s=over_s)
