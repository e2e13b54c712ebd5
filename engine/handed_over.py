"""Run the user's own command next to a connection: forward signals and its exit code."""

import os
import signal
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from contracts.errors import CommandRefusedError

_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNALLED: Final = 128
_STREAMS: Final = (0, 1, 2)


def run_child(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command with additional environment variables. Return its exit code: 128 + N after signal N, as in a shell.

    Signals are forwarded to the command. It may exit, clean up first, or continue, like a prompt after Ctrl-C.

    Raises:
        CommandRefusedError: if the command cannot be run.
    """
    signals = _Signals()
    with signals.taken():
        try:
            process = subprocess.Popen(command, env={**os.environ, **variables})
        except OSError as error:
            raise CommandRefusedError(f"Cannot run the command {command[0]!r}: {error.strerror}.") from None
        signals.go_to(process)
        code = process.wait()
    return code if code >= 0 else _SIGNALLED - code


class _Signals:
    """Signals for a command. Those that arrive before it runs are queued."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    @contextmanager
    def taken(self) -> Generator[None]:
        """Handle the signals in place of this process."""
        before = {number: signal.signal(number, self._take) for number in _FORWARDED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def go_to(self, process: subprocess.Popen[bytes]) -> None:
        """Forward queued and later signals."""
        self._process = process
        for number in self._early:
            process.send_signal(number)

    def _take(self, number: int, _frame: object) -> None:
        if self._process is None:
            self._early.append(number)
        elif not (number == signal.SIGINT and _shares_terminal(self._process.pid)):
            self._process.send_signal(number)


def _shares_terminal(pid: int) -> bool:
    """Return whether a terminal itself sends Ctrl-C to the process, as part of its foreground group."""
    with suppress(OSError):
        group = os.getpgid(pid)
        return group == os.getpgrp() and any(group == _foreground_group(stream) for stream in _STREAMS)
    return False


def _foreground_group(stream: int) -> int | None:
    with suppress(OSError):
        return os.tcgetpgrp(stream)
    return None
