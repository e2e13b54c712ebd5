"""Progress of a long copy: amount, rate and time left."""

import shutil
import sys
import time
from collections.abc import Callable
from threading import Lock
from typing import Final, Self

from gemma_serving.contracts.plain_text import for_terminal
from gemma_serving.planning.units import GIB, duration

PERIOD_S: Final = 5.0
"""Interval between lines. Shorter work prints none."""
TERMINAL_PERIOD_S: Final = 0.5
_MIB: Final = 1024**2


def overwrite_line(text: str) -> None:
    """Replace the last line of the terminal on stderr, so it must not be longer than one; an empty text clears it."""
    shown = for_terminal(text)[: shutil.get_terminal_size().columns - 1]
    sys.stderr.write(f"\r\x1b[K{shown}")
    sys.stderr.flush()


class Transfer:
    """Reports progress every few seconds, for several threads. As a context, it stops at the end."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        overwrite: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`say` prints a permanent line. With `overwrite`, progress is one line, updated in place."""
        self._say = say
        self._overwrite = overwrite
        self._clock = clock
        self._period_s = PERIOD_S if overwrite is None else TERMINAL_PERIOD_S
        self._what = ""
        self._began_bytes = 0
        self._began_s = self._said_s = 0.0
        self._lock, self._ended = Lock(), False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Clear the progress line, so the next message starts on its own line."""
        with self._lock:
            self._ended = True
            if self._overwrite is not None:
                self._overwrite("")

    def __call__(self, what: str, done_bytes: int, total_bytes: int) -> None:
        """Record progress. `what` names the work; a new name starts over."""
        with self._lock:
            if not self._ended:
                self._note_bytes(what, done_bytes, total_bytes)

    def note(self, text: str) -> None:
        """Print a permanent line."""
        with self._lock:
            if self._ended:
                return
            if self._overwrite is not None:
                self._overwrite("")
            self._say(text)

    def _note_bytes(self, what: str, done_bytes: int, total_bytes: int) -> None:
        now_s = self._clock()
        if what != self._what or done_bytes < self._began_bytes:
            self._what = what
            self._began_bytes = done_bytes
            self._began_s = now_s
            self._said_s = now_s
        if now_s - self._said_s < self._period_s or not done_bytes < total_bytes:
            return
        self._said_s = now_s
        rate = (done_bytes - self._began_bytes) / (now_s - self._began_s)
        left = f"{duration((total_bytes - done_bytes) / rate)} left" if rate > 0 else "stalled"
        line = (
            f"{what}: {done_bytes / GIB:.2f} of {total_bytes / GIB:.2f} GiB ({done_bytes / total_bytes:.0%}), "
            f"{rate / _MIB:.1f} MiB/s, {left}"
        )
        (self._overwrite or self._say)(line)
