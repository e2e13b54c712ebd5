"""Clocks: a replaceable one for waits, so tests do not wait, and Google's time of day."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError

SPEED_VARIABLE: Final = "CLOUD_CLOCK_SPEED"
"""Seconds that pass at the cloud per second here: 1 unless a simulation sets more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitClock:
    """The clock for waits. `now_s` only increases; it is not the time of day."""

    now_s: Callable[[], float] = field(default_factory=lambda: time.monotonic)
    sleep: Callable[[float], None] = field(default_factory=lambda: time.sleep)


def real_s(seconds: float) -> float:
    """Convert seconds at the cloud to seconds on this machine. Raises CommandRefusedError."""
    text = os.environ.get(SPEED_VARIABLE) or "1"
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not speed > 0:
        raise CommandRefusedError(
            f"{SPEED_VARIABLE} is {text!r}, but must be a number above 0. Unset it for a real project."
        )
    return seconds / speed


_RESOLUTION: Final = timedelta(seconds=2)
"""A difference that the header's whole seconds and the time of the response explain."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class GoogleClock:
    """Google's time of day, for its stamps, because this machine's clock may be wrong."""

    local_now: Callable[[], datetime] = _utc_now
    """This machine's time of day, in UTC."""
    _ahead: timedelta = timedelta()

    def see(self, date: str | None) -> None:
        """Read the header `Date` of a response from Google. An invalid one changes nothing."""
        with suppress(TypeError, ValueError):
            ahead = parsedate_to_datetime(date or "") - self.local_now()
            self._ahead = ahead if abs(ahead) > _RESOLUTION else timedelta()

    def now(self) -> datetime:
        """Return Google's time by its last response; before the first one, this machine's time."""
        return self.local_now() + self._ahead

    def at(self, local: datetime) -> datetime:
        """Return Google's time at a past time of this machine's clock, such as that of a write to a state."""
        return self.now() - (self.local_now() - local) / real_s(1.0)


GOOGLE_CLOCK: Final = GoogleClock()
