"""`docker` on a simulated machine: docker's messages and exit codes, and a simulated vLLM server as the container.

Commands: pull, login, run, ps, logs, inspect, stop, rm, wait, rmi and --version, with the options that scripts of machines use.
"""

import argparse
import base64
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from localcloud.json_values import as_object
from localcloud.running.shims import add_options, docker_images, usage_problem
from localcloud.running.shims.docker_host import ContainerOptions, DockerError, Host
from localcloud.running.shims.machine import Machine, alive, documents, read_json, tail, this_machine

_ACTION: Final = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_INDEX: Final = re.compile(r'index\s+(\.[\w.]*)\s+"([^"]*)"')
_JSON: Final = re.compile(r"json\s+(\.[\w.]*)")
_NOT_FOUND: Final = "Error response from daemon: No such container: {}"
NO_DAEMON: Final = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
_CLIENT_ONLY: Final = ("login", "--version")
"""Commands that need no daemon."""
_BAD_USAGE: Final = 125
IMAGE_VARIABLES: Final[Sequence[str]] = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)
"""Variables that each image sets."""
_POLL_S: Final = 0.05
_KILL_LIMIT_S: Final = 5.0


class _DockerParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise DockerError(f"{usage_problem(message)}\n\nUsage:  {self.prog} [OPTIONS]", _BAD_USAGE)


def _parser(command: str, *, flags: str = "", values: str = "") -> argparse.ArgumentParser:
    parser = _DockerParser(prog=f"docker {command}", allow_abbrev=False)
    add_options(parser, flags=flags, values=values)
    return parser


def container(host: Host, name: str) -> dict[str, Any]:
    """Return a container by name or id, with its current state. Raises DockerError if it does not exist."""
    found = _find(host, name)
    if found is None:
        raise DockerError(_NOT_FOUND.format(name))
    return found


def _find(host: Host, name: str) -> dict[str, Any] | None:
    for stem, document in documents(host.machine.containers):
        if name == stem or (len(name) >= 12 and str(document["id"]).startswith(name)):  # noqa: PLR2004 - docker's short ids
            return _fresh(host, document)
    return None


def _fresh(host: Host, document: dict[str, Any]) -> dict[str, Any]:
    """Return the container's state, corrected if its supervisor crashed before it could record the exit."""
    # Until the supervisor has recorded the exit, the container counts as running because only the supervisor knows the exit code.
    supervisor = int(document.get("supervisor") or 0)
    supervised = supervisor > 0 and host.containers.is_alive(supervisor)
    if document.get("restarting") and not supervised:
        return document | {"restarting": False}
    if document.get("running") and not host.containers.is_alive(int(document["pid"])) and not supervised:
        return document | {"running": False, "exitCode": document.get("exitCode") or 137}
    return document


def _is_up(state: Mapping[str, Any]) -> bool:
    """Return docker's `State.Running`, which is also true between two starts of a container with a restart policy."""
    return bool(state.get("running") or state.get("restarting"))


def _status(state: Mapping[str, Any]) -> str:
    if state.get("restarting"):
        return "restarting"
    return "running" if state["running"] else "created" if state.get("isCreated") else "exited"


def _login(host: Host, argv: Sequence[str]) -> int:
    parser = _parser("login", flags="--password-stdin")
    parser.add_argument("-u", "--username", required=True)
    parser.add_argument("server", nargs="?", default="https://index.docker.io/v1/")
    given = parser.parse_args(argv)
    password = host.stdin.read().strip() if given.password_stdin else ""
    if not password:
        raise DockerError("Error: Cannot perform an interactive login from a non TTY device")
    config = docker_images.config_file(host)
    config.parent.mkdir(parents=True, exist_ok=True)
    document = docker_images.config(host)
    server = given.server.removeprefix("https://").strip("/")
    document.setdefault("auths", {})[server] = {
        "auth": base64.b64encode(f"{given.username}:{password}".encode()).decode()
    }
    descriptor = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file)
    host.say("Login Succeeded")
    return 0


