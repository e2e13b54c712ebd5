"""The docker daemon of a simulated machine: `systemctl stop docker` stops it, `kill` kills it, and `start` starts it.

A daemon that stops, stops its containers first, and those with a restart policy start again with the next one. One that is killed leaves them
running, and the next one ends them for good (a real daemon without `live-restore`, 20.10.24).
"""

import signal
from collections.abc import Callable, Mapping
from typing import Final

from localcloud.running.shims.docker import container, end, own_host
from localcloud.running.shims.machine import Machine, documents

_SHUTDOWN_S: Final = 15.0
"""Time of a container between SIGTERM and SIGKILL when the daemon stops (dockerd's `--shutdown-timeout`)."""
_KILLED: Final = "killed"


def _stop(machine: Machine) -> None:
    machine.stopped_docker.touch()  # the API is closed before the containers stop
    _end_all(machine, is_final=False)


def _kill(machine: Machine) -> None:
    machine.stopped_docker.write_text(_KILLED, encoding="utf-8")


def _start(machine: Machine) -> None:
    if machine.stopped_docker.exists():
        if machine.stopped_docker.read_text(encoding="utf-8") == _KILLED:
            _end_all(machine, is_final=True)
        machine.stopped_docker.unlink()


def _end_all(machine: Machine, *, is_final: bool) -> None:
    host = own_host(machine)
    for name, _ in documents(machine.containers):
        end(host, container(host, name), signal.SIGTERM, _SHUTDOWN_S, is_final=is_final)


COMMANDS: Final[Mapping[str, Callable[[Machine], None]]] = {"stop": _stop, "kill": _kill, "start": _start}
