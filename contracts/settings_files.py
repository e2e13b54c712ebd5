"""Settings files of the stacks: `Pulumi.NAME.yaml` in the project's folder."""

from collections.abc import Sequence
from pathlib import Path

from contracts.spelling import did_you_mean


def stacks_in(folder: Path) -> Sequence[str]:
    """Return the stacks with a settings file in a folder, sorted."""
    return sorted(stack_of_file(path.name) for path in folder.glob("Pulumi.*.yaml"))


def stack_of_file(word: str) -> str:
    """Return the stack of `Pulumi.STACK.yaml`, the name or path of a settings file; empty for any other word."""
    name = word.rpartition("/")[2]
    return name[len("Pulumi.") : -len(".yaml")] if name.startswith("Pulumi.") and name.endswith(".yaml") else ""


def no_settings_file(stack: str, folder: Path) -> str:
    """Return the error for a stack without a settings file, with the probable name."""
    name = f"Pulumi.{stack}.yaml"
    if committed_text(name, folder) is not None:
        return f"{name} not found, but it is committed. Run `git checkout {name}` to restore it."
    known = stacks_in(folder)
    listed = did_you_mean(stack, known) or f" Stacks with a settings file: {', '.join(known) or 'none'}."
    return f"{name} not found.{listed} To create it, run `gemma new`."


def committed_text(name: str, folder: Path) -> str | None:
    """Return the text of a file in the checked-out commit; None if it is not committed, or without git."""
    import subprocess  # noqa: PLC0415 - only a missing file needs it

    git = ["git", "show", f"HEAD:./{name}"]
    try:
        done = subprocess.run(git, cwd=folder, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
