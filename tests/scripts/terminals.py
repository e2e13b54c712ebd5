"""A terminal that a command writes to, and what moves on it while something is slow."""

import contextlib
import io
import sys
import threading
from collections.abc import Iterator

import pytest

LIMIT_S = 0.5
"""Longest time for which a slow stand-in holds its answer back."""


class Terminal(io.StringIO):
    """Standard output and standard error of a command, both on one terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = False
        self._changed, self._waited = threading.Event(), threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text:
            self._changed.set()
        return super().write(text)

    def wait_for_a_change(self) -> None:
        """Hold the first answer back until something is written after this moment, or the limit is over. Later answers are not held."""
        if self._waited.is_set():
            return
        self._waited.set()
        self._changed.clear()
        self.moved = self._changed.wait(LIMIT_S)


@contextlib.contextmanager
def still_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    terminal = Terminal()
    with monkeypatch.context() as during:
        during.setattr(sys, "stdout", terminal)
        during.setattr(sys, "stderr", terminal)
        yield terminal
