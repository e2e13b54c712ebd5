"""Child programs of a command. Each terminating signal reaches each of them exactly once.

A child has its own process group, because after a second signal the engine exits without saving its state.
So only the command gets a signal, and forwards it as SIGINT.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gemma_serving.contracts.errors import CommandRefusedError

if TYPE_CHECKING:
    import subprocess

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that terminate a command like Ctrl-C."""
_STEP_S: Final = 1.0
T = TypeVar("T")


class _Signals:
    """Received signals and the programs that get them."""

    def __init__(self) -> None:
        """Start without programs and signals."""
        self.children: dict[subprocess.Popen[str], bool] = {}
        """Running programs, and whether a signal was forwarded to each."""
        self.held = False
        """True while a program starts. A signal waits until it is registered."""
        self.came = False
        self.starting = threading.Lock()
        """Held while another thread starts a program and registers it."""
        self.is_over = False
        """True after an interrupted command. Other threads then start nothing more, because no command would forward a signal to it."""
        self.cancel: Callable[[], object] | None = None


_SIGNALS: Final = _Signals()


@contextlib.contextmanager
def interruptible() -> Generator[None]:
    """Forward terminating signals to children, and raise KeyboardInterrupt, but not before the children of other threads have exited."""
    _SIGNALS.came = _SIGNALS.is_over = False
    before = {number: signal.getsignal(number) for number in ENDING}
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, _take)
    try:
        yield
    finally:
        if _SIGNALS.came:
            _end_starts()
            for process in tuple(_SIGNALS.children):
                _await_end(process.wait)
        for number in taken:
            signal.signal(number, before[number])


@contextlib.contextmanager
def started(
    arguments: Sequence[str],
    *,
    read_by_caller: bool = False,
    **options: Any,  # noqa: ANN401 - the arguments of Popen
) -> Generator["subprocess.Popen[str]"]:
    """Start a program with text streams. After an interrupt, wait for it to save its state and exit.

    `read_by_caller`: another thread reads its pipes. Raises OSError if it cannot be started.
    """
    import subprocess  # noqa: PLC0415 - commands that start nothing, such as plan, do not need it

    with _held():
        process = subprocess.Popen(arguments, process_group=0, text=True, **options)
        _SIGNALS.children[process] = False
    try:
        if _SIGNALS.came and not _SIGNALS.children[process]:  # received in another thread, before it was registered
            _forward(process)
        yield process
    except KeyboardInterrupt:
        if not _SIGNALS.children[process]:  # no command is running that could have forwarded it
            _forward(process)
        _await_end(process.wait if read_by_caller else process.communicate)
        raise
    finally:
        del _SIGNALS.children[process]


def ended(
    words: Sequence[str],
    *,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    limit_s: float | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a program that leaves nothing half done, and return its result and output.

    It stays in the process group of the command, so Ctrl-C stops both. Raises OSError if it cannot be started, and
    subprocess.TimeoutExpired after `limit_s`.
    """
    import subprocess  # noqa: PLC0415 - as in `started`

    return subprocess.run(
        list(words), cwd=folder, env=env, input=stdin, capture_output=True, text=True, timeout=limit_s, check=False
    )


def run_child(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command with more environment variables. Return its exit code: 128 + N after signal N.

    It gets the signals, and may continue, like a prompt. Raises CommandRefusedError if it cannot be run.
    """
    import subprocess  # noqa: PLC0415 - as in `started`

    running: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if not running:
            early.append(number)
        elif not (number == signal.SIGINT and _shares_terminal(running[0].pid)):
            running[0].send_signal(number)

    before = {number: signal.signal(number, forward) for number in ENDING}
    try:
        process = subprocess.Popen(command, env={**os.environ, **variables})
        running.append(process)
        for number in early:
            process.send_signal(number)
        code = process.wait()
    except OSError as error:
        raise CommandRefusedError(f"Cannot run the command {command[0]!r}: {error.strerror}.") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _shares_terminal(pid: int) -> bool:
    """Return whether a terminal itself sends Ctrl-C to the process."""
    with contextlib.suppress(OSError):
        group = os.getpgid(pid)
        return group == os.getpgrp() and any(group == _foreground_group(stream) for stream in range(3))
    return False


def _foreground_group(stream: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.tcgetpgrp(stream)
    return None


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result.

    An interrupt cancels it at a wait, because an interrupt inside a step leaves the step half done. KeyboardInterrupt is raised once the
    coroutine has finished.
    """
    import asyncio  # noqa: PLC0415 - most commands do not need it

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        _SIGNALS.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            return await work
        finally:
            _SIGNALS.cancel = None

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        if _SIGNALS.came:
            raise KeyboardInterrupt from None
        raise


def _take(_number: int, _frame: FrameType | None) -> None:
    _SIGNALS.came = True
    if not _SIGNALS.held:
        _interrupt()


def _forward(process: "subprocess.Popen[str]") -> None:
    _SIGNALS.children[process] = True
    process.send_signal(signal.SIGINT)


def _interrupt() -> None:
    for process in tuple(_SIGNALS.children):
        _forward(process)
    if _SIGNALS.cancel is None:
        raise KeyboardInterrupt
    _SIGNALS.cancel()


@contextlib.contextmanager
def _held() -> Generator[None]:
    """Delay signals until a program is registered. Only the main thread handles signals; a command waits for the starts of other threads."""
    if threading.current_thread() is not threading.main_thread():
        with _SIGNALS.starting:
            if _SIGNALS.is_over:
                raise KeyboardInterrupt
            yield
        return
    came, _SIGNALS.held = _SIGNALS.came, True
    try:
        yield
    finally:
        _SIGNALS.held = False
    if _SIGNALS.came and not came:
        _interrupt()


def _end_starts() -> None:
    """Wait until other threads have registered the programs that they are starting, and let them start no more."""
    while not _SIGNALS.is_over:
        with contextlib.suppress(KeyboardInterrupt), _SIGNALS.starting:
            _SIGNALS.is_over = True


def _await_end(wait: Callable[..., object]) -> None:
    """Wait for a program to exit. Further signals are forwarded.

    It waits in steps, because Python notices a signal that arrives just before a wait without an end only after that wait.
    """
    import subprocess  # noqa: PLC0415 - as in `started`

    while True:
        with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            wait(timeout=_STEP_S)
            return
