"""`docker run` on a simulated machine: a simulated vLLM server with the container's command line, variables and volumes."""

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

from localcloud.running import interpreter
from localcloud.running.shims import add_options, collector, supervise, usage_problem
from localcloud.running.shims.docker_devices import OptionError, check_devices, problem_of, rights
from localcloud.running.shims.docker_host import ContainerOptions, DockerError, Host
from localcloud.running.shims.docker_images import pulled
from localcloud.running.shims.iptables import redirected
from localcloud.running.shims.machine import Machine, new_id, read_json, write_json
from localcloud.world.runtime import NOWHERE

METADATA_ADDRESS: Final = "169.254.169.254"
_STOP_GRACE_S: Final = 10.0
_IMAGE_ENTRY_POINT: Final = ("vllm", "serve")


_RESTART_S: Final = 1.0
"""Pause before a container with a restart policy starts again. Docker's grows from 0.1 s to a minute."""
_CANNOT_START = 125
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127
_NEVER_RAN = 128
_PROGRAMS: Final = ("vllm", "hf", "python3", collector.ENTRY_POINT)
"""Programs of the images."""
_NO_PROGRAM: Final = "/etc/passwd"
"""A file of every image that cannot be executed."""
_HELP: Final = "\n\nRun 'docker run --help' for more information"
"""Last lines of each error of `docker run` since Docker 28; before, "See 'docker run --help'." or nothing."""


class RunError(DockerError):
    """The container cannot be started. The message is docker's, without its hint. `code` is the exit code of `docker run`.

    `is_of_client`: the command line is wrong, which docker says without its name.
    """

    def __init__(self, message: str, code: int = _CANNOT_START, *, is_of_client: bool = False) -> None:
        super().__init__(message, code)
        self._is_of_client = is_of_client

    @property
    def shown(self) -> str:
        """Return what docker prints."""
        return f"{'' if self._is_of_client else 'docker: '}{self}{_HELP}"


class _RunParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        usage = "Usage:  docker run [OPTIONS] IMAGE [COMMAND] [ARG...]"
        raise RunError(f"{usage_problem(message)}\n\n{usage}", is_of_client=True)


def parse(argv: Sequence[str], variables: Mapping[str, str]) -> ContainerOptions:
    """Read a command line. `variables`: of the caller. Raises RunError."""
    parser = _RunParser(prog="docker run", allow_abbrev=False, add_help=False)
    add_options(
        parser,
        flags="-d|--detach --rm --privileged --read-only",
        values="--cgroup-parent --name --net|--network --shm-size --entrypoint --restart -m|--memory -u|--user --log-driver",
        lists="-e|--env --env-file -v|--volume -l|--label --ulimit --device --log-opt "
        "--cap-add --cap-drop --security-opt --tmpfs",
    )
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(list(argv))
    try:
        given_rights = rights(given)
    except OptionError as error:
        raise RunError(str(error)) from error
    command = [*([given.entrypoint] if given.entrypoint else []), *given.command]
    if not given.entrypoint and not _is_program(command):
        # Without --entrypoint, the image's entry point gets the arguments.
        entry_point = (collector.ENTRY_POINT,) if collector.is_collector(given.image) else _IMAGE_ENTRY_POINT
        command = [*entry_point, *command]
    return ContainerOptions(
        image=given.image,
        command=tuple(command),
        name=given.name or f"container-{new_id(4)}",
        detach=given.detach,
        remove=given.rm,
        environment=_environment(given.env, given.env_file, variables),
        labels=dict(_pair(label) for label in given.label),
        volumes=dict(_volume(volume) for volume in given.volume),
        network=given.net or "bridge",
        rights=given_rights,
        restarts=(given.restart or "no") != "no",
    )


def _is_program(command: Sequence[str]) -> bool:
    """Return whether a command starts with a program, not with a flag or a model's id."""
    return bool(command) and not command[0].startswith("-") and ("/" not in command[0] or command[0].startswith("/"))


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _environment(given: Sequence[str], files: Sequence[str], of_caller: Mapping[str, str]) -> dict[str, str]:
    """Read variables as docker does: files first. A name without a value gets the caller's."""
    out: dict[str, str] = {}
    lines: list[str] = []
    for file in files:
        try:
            lines += Path(file).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise RunError(f"open {file}: {str(error.strerror).lower()}") from error
    for text in [*(line for line in lines if line.strip() and not line.startswith("#")), *given]:
        name, equals, value = text.partition("=")
        if equals:
            out[name] = value
        elif name in of_caller:
            out[name] = of_caller[name]
    return out


def _volume(text: str) -> tuple[str, str]:
    parts = text.split(":")
    if len(parts) not in (2, 3) or not parts[0].startswith("/") or not parts[1].startswith("/"):
        raise RunError(f"Error response from daemon: invalid volume specification: '{text}'")
    return parts[1].rstrip("/") or "/", parts[0].rstrip("/") or "/"