def _pull(host: Host, argv: Sequence[str]) -> int:
    parser = _parser("pull", flags="-q|--quiet")
    parser.add_argument("image")
    given = parser.parse_args(argv)
    docker_images.pull(host, given.image, quiet=given.quiet)
    return 0


def _rmi(host: Host, argv: Sequence[str]) -> int:
    parser = _parser("rmi")
    parser.add_argument("images", nargs="+")
    for image in parser.parse_args(argv).images:
        user = next((name for name, document in documents(host.machine.containers) if document["image"] == image), None)
        if user is not None:
            raise DockerError(
                f'Error response from daemon: conflict: unable to remove repository reference "{image}": {user} uses it'
            )
        if not docker_images.remove(host.machine, image):
            raise DockerError(f"Error response from daemon: No such image: {image}")
        host.say(f"Untagged: {image}")
    return 0


def _run(host: Host, argv: Sequence[str]) -> int:
    from localcloud.running.shims import docker_run  # noqa: PLC0415 - a fifth of the start of `docker`

    wanted = docker_run.parse(argv, host.environment)
    if wanted.image not in docker_images.pulled(host.machine):
        print(f"Unable to find image '{wanted.image}' locally", file=host.err)
        try:
            docker_images.pull(host, wanted.image, quiet=True)
        except DockerError as error:
            raise docker_run.RunError(str(error)) from error
    identity = docker_run.start(host, wanted)
    if wanted.detach:
        host.say(identity)
        return 0
    if not _follow(host, wanted.name, lines=None):
        raise DockerError('level=error msg="error waiting for container: unexpected EOF"', 125)
    code = int(container(host, wanted.name)["exitCode"])
    if wanted.remove:
        remove(host, wanted.name)
    return code


def _ps(host: Host, argv: Sequence[str]) -> int:
    given = _parser("ps", flags="-a|--all -q|--quiet").parse_args(argv)
    if not given.quiet:
        host.say("CONTAINER ID\tIMAGE\tSTATUS\tNAMES")
    for name, document in documents(host.machine.containers):
        state = _fresh(host, document)
        if given.all or _is_up(state):
            code = f"({state['exitCode']})"
            words = {"running": "Up", "created": "Created", "restarting": f"Restarting {code}"}
            status = words.get(_status(state), f"Exited {code}")
            short = state["id"][:12]
            host.say(short if given.quiet else f"{short}\t{state['image']}\t{status}\t{name}")
    return 0


def _logs(host: Host, argv: Sequence[str]) -> int:
    parser = _parser("logs", flags="-f|--follow")
    parser.add_argument("-n", "--tail", default="all")
    parser.add_argument("name")
    given = parser.parse_args(argv)
    found = container(host, given.name)
    lines = None if given.tail == "all" else int(given.tail)
    if given.follow:
        if not _follow(host, str(found["name"]), lines=lines):
            raise DockerError("unexpected EOF")
    else:
        text = _log(host, str(found["name"])).read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        host.out.writelines(tail(text, lines))
    return 0


def _log(host: Host, name: str) -> Path:
    log = host.machine.log(name)
    log.touch()
    return log


def _follow(host: Host, name: str, *, lines: int | None) -> bool:
    """Print a log while it grows, until the container has exited. Return False if the daemon ends first."""
    with _log(host, name).open(encoding="utf-8", errors="replace") as log:
        if lines is not None:
            host.out.writelines(tail(log.readlines(), lines))
        while True:
            state = read_json(host.machine.record(name))
            ended = state is None or not _is_up(_fresh(host, state))
            host.out.write(log.read())
            host.out.flush()
            if ended or host.machine.stopped_docker.exists():
                return ended
            host.sleep(_POLL_S)


