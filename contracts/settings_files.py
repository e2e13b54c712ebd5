"""Settings files of the stacks: `Pulumi.NAME.yaml` in the project's folder."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from contracts.spelling import did_you_mean


def stacks_in(folder: Path) -> Sequence[str]:
    """Return the stacks with a settings file in a folder, sorted."""
    return sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in folder.glob("Pulumi.*.yaml"))


def no_settings_file(stack: str, folder: Path) -> str:
    """Return the error for a stack without a settings file: git's copy, the stack that was probably meant, or those that have one."""
    name = f"Pulumi.{stack}.yaml"
    if _is_committed(name, folder):
        return f"{name} not found, but it is committed. Run `git checkout {name}` to restore it."
    known = stacks_in(folder)
    listed = did_you_mean(stack, known) or f" Stacks with a settings file: {', '.join(known) or 'none'}."
    return f"{name} not found.{listed} To create it, run `python -m scripts.new`."


def _is_committed(name: str, folder: Path) -> bool:
    """Return whether the checked-out commit has a file. Without git, nothing is committed."""
    words = ["git", "cat-file", "-e", f"HEAD:./{name}"]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        return False
    return done.returncode == 0
