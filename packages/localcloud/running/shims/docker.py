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
from localcloud.running.shims.machine import Machine, alive, documents, read_json, tail, this_machine

_ACTION: Final = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_INDEX: Final = re.compile(r'index\s+(\.[\w.]*)\s+"([^"]*)"')
_JSON: Final = re.compile(r"json\s+(\.[\w.]*)")
_NOT_FOUND: Final = "Error response from daemon: No such container: {}"
_NO_DAEMON: Final = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
_CLIENT_ONLY: Final = ("login", "--version")
"""Commands that need no daemon."""
_BAD_USAGE: Final = 125
_POLL_S: Final = 0.05
_KILL_LIMIT_S: Final = 5.0


def _fail(message: str, code: int = 1) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(code)


class _DockerParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(f"{usage_problem(message)}\n\nUsage:  {self.prog} [OPTIONS]", _BAD_USAGE)


def _parser(command: str, *, flags: str = "", values: str = "") -> argparse.ArgumentParser:
    parser = _DockerParser(prog=f"docker {command}", allow_abbrev=False)
    add_options(parser, flags=flags, values=values)
    return parser


def container(machine: Machine, name: str) -> dict[str, Any]:
    """Return a container by name or id, with its current state. Exit if it does not exist."""
    found = _find(machine, name)
    if found is None:
        _fail(_NOT_FOUND.format(name))
    return found


def _find(machine: Machine, name: str) -> dict[str, Any] | None:
    for stem, document in documents(machine.containers):
        if name == stem or (len(name) >= 12 and str(document["id"]).startswith(name)):  # noqa: PLR2004 - docker's short ids
            return _fresh(document)
    return None


def _fresh(document: dict[str, Any]) -> dict[str, Any]:
    """Return the container's state, corrected if its supervisor crashed before it could record the exit."""
    # Until the supervisor has recorded the exit, the container counts as running because only the supervisor knows the exit code.
    supervisor = int(document.get("supervisor") or 0)
    supervised = supervisor > 0 and alive(supervisor)
    if document.get("restarting") and not supervised:
        return document | {"restarting": False}
    if document.get("running") and not alive(int(document["pid"])) and not supervised:
        return document | {"running": False, "exitCode": document.get("exitCode") or 137}
    return document


def _is_up(state: Mapping[str, Any]) -> bool:
    """Return docker's `State.Running`, which is also true between two starts of a container with a restart policy."""
    return bool(state.get("running") or state.get("restarting"))


def _status(state: Mapping[str, Any]) -> str:
    if state.get("restarting"):
        return "restarting"
    return "running" if state["running"] else "created" if state.get("isCreated") else "exited"


def _login(machine: Machine, argv: Sequence[str]) -> int:
    del machine
    parser = _parser("login", flags="--password-stdin")
    parser.add_argument("-u", "--username", required=True)
    parser.add_argument("server", nargs="?", default="https://index.docker.io/v1/")
    given = parser.parse_args(argv)
    password = sys.stdin.read().strip() if given.password_stdin else ""
    if not password:
        _fail("Error: Cannot perform an interactive login from a non TTY device")
    config = docker_images.config_file()
    config.parent.mkdir(parents=True, exist_ok=True)
    document = docker_images.config()
    host = given.server.removeprefix("https://").strip("/")
    document.setdefault("auths", {})[host] = {
        "auth": base64.b64encode(f"{given.username}:{password}".encode()).decode()
    }
    descriptor = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file)
    print("Login Succeeded")
    return 0


def _pull(machine: Machine, argv: Sequence[str]) -> int:
    parser = _parser("pull", flags="-q|--quiet")
    parser.add_argument("image")
    given = parser.parse_args(argv)
    try:
        docker_images.pull(machine, given.image, quiet=given.quiet)
    except docker_images.ImageError as error:
        _fail(str(error))
    return 0


def _rmi(machine: Machine, argv: Sequence[str]) -> int:
    parser = _parser("rmi")
    parser.add_argument("images", nargs="+")
    for image in parser.parse_args(argv).images:
        user = next((name for name, document in documents(machine.containers) if document["image"] == image), None)
        if user is not None:
            _fail(
                f'Error response from daemon: conflict: unable to remove repository reference "{image}": {user} uses it'
            )
        if not docker_images.remove(machine, image):
            _fail(f"Error response from daemon: No such image: {image}")
        print(f"Untagged: {image}")
    return 0