def start(host: Host, wanted: ContainerOptions) -> str:
    """Start the container in the background and return its id. Raises RunError."""
    if re.fullmatch(r"[a-zA-Z0-9][\w.-]*", wanted.name) is None:
        raise RunError(
            f"Error response from daemon: Invalid container name ({wanted.name}), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed"
        )
    machine = host.machine
    state = machine.record(wanted.name)
    if state.exists():
        user = (read_json(state) or {}).get("id", "")
        raise RunError(
            f'Error response from daemon: Conflict. The container name "/{wanted.name}" is already in use by container "{user}". '
            "You have to remove (or rename) that container to be able to reuse that name."
        )
    identity = new_id(32)
    # The variables are passed to the process but not written to a file because some of them are secrets.
    document = {
        "id": identity,
        "name": wanted.name,
        "image": wanted.image,
        "imageId": pulled(machine).get(wanted.image, ""),
        "command": list(wanted.command),
        "labels": wanted.labels,
        "network": wanted.network,
        "createdAt": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        "running": True,
        "pid": os.getpid(),
        "exitCode": 0,
        "autoRemove": wanted.remove and wanted.detach,
        "restarts": wanted.restarts,
    }
    try:
        _check_start(wanted)
    except RunError as error:
        # Docker keeps the container, without `--rm`: it holds the name.
        if not wanted.remove:
            code = _NEVER_RAN if isinstance(error.__cause__, OptionError) else error.code
            write_json(state, {**document, "running": False, "isCreated": True, "pid": 0, "exitCode": code})
            if wanted.detach:
                host.say(identity)
        raise
    write_json(state, document)
    machine.log(wanted.name).touch()
    # `docker run` returns when the process has been started.
    if not host.containers.start(host, wanted):
        state.unlink(missing_ok=True)
        raise RunError("Error response from daemon: failed to create task for container: its supervisor did not start")
    return identity


def start_process(host: Host, wanted: ContainerOptions) -> bool:
    """Start a container as a process with a supervisor. Return False if that did not start."""
    machine = host.machine
    state = machine.record(wanted.name)
    process = interpreter.command("localcloud.vllm", *wanted.command)
    if collector.is_collector(wanted.image):
        problem = collector.problem_of(wanted.command, wanted.environment, _paths(machine, wanted))
        process = interpreter.command("localcloud.running.shims.collector", *([problem] if problem else []))
    pid = supervise.start(
        state,
        machine.log(wanted.name),
        process,
        restart_s=_RESTART_S if wanted.restarts else None,
        grace_s=_STOP_GRACE_S,
        init_pid=machine.init_pid,
        environment=_server_environment(host, wanted),
        pause=machine.stopped_docker,
    )
    return supervise.wait_until_started(state, pid)


def _check_start(wanted: ContainerOptions) -> None:
    """Raise RunError if a device or the program is missing. Docker's exit code is 127 for each "no such file" at start."""
    try:
        check_devices(wanted.rights)
    except OptionError as error:
        code = _NOT_FOUND if str(error).endswith("no such file or directory") else _CANNOT_START
        raise RunError(str(error), code) from error
    if wanted.command[0] not in _PROGRAMS:
        start = "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process"
        is_file = wanted.command[0] == _NO_PROGRAM
        why = "permission denied" if is_file else "executable file not found in $PATH"
        message = f'Error response from daemon: {start}: exec: "{wanted.command[0]}": {why}: unknown'
        raise RunError(message, _NOT_EXECUTABLE if is_file else _NOT_FOUND)


def _server_environment(host: Host, wanted: ContainerOptions) -> dict[str, str]:
    machine = host.machine
    simulator = {
        **interpreter.ENVIRONMENT,
        "PYTHONUNBUFFERED": "1",
        "VLLM_SIM_ACCELERATOR": machine.accelerator,
        "VLLM_SIM_IMAGE": wanted.image,
        "VLLM_SIM_CLOCK_SPEED": repr(machine.clock_speed),
        "VLLM_SIM_BIND_HOST": machine.address,
        "VLLM_SIM_PATHS": json.dumps(_paths(machine, wanted)),
        "VLLM_SIM_PYTHONPATH": _python_path(machine, wanted),
        "VLLM_SIM_LIFELINE": f"pid:{machine.init_pid}",
        # Address of the metadata server for a program in the container.
        "GCE_METADATA_HOST": _metadata_host(host, wanted),
        "VLLM_SIM_DEVICE_PROBLEM": problem_of(machine, wanted.rights),
        "VLLM_SIM_HUB": f"{machine.base_url}/hub" if machine.internet else NOWHERE,
    }
    if wanted.network != "host":
        # A port in the container's own network is unreachable from outside.
        simulator["VLLM_SIM_BIND_PORT"] = "0"
    return {**interpreter.simulator_variables(), **wanted.environment, **simulator}


def _metadata_host(host: Host, wanted: ContainerOptions) -> str:
    """Return the machine's metadata server, or its replacement by the machine's rules for the container's control group."""
    machine = host.machine
    port = redirected(machine, wanted.rights.cgroup_parent, METADATA_ADDRESS, 80)
    return host.environment.get("GCE_METADATA_HOST", "") if port is None else f"{machine.address}:{port}"


def _python_path(machine: Machine, wanted: ContainerOptions) -> str:
    """Return the real folders of the container's PYTHONPATH that are in its volumes. The image's own are irrelevant here."""
    paths = _paths(machine, wanted)
    return ":".join(paths[folder] for folder in wanted.environment.get("PYTHONPATH", "").split(":") if folder in paths)


def _paths(machine: Machine, wanted: ContainerOptions) -> dict[str, str]:
    """Map the container's volumes to real folders. /dev/shm and /mnt of the machine are below the machine's folder."""
    out = {"/": str(machine.folder / "nothing")}
    for inside, outside in wanted.volumes.items():
        real = outside
        for prefix, kept in machine.paths.items():
            # A folder that a program on the machine created in the real file system is used directly.
            if outside == prefix or (outside.startswith(prefix + "/") and not Path(outside).exists()):
                real = kept + outside[len(prefix) :]
        out[inside] = real
    return out
