"""The plans of another commit, made by that commit's own planner: a change of the planner or of its prices is a difference too."""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from contracts.errors import CommandRefusedError, ScriptError
from engine.runner import project_folder
from scripts.cli.command import say
from scripts.preview.plans import PlansDocument, describe_checkout, read_plans

_LIMIT_S: Final = 300.0
_KEPT: Final = ("PATH", "HOME", "LANG", "TMPDIR", "GOOGLE_CLOUD_PROJECT", "SYSTEMROOT")
"""Variables that the other checkout's code gets: no credentials, no passphrase."""


def plans_of_commit(commit: str) -> PlansDocument:
    """Return the plans of a commit of this repository.

    Raises CommandRefusedError if git does not know the commit.
    """
    with tempfile.TemporaryDirectory(prefix="base-") as folder:
        checkout = Path(folder) / "checkout"
        _extract(commit, checkout)
        return plans_of_checkout(checkout, Path(folder) / "plans.json")


def plans_of_checkout(checkout: Path, out: Path) -> PlansDocument:
    """Return the plans of another checkout, made by its own code; by this code where its own cannot."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.preview", "plans", "--out", str(out.absolute())],
        cwd=checkout,
        env={key: value for key, value in os.environ.items() if key in _KEPT},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode == 0 and out.is_file():
        try:
            return read_plans(out)
        except (ValueError, ScriptError):
            pass  # another version of the document: below, as for a checkout without the command
    say("preview", "the base's own planner could not be run; both sides are planned by this one")
    return describe_checkout(checkout).model_copy(update={"planner": "other"})


def _extract(commit: str, into: Path) -> None:
    """Unpack a commit's files. Nothing of the working tree or of git's own files changes."""
    into.mkdir(parents=True)
    archive = into.with_suffix(".tar")
    done = subprocess.run(
        ["git", "archive", "--format=tar", "--output", str(archive), "--end-of-options", commit],
        cwd=project_folder(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CommandRefusedError(
            f"--base {commit}: git cannot read this commit ({said}); fetch it, or name a commit of this repository."
        )
    with tarfile.open(archive) as packed:
        packed.extractall(into, filter="data")
