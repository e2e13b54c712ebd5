"""Replacements for commands on PATH: `docker`, `iptables`, `systemd-run`, `systemctl` and `journalctl` on a simulated machine, `gcloud` for users.

`install` writes each command as a small script that runs a module of this package with the local cloud's interpreter, in any environment.
The modules only use the standard library because a machine calls them often.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from localcloud.running import interpreter

if TYPE_CHECKING:
    import argparse

MACHINE_COMMANDS: Final = {
    "df": "localcloud.running.shims.df",
    "docker": "localcloud.running.shims.docker",
    "iptables": "localcloud.running.shims.iptables",
    **{name: f"localcloud.running.shims.systemd {name}" for name in ("systemd-run", "systemctl", "journalctl")},
}
"""The commands that come first on a machine's PATH: a module, and its first argument if it has several commands."""

COMMANDS_WITHOUT_DOCKER: Final = {name: f"localcloud.running.shims.apt_get {name}" for name in ("docker", "apt-get")}
"""The commands of a machine whose boot image lacks docker, until its package is installed."""

OPERATOR_TOKEN: Final = "LOCALCLOUD_TOKEN"  # noqa: S105 - the name of a variable
"""The variable with the operator's token in the scripts of users' commands, which are private files."""

DOCKER_PROGRAM: Final = "LOCALCLOUD_DOCKER"
"""The variable with the path of a program that machines run as `docker` in place of the simulated one."""

STORAGE_ADDRESS: Final = "LOCALCLOUD_STORAGE"
"""The variable with the address of a proxy that machines use as Cloud Storage in place of the local cloud's own, such as a slow one."""


def people_commands() -> Mapping[str, str]:
    """Return the commands that `python -m localcloud run` puts first on PATH: a module for each.

    Another distribution adds its own by entry points of the group `localcloud.commands`.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - half of the start of a machine's command

    added = {point.name: point.value for point in entry_points(group="localcloud.commands")}
    return {"gcloud": "localcloud.running.shims.gcloud", **added}


def install(
    folder: Path,
    commands: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    kept: Mapping[str, str] | None = None,
) -> Path:
    """Write the commands, by default those for people, into a folder and return it. `environment` overrides the variables of the caller.

    `kept` names variables of the caller that are overridden, by the names under which the command finds them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"PYTHONPATH": str(interpreter.ROOT), **(environment or {})}
    words = [f'{name}="${{{of_caller}-}}"' for name, of_caller in (kept or {}).items()]
    settings = " ".join([*words, *(f"{name}={shlex.quote(value)}" for name, value in variables.items())])
    for command, module in (commands or people_commands()).items():
        _write(folder / command, f"{settings} exec {shlex.join(interpreter.command(*module.split()))}")
    return folder


def install_program(target: Path, program: str, environment: Mapping[str, str]) -> None:
    """Write a command that runs another program."""
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    _write(target, f"{settings} exec {shlex.quote(program)}")


def _write(target: Path, line: str) -> None:
    target.write_text(f'#!/bin/sh\n{line} "$@"\n', encoding="utf-8")
    target.chmod(0o700)


def add_options(parser: "argparse.ArgumentParser", *, flags: str = "", values: str = "", lists: str = "") -> None:
    """Add the options of a command, separated by blanks; names of one option are joined by `|`, as in `-d|--detach`.

    `flags` have no value, `values` one, `lists` can be repeated.
    """
    for option in flags.split():
        parser.add_argument(*option.split("|"), action="store_true")
    for option in values.split():
        parser.add_argument(*option.split("|"))
    for option in lists.split():
        parser.add_argument(*option.split("|"), action="append", default=[])


def usage_problem(message: str) -> str:
    """Return docker's words for an error of the command line that argparse found."""
    unknown = message.removeprefix("unrecognized arguments: ")
    return message if unknown == message else f"unknown flag: {unknown.split()[0].partition('=')[0]}"