def _run(machine: Machine, argv: Sequence[str]) -> int:
    from localcloud.running.shims import docker_run  # noqa: PLC0415 - a fifth of the start of `docker`

    try:
        wanted = docker_run.parse(argv)
        if wanted.image not in docker_images.pulled(machine):
            print(f"Unable to find image '{wanted.image}' locally", file=sys.stderr)
            docker_images.pull(machine, wanted.image, quiet=True)
        identity = docker_run.start(machine, wanted)
    except docker_images.ImageError as error:
        error = docker_run.RunError(str(error))
        _fail(error.shown, error.code)
    except docker_run.RunError as error:
        _fail(error.shown, error.code)
    if wanted.detach:
        print(identity)
        return 0
    if not _follow(machine, wanted.name, lines=None):
        _fail('level=error msg="error waiting for container: unexpected EOF"', 125)
    code = int(container(machine, wanted.name)["exitCode"])
    if wanted.remove:
        remove(machine, wanted.name)
    return code


def _ps(machine: Machine, argv: Sequence[str]) -> int:
    given = _parser("ps", flags="-a|--all -q|--quiet").parse_args(argv)
    if not given.quiet:
        print("CONTAINER ID\tIMAGE\tSTATUS\tNAMES")
    for name, document in documents(machine.containers):
        state = _fresh(document)
        if given.all or _is_up(state):
            code = f"({state['exitCode']})"
            words = {"running": "Up", "created": "Created", "restarting": f"Restarting {code}"}
            status = words.get(_status(state), f"Exited {code}")
            short = state["id"][:12]
            print(short if given.quiet else f"{short}\t{state['image']}\t{status}\t{name}")
    return 0


def _logs(machine: Machine, argv: Sequence[str]) -> int:
    parser = _parser("logs", flags="-f|--follow")
    parser.add_argument("-n", "--tail", default="all")
    parser.add_argument("name")
    given = parser.parse_args(argv)
    found = container(machine, given.name)
    lines = None if given.tail == "all" else int(given.tail)
    if given.follow:
        if not _follow(machine, str(found["name"]), lines=lines):
            _fail("unexpected EOF")
    else:
        text = _log(machine, str(found["name"])).read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        sys.stdout.writelines(tail(text, lines))
    return 0


def _log(machine: Machine, name: str) -> Path:
    log = machine.containers / f"{name}.log"
    log.touch()
    return log


def _follow(machine: Machine, name: str, *, lines: int | None) -> bool:
    """Print a log while it grows, until the container has exited. Return False if the daemon ends first."""
    with _log(machine, name).open(encoding="utf-8", errors="replace") as log:
        if lines is not None:
            sys.stdout.writelines(tail(log.readlines(), lines))
        while True:
            state = read_json(machine.containers / f"{name}.json")
            ended = state is None or not _is_up(_fresh(state))
            sys.stdout.write(log.read())
            sys.stdout.flush()
            if ended or machine.stopped_docker.exists():
                return ended
            time.sleep(_POLL_S)


def _inspect(machine: Machine, argv: Sequence[str]) -> int:
    parser = _parser("inspect", values="-f|--format")
    parser.add_argument("--type", choices=("container", "image"))
    parser.add_argument("names", nargs="+")
    given = parser.parse_args(argv)
    found: list[dict[str, Any]] = []
    for name in given.names:
        document = _described(machine, name, given.type)
        if document is None:
            print("" if given.format else "[]", flush=True)
            daemon = {
                "container": "Error response from daemon",
                "image": f"Error response from daemon: no such image: {name}",
            }
            _fail(f"{daemon.get(given.type, 'Error')}: No such {given.type or 'object'}: {name}")
        found.append(document)
    shown = (
        [_formatted(given.format, document) for document in found] if given.format else [json.dumps(found, indent=4)]
    )
    print(*shown, sep="\n")
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
        raise SystemExit(f"template parsing error: the simulated docker does not support {{{{{action}}}}}")
    value = _at(action, document)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _at(path: str, document: Mapping[str, Any]) -> object:
    found: object = document
    for part in path.strip(".").split("."):
        if part not in as_object(found):
            raise SystemExit(f'template: :1: map has no entry for key "{part}"')
        found = as_object(found)[part]
    return found


