"""A relay in front of a registry that can break off downloads, and links whose rate several streams share."""

import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

PIECE_BYTES: Final = 65536
"""Most bytes that a stream sends at once. Streams of a link get equal shares, as TCP's connections do, if they have equal pieces."""

_BURST_S: Final = 0.5
"""Idle time of a link that its streams may make up for: a busy machine delays them."""


@dataclass(kw_only=True)
class Link:
    """A rate in bytes per second that all its streams share, first come, first served. 0 is no limit."""

    bytes_per_s: float = 0.0
    sent_bytes: int = 0
    clock: Callable[[], float] = time.monotonic
    _free_at_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def delay_s(self, size: int) -> float:
        """Return the seconds until a piece of this size has passed after those before it."""
        with self._lock:
            self.sent_bytes += size
            if not self.bytes_per_s:
                return 0.0
            now_s = self.clock()
            self._free_at_s = max(self._free_at_s, now_s - _BURST_S) + size / self.bytes_per_s
            return max(0.0, self._free_at_s - now_s)


@dataclass(kw_only=True)
class BreakingRelay:
    """Connects each client to `target`. While `breaks_after` is set, each connection ends after that many bytes of responses."""

    target: tuple[str, int]
    breaks_after: int | None = None
    links: Sequence[Link] = ()
    """The slowest one at the time delays each piece of a response."""
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
        while data := server.recv(PIECE_BYTES):
            left = None if left is None else left - len(data)
            if left is not None and left < 0:
                with self._lock:
                    self.broken += 1
                return
            time.sleep(max((link.delay_s(len(data)) for link in self.links), default=0.0))
            client.sendall(data)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(PIECE_BYTES):
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
