"""The checkout that a deployment is made from, and that of another commit."""

import contextlib
import tarfile
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

from contracts.errors import CommandRefusedError
from engine import runner
from engine.children import ended, last_words

_ARCHIVE_LIMIT_S: Final = 300.0


def require_committed() -> str:
    """Return the commit that is checked out. Raises CommandRefusedError if a file is changed and not committed."""
    changed = git("status", "--porcelain", "--untracked-files=no")
    if changed:
        raise CommandRefusedError(
            f"{changed.splitlines()[0].split()[-1]} is changed and not committed; commit it: a roll-back deploys a commit."
        )
    return git("rev-parse", "HEAD")


def git(*arguments: str) -> str:
    """Return what a git command printed. Raises CommandRefusedError with git's last line."""
    done = ended(["git", *arguments], folder=runner.project_folder())
    if done.returncode != 0:
        raise CommandRefusedError(f"`git {' '.join(arguments[:2])}` failed: {last_words(done)}")
    return done.stdout.strip()


@contextlib.contextmanager
def other_checkout(commit: str) -> Generator[Path]:
    """Give a folder with the files of another commit and with this checkout's packages, and remove it afterwards.

    Nothing of the working tree or of git's own files changes. Raises CommandRefusedError if git does not know the commit.
    """
    root = runner.project_folder()
    with tempfile.TemporaryDirectory(prefix="checkout-") as parent:
        folder, archive = Path(parent) / "project", Path(parent) / "project.tar"
        words = ["git", "archive", "--format=tar", "--output", str(archive), "--end-of-options", commit]
        done = ended(words, folder=root, limit_s=_ARCHIVE_LIMIT_S)
        if done.returncode != 0:
            raise CommandRefusedError(
                f"git cannot read this commit ({last_words(done)}); fetch it, or name a commit of this repository."
            )
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        if not (folder / ".venv").exists():
            (folder / ".venv").symlink_to((root / ".venv").resolve())
        yield folder