def _inspect(host: Host, argv: Sequence[str]) -> int:
    parser = _parser("inspect", values="-f|--format")
    parser.add_argument("--type", choices=("container", "image"))
    parser.add_argument("names", nargs="+")
    given = parser.parse_args(argv)
    found: list[dict[str, Any]] = []
    for name in given.names:
        document = _described(host, name, given.type)
        if document is None:
            host.say("" if given.format else "[]")
            daemon = {
                "container": "Error response from daemon",
                "image": f"Error response from daemon: no such image: {name}",
            }
            raise DockerError(f"{daemon.get(given.type, 'Error')}: No such {given.type or 'object'}: {name}")
        found.append(document)
    shown = (
        [_formatted(given.format, document) for document in found] if given.format else [json.dumps(found, indent=4)]
    )
    host.say(*shown)
    return 0


def _formatted(template: str, document: Mapping[str, Any]) -> str:
    """Fill the actions that scripts use: `{{.A.B}}`, `{{index .A "key"}}`, `{{json .A}}`. Any other exits with one sentence, as docker does."""
    return _ACTION.sub(lambda match: _value(match[1], document), template)


def _value(action: str, document: Mapping[str, Any]) -> str:
    if match := _INDEX.fullmatch(action):
        return str(as_object(_at(match[1], document)).get(match[2], ""))
    if match := _JSON.fullmatch(action):
        return json.dumps(_at(match[1], document))
    if not re.fullmatch(r"\.[\w.]*", action):
        raise DockerError(f"template parsing error: the simulated docker does not support {{{{{action}}}}}")
    value = _at(action, document)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _at(path: str, document: Mapping[str, Any]) -> object:
    found: object = document
    for part in path.strip(".").split("."):
        if part not in as_object(found):
            raise DockerError(f'template: :1: map has no entry for key "{part}"')
        found = as_object(found)[part]
    return found


def _described(host: Host, name: str, kind: str | None) -> dict[str, Any] | None:
    found = _find(host, name) if kind != "image" else None
    if found is not None:
        return _container_document(found)
    if kind != "container":
        identity = docker_images.pulled(host.machine).get(name)
        if identity is not None:
            return {
                "Id": identity,
                "RepoTags": [] if "@" in name else [name],
                "RepoDigests": [name] if "@" in name else [],
                "Config": {"Env": [*IMAGE_VARIABLES]},
            }
    return None


def _container_document(state: dict[str, Any]) -> dict[str, Any]:
    return {
        "Id": state["id"],
        "Created": state["createdAt"],
        "State": {
            "Status": _status(state),
            "Running": _is_up(state),
            "Restarting": bool(state.get("restarting")),
            "Pid": state.get("pid", 0),
            "ExitCode": state.get("exitCode", 0),
            "StartedAt": state.get("startedAt", ""),
            "FinishedAt": state.get("finishedAt", "0001-01-01T00:00:00Z"),
        },
        "Image": state["imageId"],
        "Name": f"/{state['name']}",
        "Config": {"Image": state["image"], "Labels": state["labels"], "Cmd": state["command"]},
    }


def _stop(host: Host, argv: Sequence[str]) -> int:
    parser = _parser("stop")
    parser.add_argument("-t", "--time", "--timeout", type=int, default=10)
    parser.add_argument("names", nargs="+")
    given = parser.parse_args(argv)
    for name in given.names:
        end(host, container(host, name), signal.SIGTERM, given.time)
        host.say(name)
    return 0


def end(host: Host, found: dict[str, Any], number: signal.Signals, grace_s: float, *, is_final: bool = True) -> None:
    """Signal a container's process and wait for it to exit. Kill it after the grace period.

    With `is_final`, a container with a restart policy does not start again.
    """
    if not _is_up(found):
        return
    pid = int(found["pid"])
    if found.get("restarts") and is_final:
        host.containers.signal(int(found["supervisor"]), signal.SIGTERM)
    host.containers.signal(pid, number)
    deadline = host.now() + grace_s
    killed_at: float | None = None
    while _goes_on(host, found, is_final=is_final):
        now = host.now()
        if killed_at is None and now > deadline:
            host.containers.signal(pid, signal.SIGKILL)
            killed_at = now
        if killed_at is not None and now > killed_at + _KILL_LIMIT_S:
            raise DockerError(
                f"Error response from daemon: cannot stop container: {found['name']}: it did not end after it was killed"
            )
        host.sleep(_POLL_S)