def _described(machine: Machine, name: str, kind: str | None) -> dict[str, Any] | None:
    found = _find(machine, name) if kind != "image" else None
    if found is not None:
        return _container_document(found)
    if kind != "container":
        identity = docker_images.pulled(machine).get(name)
        if identity is not None:
            return {
                "Id": identity,
                "RepoTags": [] if "@" in name else [name],
                "RepoDigests": [name] if "@" in name else [],
                "Config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
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


def _stop(machine: Machine, argv: Sequence[str]) -> int:
    parser = _parser("stop")
    parser.add_argument("-t", "--time", "--timeout", type=int, default=10)
    parser.add_argument("names", nargs="+")
    given = parser.parse_args(argv)
    for name in given.names:
        end(machine, container(machine, name), signal.SIGTERM, given.time)
        print(name)
    return 0


def end(
    machine: Machine, found: dict[str, Any], number: signal.Signals, grace_s: float, *, is_final: bool = True
) -> None:
    """Signal a container's process and wait for it to exit. Kill it after the grace period.

    With `is_final`, a container with a restart policy does not start again.
    """
    if not _is_up(found):
        return
    pid = int(found["pid"])
    if found.get("restarts") and is_final:
        _signal(int(found["supervisor"]), signal.SIGTERM)
    _signal(pid, number)
    deadline = time.monotonic() + grace_s
    killed_at: float | None = None
    while _goes_on(machine, found, is_final=is_final):
        now = time.monotonic()
        if killed_at is None and now > deadline:
            _signal(pid, signal.SIGKILL)
            killed_at = now
        if killed_at is not None and now > killed_at + _KILL_LIMIT_S:
            _fail(
                f"Error response from daemon: cannot stop container: {found['name']}: it did not end after it was killed"
            )
        time.sleep(_POLL_S)


def _goes_on(machine: Machine, found: dict[str, Any], *, is_final: bool) -> bool:
    state = _fresh(read_json(machine.containers / f"{found['name']}.json") or {"running": False})
    return _is_up(state) if is_final else state["running"] and state["pid"] == found["pid"]


def _signal(pid: int, number: signal.Signals) -> None:
    """Signal a process, unless its container waits for a restart and has none."""
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _rm(machine: Machine, argv: Sequence[str]) -> int:
    parser = _parser("rm", flags="-f|--force")
    parser.add_argument("names", nargs="+")
    given = parser.parse_args(argv)
    for name in given.names:
        if given.force and not (machine.containers / f"{name}.json").exists():
            print(_NOT_FOUND.format(name), file=sys.stderr)
            continue
        found = container(machine, name)
        if _is_up(found) and not given.force:
            _fail(
                f'Error response from daemon: cannot remove container "/{name}": container is running: '
                "stop the container before removing or force remove"
            )
        end(machine, found, signal.SIGKILL, 0)
        remove(machine, str(found["name"]))
        print(name)
    return 0


def remove(machine: Machine, name: str) -> None:
    """Remove a container that has exited. Its log is kept with the machine's other logs."""
    log = machine.containers / f"{name}.log"
    if log.exists():
        kept = machine.folder / "old-logs"
        kept.mkdir(exist_ok=True)
        log.replace(kept / f"{name}-{time.time_ns()}.log")
    # Last: without its record the name is free, and the next container of that name has a log of its own.
    (machine.containers / f"{name}.json").unlink(missing_ok=True)


def _wait(machine: Machine, argv: Sequence[str]) -> int:
    for name in argv:
        found = container(machine, name)
        while _is_up(found):
            time.sleep(_POLL_S)
            found = container(machine, name)
        print(found["exitCode"])
    return 0


def _version(machine: Machine, argv: Sequence[str]) -> int:
    del machine, argv
    print("Docker version 28.0.0-simulated, build local")
    return 0


_COMMANDS: Final[dict[str, Callable[[Machine, Sequence[str]], int]]] = {
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


def _fail_without_daemon(command: str, words: Sequence[str]) -> NoReturn:
    if command == "run":
        from localcloud.running.shims import docker_run  # noqa: PLC0415 - as in `_run`

        error = docker_run.RunError(_NO_DAEMON)
        _fail(error.shown, error.code)
    if command == "inspect" and any(word.startswith(("-f", "--format")) for word in words):
        print(flush=True)
    _fail(_NO_DAEMON)


def main(argv: Sequence[str]) -> int:
    """Run one docker command."""
    command, *words = list(argv) or [""]
    if command not in _COMMANDS:
        _fail(f"docker: '{command}' is not a docker command of the simulated machine: {', '.join(_COMMANDS)}")
    machine = this_machine()
    docker_images.config()
    if machine.stopped_docker.exists() and command not in _CLIENT_ONLY:
        _fail_without_daemon(command, words)
    try:
        return _COMMANDS[command](machine, words)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 141


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
