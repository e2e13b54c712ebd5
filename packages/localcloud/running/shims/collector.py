"""A collector's container on a simulated machine: a process that waits. The local cloud itself reads the metrics (localcloud.services.collecting).

The process hands its configuration to the local cloud over a socket. It may contain an API key, so it is in no file.
"""

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from localcloud.world.collector import CollectorConfigError, config_text

SOCKET_KEY: Final = "collectorSocket"
"""Key of the socket in the record of a container."""
CONFIG_VARIABLE: Final = "LOCALCLOUD_COLLECTOR_CONFIG"
SOCKET_VARIABLE: Final = "LOCALCLOUD_COLLECTOR_SOCKET"
_CONNECT_LIMIT_S: Final = 1.0


def new_socket() -> str:
    """Return the path of a new socket. It is in a folder of its own, because a machine's folder is too long for the address of a socket."""
    return str(Path(tempfile.mkdtemp(prefix="localcloud-")) / "config")


def read_config(address: str) -> str | None:
    """Return the configuration of a running collector, or None if it does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_CONNECT_LIMIT_S)
        try:
            client.connect(address)
            with client.makefile("r", encoding="utf-8") as reader:
                return reader.read()
        except OSError:
            return None


def configuration(
    words: Sequence[str], variables: Mapping[str, str], paths: Mapping[str, str]
) -> tuple[str | None, str]:
    """Return the configuration of a collector, or None and why it does not start. `paths`: container path -> real path."""

    def read(inside: str) -> str:
        mounted = max((path for path in paths if inside == path or inside.startswith(path.rstrip("/") + "/")), key=len)
        return Path(paths[mounted] + inside[len(mounted.rstrip("/")) :]).read_text(encoding="utf-8")

    try:
        return config_text(words, variables, read), ""
    except CollectorConfigError as error:
        return None, str(error)


def main(argv: list[str]) -> int:
    """Wait for a signal, or print the problem and exit."""
    if argv:
        print(f"Error: {argv[0]}", file=sys.stderr)
        return 1
    # The default of SIGTERM would show as exit code 143; the collector exits with 0.
    signal.signal(signal.SIGTERM, _on_stop)
    address, text = os.environ[SOCKET_VARIABLE], os.environ[CONFIG_VARIABLE]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind(address)
            server.listen()
            print("Everything is ready. Begin running and processing data.", flush=True)
            while True:
                client, _ = server.accept()
                with client, suppress(OSError):  # a reader that has gone
                    client.sendall(text.encode())
    finally:
        shutil.rmtree(Path(address).parent, ignore_errors=True)


def _on_stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
