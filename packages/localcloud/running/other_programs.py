"""Containers of any other program: the local cloud runs no image, so a small server answers every request in its place.

It is ready at once, answers 200 with one sentence on every path and method, and has no effect. Nothing about the program is simulated:
a program that fails on Google Cloud starts here.
"""

import os
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Final

from localcloud.running.envoy import is_envoy
from localcloud.running.starters import is_starter
from localcloud.vllm import PLANNED_MARK, parent_watch
from localcloud.vllm.arguments import ArgumentError, split_command

MODULE: Final = "localcloud.running.other_programs"
HEADER: Final = ("x-simulated", "container")


def is_other_program(image: str, command: Sequence[str], arguments: Sequence[str]) -> bool:
    """Return whether nothing here runs a container: its command is not vLLM's, Envoy or a Python text, and its image is not vLLM's by name."""
    name = PurePosixPath(image.partition("@")[0]).name
    if "vllm" in name or is_envoy(command) or is_starter([*command, *arguments]):
        return False
    try:
        split_command([*command, *arguments])
    except ArgumentError:
        return True
    return False


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
        """Write no log: a program's log would not have these lines."""


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
