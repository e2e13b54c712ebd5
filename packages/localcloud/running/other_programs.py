"""Containers of any other program: the local cloud runs no image, so a small server answers every request in its place.

It is ready immediately, answers 200 with one sentence on every path and method, and has no effect. Nothing about the program is simulated:
a program that fails on Google Cloud starts here. This module loads in little time, because each such container is a process.
"""

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from localcloud.vllm import PLANNED_MARK, parent_watch

HEADER: Final = ("x-simulated", "container")


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer any request. The connection is closed, because the request's body is not read."""
        body = (
            f"Simulated: the local cloud does not run the program of {os.environ.get('K_SERVICE', 'this service')}. "
            "Every request gets this answer.\n"
        ).encode()
        self.close_connection = True
        self.send_response(200)
        for name, value in (HEADER, ("Content-Type", "text/plain"), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET  # noqa: N815 - the names are http.server's

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's signature
        """Write no log: a program's log does not have these lines."""


def main() -> int:
    """Serve until the local cloud ends, on the address in VLLM_SIM_BIND_HOST and VLLM_SIM_BIND_PORT."""
    parent_watch.hold("stdin")
    address = (os.environ["VLLM_SIM_BIND_HOST"], int(os.environ["VLLM_SIM_BIND_PORT"]))
    with ThreadingHTTPServer(address, _Answer) as server:
        print(
            f"{PLANNED_MARK} port {os.environ['PORT']}, 0 simulated seconds. The image's program does not run.",
            flush=True,
        )
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
