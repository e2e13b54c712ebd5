"""`systemd-run`, `systemctl` and `journalctl` on a simulated machine: transient units, restarted according to their properties.

As in systemd, a unit inherits nothing from the caller's environment. It gets a PATH and the variables of `--setenv`.
"""

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from localcloud.running.shims import add_options, supervise
from localcloud.running.shims.machine import Machine, alive, new_id, read_json, tail, this_machine, write_json

_NOT_LOADED, _INACTIVE = 5, 3
_STOP_LIMIT_S: Final = 95.0
"""systemd waits 90 s for a unit to stop before it kills it."""
_STOP_GRACE_S: Final = 90.0
_POLL_S: Final = 0.02
_UNITS_S: Final = {"": 1.0, "s": 1.0, "sec": 1.0, "ms": 0.001, "min": 60.0, "m": 60.0}
_DEFAULT_RESTART_S: Final = 0.1


def _state_file(machine: Machine, name: str) -> Path:
    return machine.units / f"{name}.json"


def _log_file(machine: Machine, name: str) -> Path:
    return machine.units / f"{name}.log"


def _unload(machine: Machine, name: str) -> None:
    _state_file(machine, name).unlink(missing_ok=True)


def _unit(machine: Machine, name: str) -> dict[str, Any] | None:
    """Return a loaded unit, or None. A transient unit is unloaded when it exits successfully, and always with `--collect`."""
    document = read_json(_state_file(machine, name))
    if document is None or alive(int(document["supervisor"])):
        return document
    if document["collect"] or not document.get("exitCode"):
        _unload(machine, name)
        return None
    return document


def _stop_unit(machine: Machine, name: str) -> None:
    """Stop a loaded unit and wait until it has stopped."""
    document = _unit(machine, name)
    if document is None:
        return
    supervisor = int(document["supervisor"])
    deadline = time.monotonic() + _STOP_LIMIT_S
    try:
        os.kill(supervisor, signal.SIGTERM)
        while alive(supervisor) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if alive(supervisor):
            os.kill(supervisor, signal.SIGKILL)
    except ProcessLookupError:
        pass
    _unload(machine, name)


def _on_each(
    machine: Machine, names: Sequence[str], action: Callable[[Machine, str], None], *, doing: str, failed: int
) -> int:
    """Apply an action to each unit. Return 0, or the code `failed` if one of them is not loaded."""
    code = 0
    for name in names:
        if _unit(machine, name) is None:
            print(f"Failed to {doing} {name}.service: Unit {name}.service not loaded.", file=sys.stderr)
            code = failed
        else:
            action(machine, name)
    return code


def _is_active(machine: Machine, names: Sequence[str]) -> int:
    code = 0
    for name in names:
        found = _unit(machine, name)
        active = found is not None and bool(found["running"])
        # A loaded unit that does not run waits for its restart.
        print("active" if active else "inactive" if found is None else "activating")
        code = code if active else _INACTIVE
    return code


def _systemctl(words: Sequence[str]) -> int:
    """Run `stop`, `is-active` or `reset-failed`; for docker `stop`, `kill` and `start`."""
    command, *names = [word.removesuffix(".service") for word in words if not word.startswith("-")] or [""]
    machine = this_machine()
    if names == ["docker"] and command in ("stop", "kill", "start"):
        from localcloud.running.shims import docker_daemon  # noqa: PLC0415 - the agent's calls need none of it

        docker_daemon.COMMANDS[command](machine)
        return 0
    match command:
        case "stop":
            return _on_each(machine, names, _stop_unit, doing="stop", failed=_NOT_LOADED)
        case "reset-failed":
            return _on_each(machine, names, _unload, doing="reset failed state of unit", failed=1)
        case "is-active":
            return _is_active(machine, names)
        case _:
            print(f"systemctl: the simulated machine does not support '{' '.join(words)}'.", file=sys.stderr)
            return 1


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|sec|ms|min|m|)", text.strip())
    if match is None:
        sys.exit(f"Failed to parse time span: {text}")
    return float(match[1]) * _UNITS_S[match[2]]


def _run(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="systemd-run", allow_abbrev=False)
    add_options(
        parser,
        flags="--collect --no-block --quiet --remain-after-exit --no-ask-password",
        values="--unit|-u --description",
        lists="--property|-p --setenv|-E",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(list(words))
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        sys.exit("Command line to execute required.")
    machine = this_machine()
    name = (given.unit or f"run-{new_id(6)}").removesuffix(".service")
    if _unit(machine, name) is not None:
        print(
            f"Failed to start transient service unit: Unit {name}.service was already loaded or has a fragment file.",
            file=sys.stderr,
        )
        return 1
    properties = dict(item.partition("=")[::2] for item in given.property)
    restarts = properties.get("Restart", "no") != "no"
    state = _state_file(machine, name)
    write_json(state, {"unit": name, "collect": given.collect, "supervisor": os.getpid(), "running": True})
    pid = supervise.start(
        state,
        _log_file(machine, name),
        command,
        restart_s=_seconds(properties.get("RestartSec", str(_DEFAULT_RESTART_S))) if restarts else None,
        grace_s=_STOP_GRACE_S,
        init_pid=machine.init_pid,
        environment={"PATH": os.defpath, **dict(item.partition("=")[::2] for item in given.setenv if "=" in item)},
    )
    supervise.wait_until_started(state, pid)
    if not given.quiet:
        print(f"Running as unit: {name}.service; invocation ID: {new_id(16)}", file=sys.stderr)
    return 0


def _journal(words: Sequence[str]) -> int:
    """Print the output of a unit (`-u`), its last lines (`-n`)."""
    parser = argparse.ArgumentParser(prog="journalctl", allow_abbrev=False)
    parser.add_argument("-u", "--unit", required=True)
    parser.add_argument("-n", "--lines", type=int)
    given = parser.parse_args(list(words))
    log = _log_file(this_machine(), given.unit.removesuffix(".service"))
    if not log.exists():
        print("-- No entries --")
        return 0
    text = log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    sys.stdout.writelines(tail(text, given.lines))
    return 0


_COMMANDS: Final[dict[str, Callable[[Sequence[str]], int]]] = {
    "systemd-run": _run,
    "systemctl": _systemctl,
    "journalctl": _journal,
}


if __name__ == "__main__":
    sys.exit(_COMMANDS[sys.argv[1]](sys.argv[2:]))
