"""Injected fault: a proxy that holds each streamed response until it is complete, like a web server with buffering.

A benchmark behind it sees the first token together with the last one. The oracle must detect this.
"""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

from authors.oracle.server import HOST

_STREAM: Final = b"text/event-stream"
_END: Final = b"[DONE]"
_PIECE: Final = 1 << 16


def released(held: bytes) -> bool:
    """Return whether a held response can be forwarded because it is not an event stream or is complete."""
    return _STREAM not in held or _END in held


@contextmanager
def buffering_proxy(port: int) -> Generator[str]:
    """Listen on a free port, forward everything to `port` of this machine, and yield the address."""
    listener = socket.create_server((HOST, 0), backlog=128)
    threading.Thread(target=_accept, args=(listener, port), daemon=True).start()
    try:
        yield f"http://{HOST}:{listener.getsockname()[1]}"
    finally:
        # A close alone does not wake the accepting thread.
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _accept(listener: socket.socket, port: int) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        try:
            server = socket.create_connection((HOST, port))
        except OSError:
            client.close()
            continue
        for sender, receiver, holds in ((client, server, False), (server, client, True)):
            threading.Thread(target=_pass_on, args=(sender, receiver, holds), daemon=True).start()


def _pass_on(sender: socket.socket, receiver: socket.socket, holds: bool) -> None:
    held = b""
    with suppress(OSError):
        while piece := sender.recv(_PIECE):
            held += piece
            if not holds or released(held):
                receiver.sendall(held)
                held = b""
    with suppress(OSError):
        receiver.sendall(held)
    for each in (sender, receiver):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
