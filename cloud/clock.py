"""Replaceable clock, so that tests do not wait."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitClock:
    """The clock for waits. `now_s` only increases; it is not the time of day."""

    now_s: Callable[[], float] = field(default_factory=lambda: time.monotonic)
    sleep: Callable[[float], None] = field(default_factory=lambda: time.sleep)
