"""`systemd-run` on a simulated machine: starts a command as a transient unit and restarts it according to its properties.

As in systemd, the unit inherits nothing from the caller's environment. It gets a PATH and the variables of `--setenv`.
"""

import argparse
import os
import re
import secrets
import sys
from collections.abc import Sequence
from typing import Final

from localcloud.running.shims import supervise, units
from localcloud.running.shims.machine import this_machine, write_json
from localcloud.running.shims.options import add_options

_UNITS_S: Final = {"": 1.0, "s": 1.0, "sec": 1.0, "ms": 0.001, "min": 60.0, "m": 60.0}
_DEFAULT_RESTART_S: Final = 0.1
_STOP_GRACE_S: Final = 90.0


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|sec|ms|min|m|)", text.strip())
    if match is None:
        sys.exit(f"Failed to parse time span: {text}")
    return float(match[1]) * _UNITS_S[match[2]]


def main(argv: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="systemd-run", allow_abbrev=False)
    add_options(
        parser,
        flags="--collect --no-block --quiet --remain-after-exit --no-ask-password",
        values="--unit|-u --description",
        lists="--property|-p --setenv|-E",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(list(argv))
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        sys.exit("Command line to execute required.")
    machine = this_machine()
    name = units.unit_name(given.unit or f"run-{secrets.token_hex(6)}")
    if units.unit(machine, name) is not None:
        print(
            f"Failed to start transient service unit: Unit {name}.service was already loaded or has a fragment file.",
            file=sys.stderr,
        )
        return 1
    properties = dict(item.partition("=")[::2] for item in given.property)
    restarts = properties.get("Restart", "no") != "no"
    restart_s = _seconds(properties.get("RestartSec", str(_DEFAULT_RESTART_S))) if restarts else None
    environment = {"PATH": os.defpath, **dict(item.partition("=")[::2] for item in given.setenv if "=" in item)}
    invocation = secrets.token_hex(16)
    state = units.state_file(machine, name)
    write_json(
        state,
        {"unit": name, "collect": given.collect, "supervisor": os.getpid(), "running": True, "invocation": invocation},
    )
    pid = supervise.start(
        state,
        units.log_file(machine, name),
        command,
        restart_s=restart_s,
        grace_s=_STOP_GRACE_S,
        init_pid=machine.init_pid,
        environment=environment,
    )
    supervise.wait_until_started(state, pid)
    if not given.quiet:
        print(f"Running as unit: {name}.service; invocation ID: {invocation}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
