"""`python -m localcloud shell`: the user's own shell in the environment of a local cloud.

A shell reads its start-up file first, and what that puts on PATH (pyenv, conda, the Google Cloud SDK) would replace this project's `python`,
`pulumi` and `gcloud`. The files written here read the user's file, then set the environment and the prompt.
"""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcloud import environment

PROMPT: Final = "(local cloud) "
_FOLDER: Final = "shell"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellStart:
    """A command line and what it needs in its environment."""

    command: list[str]
    variables: Mapping[str, str]


def start_of(shell: str, state: Path, variables: Mapping[str, str]) -> ShellStart:
    """Write the start-up file of a shell, and return how to start it: bash, zsh, or `sh` for any other.

    Raises OSError if the file cannot be written.
    """
    folder = state / _FOLDER
    folder.mkdir(exist_ok=True)
    removed = " ".join(environment.REMOVED)
    exports = f"unset {removed}\n{environment.exports(variables)}"
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
    """Write a start-up file that reads the user's own one first, if there is one."""
    first = f"[ -r {own.removeprefix('. ')} ] && {own}" if own else ""
    path.write_text("\n".join(("# Written by `python -m localcloud shell`.", first, *lines, "")), encoding="utf-8")
