"""A relay in front of a registry that can break off downloads."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

_CHUNK: Final = 65536


@dataclass(kw_only=True)
class BreakingRelay:
    """Connects each client to `target`. While `breaks_after` is set, each connection ends after that many bytes of responses."""

    target: tuple[str, int]
    breaks_after: int | None = None
    broken: int = 0
    """Connections that were broken off."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, listener: socket.socket) -> None:
        """Accept clients until the listener is closed."""
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self.target) as server:
            sender = threading.Thread(target=_copy, args=(client, server), daemon=True)
            sender.start()
            self._send_responses(server, client)
            # A closed socket stays open for the thread that reads it.
            client.shutdown(socket.SHUT_RDWR)
            sender.join()

    def _send_responses(self, server: socket.socket, client: socket.socket) -> None:
        left = self.breaks_after
        while data := server.recv(_CHUNK):
            left = None if left is None else left - len(data)
            if left is not None and left < 0:
                with self._lock:
                    self.broken += 1
                return
            client.sendall(data)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def breaking_relay(address: tuple[str, int], target: tuple[str, int]) -> Generator[BreakingRelay]:
    """Listen on an address of this machine and relay to the target until the end."""
    relay = BreakingRelay(target=target)
    with socket.create_server(address) as listener:
        threading.Thread(target=relay.serve, args=(listener,), daemon=True).start()
        try:
            yield relay
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
