"""A command in the environment of a local cloud, with its signals and exit code; and the user's own shell, for `python -m localcloud shell`.

A shell reads its start-up file first, and what that puts on PATH (pyenv, conda, the Google Cloud SDK) replaces this project's `python`,
`pulumi` and `gcloud`. The files written here read the user's file, then set the environment and the prompt.
"""

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcloud import environment

PROMPT: Final = "(local cloud) "
_FOLDER: Final = "shell"
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellStart:
    """A command line and its variables."""

    command: list[str]
    variables: Mapping[str, str]


def start_of(shell: str, state: Path, variables: Mapping[str, str]) -> ShellStart:
    """Write the start-up file of a shell, and return how to start it: bash, zsh, or `sh` for any other.

    Raises OSError if the file cannot be written.
    """
    folder = state / _FOLDER
    folder.mkdir(exist_ok=True)
    exports = environment.exports(variables)
    history = shlex.quote(str(folder / "history"))
    name = Path(shell).name
    if name == "bash":
        rc = folder / "bashrc"
        _write(rc, ". ~/.bashrc", exports, f"HISTFILE={history}", f'PS1="{PROMPT}$PS1"')
        return ShellStart(command=[shell, "--rcfile", str(rc), "-i"], variables={})
    if name == "zsh":
        own = os.environ.get("ZDOTDIR", "~")
        _write(folder / ".zshenv", f". {own}/.zshenv")
        _write(folder / ".zshrc", f". {own}/.zshrc", exports, f"HISTFILE={history}", f'PROMPT="{PROMPT}$PROMPT"')
        return ShellStart(command=[shell, "-i"], variables={"ZDOTDIR": str(folder)})
    rc = folder / "shrc"
    _write(rc, "", exports, f"PS1='{PROMPT}$ '")
    return ShellStart(command=["/bin/sh", "-i"], variables={"ENV": str(rc)})


def _write(path: Path, own: str, *lines: str) -> None:
    """Write a start-up file that reads the user's own one first, if one exists."""
    first = f"[ -r {own.removeprefix('. ')} ] && {own}" if own else ""
    path.write_text("\n".join(("# Written by `python -m localcloud shell`.", first, *lines, "")), encoding="utf-8")


async def run_child(command: Sequence[str], environment: Mapping[str, str], *, umask: int = -1) -> int:
    """Run the command, forward signals to it, and return its exit code (128 + N after signal N). A `umask` of -1 keeps this process's."""
    try:
        child = await asyncio.create_subprocess_exec(*command, env=dict(environment), umask=umask)
    except FileNotFoundError:
        print(f"localcloud: the command '{command[0]}' was not found on PATH.", file=sys.stderr)
        return _NOT_FOUND
    except PermissionError:
        print(f"localcloud: the file '{command[0]}' is not executable.", file=sys.stderr)
        return _NOT_EXECUTABLE
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, _forward, child, number)
    try:
        code = await child.wait()
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    return code if code >= 0 else 128 - code


def _forward(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Forward a signal, unless the terminal has already sent it to the child: Ctrl-C reaches the whole foreground group."""
    from_terminal = (
        number == signal.SIGINT
        and sys.stdin is not None
        and sys.stdin.isatty()
        and os.getpgid(child.pid) == os.getpgrp() == os.tcgetpgrp(sys.stdin.fileno())
    )
    if not from_terminal:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)
