"""Run a command in the local cloud's environment: signals and exit code."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


async def run_child(command: Sequence[str], environment: Mapping[str, str], *, umask: int = -1) -> int:
    """Run the command, forward signals to it, and return its exit code (128 + N after signal N). A `umask` of -1 keeps this process's."""
    try:
        child = await asyncio.create_subprocess_exec(*command, env=dict(environment), umask=umask)
    except FileNotFoundError:
        print(f"localcloud: the command '{command[0]}' was not found on PATH.", file=sys.stderr)
        return _NOT_FOUND
    except PermissionError:
        print(f"localcloud: the file '{command[0]}' is not executable.", file=sys.stderr)
        return _NOT_EXECUTABLE
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, _forward, child, number)
    try:
        code = await child.wait()
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    return code if code >= 0 else 128 - code


def _forward(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Forward a signal, unless the terminal has already sent it to the child: Ctrl-C reaches the whole foreground group."""
    from_terminal = (
        number == signal.SIGINT
        and sys.stdin is not None
        and sys.stdin.isatty()
        and os.getpgid(child.pid) == os.getpgrp() == os.tcgetpgrp(sys.stdin.fileno())
    )
    if not from_terminal:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)
