"""Exit this process when its parent process has exited for any reason."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from time import sleep
from typing import Final

_POLL_S: Final = 0.5


def hold(lifeline: str, end: Callable[[], None] | None = None) -> None:
    """Watch the parent from a thread.

    `stdin`: exit when standard input, a pipe from the parent, is closed. `pid:N`: exit when process N has exited, checked twice per second.
    `""`: watch nothing. `end` replaces the immediate exit.
    """
    stop = end or _exit
    if lifeline == "stdin":
        threading.Thread(target=_until_end_of_input, args=(stop,), daemon=True).start()
    elif lifeline.startswith("pid:"):
        threading.Thread(target=_until_gone, args=(int(lifeline[4:]), stop), daemon=True).start()


def _exit() -> None:
    os._exit(128 + signal.SIGHUP)


def _until_end_of_input(end: Callable[[], None]) -> None:
    descriptor = sys.stdin.fileno()
    while True:
        try:
            if not os.read(descriptor, 1024):
                break
        except InterruptedError:
            continue
        except OSError:
            break
    end()


def _until_gone(pid: int, end: Callable[[], None]) -> None:
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        except PermissionError:
            pass
        sleep(_POLL_S)
    end()
