"""Keep the way to a server open: a tunnel that ends is opened again, by a thread of its own."""

import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final

from contracts.errors import ScriptError
from scripts.cli.access import ServerAccess

_CHECK_PERIOD_S: Final = 0.5
_PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses between attempts to open a lost way again; the last one repeats."""


class Upstream:
    """The server, and how to reach it now. Thread-safe."""

    def __init__(self, opener: Callable[[], AbstractContextManager[ServerAccess]], say: Callable[[str], None]) -> None:
        self._opener = opener
        self._say = say
        self._open = threading.Event()
        self._ended = threading.Event()
        self._access: ServerAccess | None = None

    def access(self, limit_s: float) -> ServerAccess | None:
        """Return the way to the server; None if it is lost and did not come back within `limit_s`."""
        return self._access if self._open.wait(limit_s) else None

    @contextmanager
    def running(self) -> Generator[None]:
        """Open the way, keep it open, and close it at the end. Raises ScriptError if it cannot be opened the first time."""
        with ExitStack() as first:
            self._access = first.enter_context(self._opener())
            keeper = threading.Thread(target=self._keep, args=(first.pop_all(),), daemon=True)
        self._open.set()
        keeper.start()
        try:
            yield
        finally:
            self._ended.set()
            keeper.join()

    def _keep(self, way: ExitStack) -> None:
        while True:
            with way:
                while self._access is not None and self._access.is_open() and not self._ended.wait(_CHECK_PERIOD_S):
                    pass
                self._open.clear()
            if self._ended.is_set():
                return
            self._say("the tunnel ended; opening it again.")
            way = self._reopened()
            if self._ended.is_set():
                way.close()
                return
            self._open.set()
            self._say("the tunnel is open again.")

    def _reopened(self) -> ExitStack:
        """Return the way, open again, or an empty one if the command ends meanwhile."""
        attempt = 0
        while not self._ended.is_set():
            way = ExitStack()
            try:
                self._access = way.enter_context(self._opener())
            except ScriptError as error:
                pause_s = _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]
                self._say(f"{error} Trying again in {pause_s:g} s.")
                self._ended.wait(pause_s)
                attempt += 1
            else:
                return way
        return ExitStack()
