"""Connection to a server. A separate thread reopens a tunnel that closes."""

import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.scripts.stack.access import ServerAccess

_CHECK_PERIOD_S: Final = 0.5
_PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses between attempts to reconnect, in seconds; the last one repeats."""


class Upstream:
    """The server and its current connection. Thread-safe."""

    def __init__(self, opener: Callable[[], AbstractContextManager[ServerAccess]], say: Callable[[str], None]) -> None:
        self._opener = opener
        self._say = say
        self._open = threading.Event()
        self._ended = threading.Event()
        self._access: ServerAccess | None = None

    def access(self, limit_s: float) -> ServerAccess | None:
        """Return the connection to the server; None if it is lost and not reopened within `limit_s`."""
        return self._access if self._open.wait(limit_s) else None

    @contextmanager
    def running(self) -> Generator[None]:
        """Connect, keep the connection open, and close it at the end. Raises ScriptError if the first attempt fails."""
        with ExitStack() as first:
            self._access = first.enter_context(self._opener())
            reopening = threading.Thread(target=self._keep, args=(first.pop_all(),), daemon=True)
        self._open.set()
        reopening.start()
        try:
            yield
        finally:
            self._ended.set()
            reopening.join()

    def _keep(self, connection: ExitStack) -> None:
        while True:
            with connection:
                while self._access is not None and self._access.is_open() and not self._ended.wait(_CHECK_PERIOD_S):
                    pass
                self._open.clear()
            if self._ended.is_set():
                return
            self._say("tunnel closed, reopening it")
            connection = self._reopened()
            if self._ended.is_set():
                connection.close()
                return
            self._open.set()
            self._say("tunnel reopened")

    def _reopened(self) -> ExitStack:
        """Return the reopened connection, or an empty one if the command is stopping."""
        attempt = 0
        while not self._ended.is_set():
            connection = ExitStack()
            try:
                self._access = connection.enter_context(self._opener())
            except ScriptError as error:
                pause_s = _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]
                self._say(f"{error} Retrying in {pause_s:g} s.")
                self._ended.wait(pause_s)
                attempt += 1
            else:
                return connection
        return ExitStack()
