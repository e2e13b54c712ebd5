"""HTTP server for a container: idle connections cannot use up the agent's descriptors and threads."""

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST_CONNECTIONS = 64
"""Connections from which a new one closes the oldest. From twice as many, a new one is closed itself."""
SILENT_S = 10.0
"""Time after which a client that sends or reads nothing is closed."""


class BoundedServer(ThreadingHTTPServer):
    """Server that answers in the background until `close`. Raises OSError if the port is in use."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, address: "tuple[str, int]", handler: "type[BaseHTTPRequestHandler]") -> None:
        super().__init__(address, handler)
        self._lock, self._open = threading.Lock(), dict[socket.socket, bool]()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop responding."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base class's types
        """Answer in a thread, or close the connection."""
        with self._lock:
            is_full = len(self._open) >= 2 * MOST_CONNECTIONS
            if not is_full:
                self._open[request] = True
                kept = [one for one, is_kept in self._open.items() if is_kept]
                if len(kept) > MOST_CONNECTIONS:
                    self._open[kept[0]] = False
                    with suppress(OSError):
                        kept[0].shutdown(socket.SHUT_RDWR)  # its thread then ends
        if is_full:
            self.shutdown_request(request)
        else:
            request.settimeout(SILENT_S)
            super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the same
        """Answer, then free the connection's place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the same
        """Do nothing for a client that is gone."""


class QuietHandler(BaseHTTPRequestHandler):
    """Handler that writes no log and ignores a client that is gone."""

    def answer(self, status: int, body: bytes, headers: "Sequence[tuple[str, str]]" = ()) -> None:
        """Send a response with its length."""
        with suppress(OSError):
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing."""