def _goes_on(host: Host, found: dict[str, Any], *, is_final: bool) -> bool:
    state = _fresh(host, read_json(host.machine.record(found["name"])) or {"running": False})
    return _is_up(state) if is_final else state["running"] and state["pid"] == found["pid"]


def _rm(host: Host, argv: Sequence[str]) -> int:
    parser = _parser("rm", flags="-f|--force")
    parser.add_argument("names", nargs="+")
    given = parser.parse_args(argv)
    for name in given.names:
        if given.force and not host.machine.record(name).exists():
            print(_NOT_FOUND.format(name), file=host.err)
            continue
        found = container(host, name)
        if _is_up(found) and not given.force:
            raise DockerError(
                f'Error response from daemon: cannot remove container "/{name}": container is running: '
                "stop the container before removing or force remove"
            )
        end(host, found, signal.SIGKILL, 0)
        remove(host, str(found["name"]))
        host.say(name)
    return 0


def remove(host: Host, name: str) -> None:
    """Remove a container that has exited. Its log is kept with the machine's other logs."""
    log = host.machine.log(name)
    if log.exists():
        kept = host.machine.folder / "old-logs"
        kept.mkdir(exist_ok=True)
        log.replace(kept / f"{name}-{time.time_ns()}.log")
    # Last: without its record the name is free, and the next container of that name has a log of its own.
    host.machine.record(name).unlink(missing_ok=True)


def _wait(host: Host, argv: Sequence[str]) -> int:
    for name in argv:
        found = container(host, name)
        while _is_up(found):
            host.sleep(_POLL_S)
            found = container(host, name)
        host.say(str(found["exitCode"]))
    return 0


def _version(host: Host, argv: Sequence[str]) -> int:
    del argv
    host.say("Docker version 28.0.0-simulated, build local")
    return 0


_COMMANDS: Final[dict[str, Callable[[Host, Sequence[str]], int]]] = {
    "login": _login,
    "pull": _pull,
    "rmi": _rmi,
    "run": _run,
    "ps": _ps,
    "logs": _logs,
    "inspect": _inspect,
    "stop": _stop,
    "rm": _rm,
    "wait": _wait,
    "--version": _version,
}


def _fail_without_daemon(host: Host, command: str, words: Sequence[str]) -> NoReturn:
    if command == "run":
        from localcloud.running.shims import docker_run  # noqa: PLC0415 - as in `_run`

        raise docker_run.RunError(NO_DAEMON)
    if command == "inspect" and any(word.startswith(("-f", "--format")) for word in words):
        host.say("")
    raise DockerError(NO_DAEMON)


def run(host: Host, argv: Sequence[str]) -> int:
    """Run one docker command. Return its exit code."""
    command, *words = list(argv) or [""]
    if command not in _COMMANDS:
        known = ", ".join(_COMMANDS)
        print(f"docker: '{command}' is not a docker command of the simulated machine: {known}", file=host.err)
        return 1
    docker_images.config(host)
    try:
        if host.machine.stopped_docker.exists() and command not in _CLIENT_ONLY:
            _fail_without_daemon(host, command, words)
        return _COMMANDS[command](host, words)
    except DockerError as error:
        print(error.shown, file=host.err)
        return error.code


class _Processes:
    """Containers as processes: a simulated vLLM server each, or a collector."""

    def start(self, host: Host, wanted: ContainerOptions) -> bool:
        from localcloud.running.shims import docker_run  # noqa: PLC0415 - as in `_run`

        return docker_run.start_process(host, wanted)

    def is_alive(self, pid: int) -> bool:
        return alive(pid)

    def signal(self, pid: int, number: signal.Signals) -> None:
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def own_host(machine: Machine) -> Host:
    """Return the host of a command in this process."""
    return Host(machine=machine, containers=_Processes(), registry=docker_images.query_registry)


def main(argv: Sequence[str]) -> int:
    """Run one docker command in this process."""
    try:
        return run(own_host(this_machine()), argv)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 141


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
