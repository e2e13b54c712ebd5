"""A small HTTP proxy: CONNECT and whole addresses. It connects every name to 127.0.0.1 and notes what it was asked."""

import contextlib
import socket
import threading
from collections.abc import Generator


class SmallProxy:
    def __init__(self, refuses: bool = False) -> None:
        self.asked: list[str] = []
        self.lines: list[str] = []
        self.authorizations: set[str] = set()
        self.refuses = refuses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        # A thread that still waited would take connections of whatever socket gets this one's number.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            data = b""
            while b"\r\n\r\n" not in data:
                data += client.recv(65_536)
            method, target = self._note(data)
            if self.refuses:
                client.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
                client.close()
                return
            port = int(target.removeprefix("http://").split("/", 1)[0].rsplit(":", 1)[1])
            server = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
            if method == "CONNECT":
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self._pump(client, server)
                return
            is_noted = True
            while data:
                if data.startswith((b"GET http", b"POST http")):
                    target = target if is_noted else self._note(data)[1]
                    is_noted = False
                    data = data.replace(target.encode(), b"/" + target.split("/", 3)[3].encode(), 1)
                server.sendall(data)
                data = client.recv(65_536)

    def _note(self, data: bytes) -> tuple[str, str]:
        head = data.split(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        self.asked.append(f"{method} {target}")
        self.lines.append(head[0])
        self.authorizations |= {line.split(": ")[1] for line in head if line.lower().startswith("proxy-authorization")}
        return method, target

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def small_proxy(*, refuses: bool = False) -> Generator[SmallProxy]:
    proxy = SmallProxy(refuses)
    try:
        yield proxy
    finally:
        proxy.close()
