"""Progress inside one large file: how much, how fast, and how long it still takes."""

import time
from collections.abc import Callable
from typing import Final

from planning.units import duration

PERIOD_S: Final = 5.0
"""Time between two lines. A file that takes less has none."""
_GIB: Final = 1024**3
_MIB: Final = 1024**2


class Transfer:
    """Says every few seconds how far the work on a file is."""

    def __init__(self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._what = ""
        self._began_bytes = 0
        self._began_s = self._said_s = 0.0

    def __call__(self, what: str, done_bytes: int, total_bytes: int) -> None:
        """Take note that `done_bytes` of `total_bytes` are done. `what` names work and file; another one begins anew."""
        now_s = self._clock()
        if what != self._what or done_bytes < self._began_bytes:
            self._what, self._began_bytes, self._began_s, self._said_s = what, done_bytes, now_s, now_s
        if now_s - self._said_s < PERIOD_S or not done_bytes < total_bytes:
            return
        self._said_s = now_s
        rate = (done_bytes - self._began_bytes) / (now_s - self._began_s)
        left = f"{duration((total_bytes - done_bytes) / rate)} left" if rate > 0 else "stalled"
        self._say(
            f"{what}: {done_bytes / _GIB:.2f} of {total_bytes / _GIB:.2f} GiB ({done_bytes / total_bytes:.0%}), "
            f"{rate / _MIB:.1f} MiB/s, {left}"
        )
