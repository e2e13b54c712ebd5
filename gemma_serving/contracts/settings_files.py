"""Settings files of the stacks: `Pulumi.NAME.yaml` in the project's folder, and examples of them in a folder of their own."""

import errno
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gemma_serving.contracts.installation import ROOT
from gemma_serving.contracts.spelling import did_you_mean

_OF_STACK: Final = re.compile(r"Pulumi\.\w[\w.-]*\.yaml", re.ASCII)
"""Files of stacks. Printed commands have their names, so a name that no stack can have, such as `$(id)`, is left out."""
_EXAMPLES: Final = (ROOT / "examples" / "stacks", ROOT)
"""Folders of the examples. `gemma plan` reads them, and `gemma init NAME --like EXAMPLE` copies one."""

MOST_BYTES: Final = 2**20
"""Maximum size of a settings file. A parser of YAML takes about a second for it."""


def read_regular(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a file. Raises OSError, also for a pipe, a device or a larger file, and UnicodeDecodeError."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if (size := path.stat().st_size) > most_bytes:
        raise OSError(errno.EINVAL, f"it has {size:,} bytes, at most {most_bytes:,} are allowed", str(path))
    return path.read_text(encoding="utf-8")


def shipped_files(checkout: Path) -> Sequence[Path]:
    """Return the settings files and examples that git has, sorted by file name: not those of the checkout's user. Without git, all."""
    places = (checkout, checkout / "examples" / "stacks")
    found = sorted((path for place in places for path in _files_of_stacks(place)), key=lambda path: path.name)
    listed = (_git(checkout, "ls-files", "-z") or "").split("\0")
    return [path for path in found if path.relative_to(checkout).as_posix() in listed] or found


def settings_file(stack: str, folder: Path) -> Path:
    """Return the settings file of a stack, or of the example with that name if the project's folder has none."""
    name = f"Pulumi.{stack}.yaml"
    return next((place / name for place in (folder, *_EXAMPLES) if (place / name).is_file()), folder / name)


def stacks_in(folder: Path) -> Sequence[str]:
    """Return the stacks with a settings file in a folder, sorted."""
    return sorted(stack_of_file(path.name) for path in _files_of_stacks(folder))


def example_stacks() -> Sequence[str]:
    """Return the stacks that `gemma init NAME --like EXAMPLE` copies."""
    return [stack for folder in _EXAMPLES for stack in stacks_in(folder)]


def _files_of_stacks(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("Pulumi.*.yaml") if _OF_STACK.fullmatch(path.name))


def stack_of_file(word: str) -> str:
    """Return the stack of `Pulumi.STACK.yaml`, the name or path of a settings file; empty for any other word."""
    name = word.rpartition("/")[2]
    return name[len("Pulumi.") : -len(".yaml")] if name.startswith("Pulumi.") and name.endswith(".yaml") else ""


def refresh_command(stack: str) -> str:
    """Return the command that writes the deployed settings, secrets and salt into the settings file."""
    return f"pulumi config refresh --stack {shlex.quote(stack)} --force"


def no_settings_file(stack: str, folder: Path, *, is_deployed: bool = False) -> str:
    """Return the error for a stack without a settings file, with the probable name. `is_deployed`: the backend has the stack."""
    name, word = f"Pulumi.{stack}.yaml", shlex.quote(stack)
    if committed_text(name, folder) is not None:
        return f"{name} not found, but it is committed. Run `git checkout {shlex.quote(name)}` to restore it."
    if is_deployed:
        return f"{name} not found, but stack {stack} exists. To write its deployed settings, run `{refresh_command(stack)}`."
    if settings_file(stack, folder).is_file():
        return f"{name} not found. {stack} is an example. Copy it with `gemma init NAME --like {word}`."
    if (folder / f"Pulumi.{stack}.yml").is_file():
        return f"{name} not found. Pulumi does not read Pulumi.{stack}.yml. Rename it to {name}."
    known = stacks_in(folder)
    listed = did_you_mean(stack, known) or f" Stacks with a settings file: {', '.join(known) or 'none'}."
    return f"{name} not found.{listed} To create it, run `gemma init {word} --model ID`."


def committed_text(name: str, folder: Path) -> str | None:
    """Return the text of a file in the checked-out commit; None if it is not committed, or without git."""
    return _git(folder, "show", f"HEAD:./{name}")


def _git(folder: Path, *words: str) -> str | None:
    """Return what git prints; None if it fails, or without git."""
    import subprocess  # noqa: PLC0415 - only a missing file needs it

    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
