"""Run the user's own command next to a connection: forward signals and its exit code."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
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
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if not started:
            early.append(number)
        elif not (number == signal.SIGINT and _shares_terminal(started[0].pid)):
            started[0].send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        process = subprocess.Popen(command, env={**os.environ, **variables})
        started.append(process)
        for number in early:
            process.send_signal(number)
        code = process.wait()
    except OSError as error:
        raise CommandRefusedError(f"Cannot run the command {command[0]!r}: {error.strerror}.") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else _SIGNALLED - code


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
