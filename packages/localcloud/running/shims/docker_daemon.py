"""The docker daemon of a simulated machine: `systemctl stop docker` stops it, `kill` kills it, and `start` starts it.

A daemon that stops, stops its containers first. One that is killed leaves them running, and the next one ends them
(a real daemon without `live-restore`, 20.10.24). Containers with a restart policy start again with it.
"""

import signal
from collections.abc import Callable, Mapping
from typing import Final

from localcloud.running.shims.docker import container, end
from localcloud.running.shims.machine import Machine, documents

_SHUTDOWN_S: Final = 15.0
"""Time of a container between SIGTERM and SIGKILL when the daemon stops (dockerd's `--shutdown-timeout`)."""


def _stop(machine: Machine) -> None:
    machine.stopped_docker.touch()  # the API is closed before the containers stop
    _end_all(machine, signal.SIGTERM, _SHUTDOWN_S)


def _kill(machine: Machine) -> None:
    machine.stopped_docker.touch()


def _start(machine: Machine) -> None:
    if machine.stopped_docker.exists():
        _end_all(machine, signal.SIGKILL, 0)
        machine.stopped_docker.unlink()


def _end_all(machine: Machine, number: signal.Signals, grace_s: float) -> None:
    for name, _ in documents(machine.containers):
        end(machine, container(machine, name), number, grace_s, is_final=False)


COMMANDS: Final[Mapping[str, Callable[[Machine], None]]] = {"stop": _stop, "kill": _kill, "start": _start}
