"""What a docker command runs on and with: a machine, who runs its containers, a registry, the caller's variables and streams, and a clock.

The program `docker` of a machine uses its own process. A test gives a host with threads and a clock of its own.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from localcloud.running.shims.docker_devices import Rights
from localcloud.running.shims.machine import Machine


class DockerError(Exception):
    """A command fails. The message is docker's, `code` its exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code

    @property
    def shown(self) -> str:
        """Return what docker prints."""
        return str(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions:
    """The options of one `docker run`. `volumes`: container path -> path on the machine."""

    image: str
    command: tuple[str, ...]
    name: str
    detach: bool
    remove: bool
    environment: dict[str, str]
    labels: dict[str, str]
    volumes: dict[str, str]
    network: str
    rights: Rights
    restarts: bool


class Containers(Protocol):
    """What runs containers, and writes their ends to their records, as `supervise` does."""

    def start(self, host: "Host", wanted: ContainerOptions) -> bool:
        """Start a container whose record exists. Return False if it did not start."""
        ...

    def is_alive(self, pid: int) -> bool:
        """Return whether a container's process, or its supervisor, exists."""
        ...

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Signal a process. One that has ended is ignored, as is 0, of a container that waits for its restart."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host of one command, by default of one in this process. `registry` raises DockerError if it does not send an image."""

    machine: Machine
    containers: Containers
    registry: Callable[["Host", str], None]
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    stdin: TextIO = field(default_factory=lambda: sys.stdin)
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def say(self, *lines: str) -> None:
        """Print lines at once."""
        print(*lines, sep="\n", file=self.out, flush=True)
