"""HTTP server that a container can reach: with few connections, so that idle ones cannot use up the agent's descriptors and threads."""

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST_CONNECTIONS = 64
"""Connections from which a new one closes the oldest without a complete request. From twice as many, new ones are closed."""


class BoundedServer(ThreadingHTTPServer):
    """Server that answers in the background until `close`. Its handler is a BoundedHandler. Raises OSError if the port is in use."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, address: "tuple[str, int]", handler: "type[BoundedHandler]") -> None:
        super().__init__(address, handler)
        self._lock, self._open, self._unread = threading.Lock(), 0, dict[socket.socket, None]()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop responding."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base class's types
        """Answer in a thread, or close the connection."""
        with self._lock:
            is_full = self._open >= 2 * MOST_CONNECTIONS
            if not is_full:
                self._open, self._unread[request] = self._open + 1, None
                if self._open > MOST_CONNECTIONS:
                    oldest = next(iter(self._unread))
                    del self._unread[oldest]
                    with suppress(OSError):
                        oldest.shutdown(socket.SHUT_RDWR)  # its thread then ends
        if is_full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the same
        """Answer, then free the connection's place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_read(request)
            with self._lock:
                self._open -= 1

    def has_read(self, request: socket.socket) -> None:
        """Record that a connection's request is complete."""
        with self._lock:
            self._unread.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the same
        """Do nothing for a client that is gone."""


class BoundedHandler(BaseHTTPRequestHandler):
    """Handler with a limit of time for a silent client. One connection has one request."""

    timeout = 10.0

    def parse_request(self) -> bool:
        """Read a request. Return False if it is invalid, and was answered."""
        is_valid = super().parse_request()
        if isinstance(self.server, BoundedServer):
            self.server.has_read(self.connection)
        return is_valid

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""
