"""A temporary checkout of another commit."""

import contextlib
import tarfile
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

from contracts.errors import CommandRefusedError
from engine import runner
from engine.children import ended

_ARCHIVE_LIMIT_S: Final = 300.0


@contextlib.contextmanager
def other_checkout(commit: str) -> Generator[Path]:
    """Yield a folder with another commit and this checkout's packages. Raises CommandRefusedError."""
    root = runner.project_folder()
    with tempfile.TemporaryDirectory(prefix="checkout-") as parent:
        folder, archive = Path(parent) / "project", Path(parent) / "project.tar"
        words = ["git", "archive", "--format=tar", "--output", str(archive), "--end-of-options", commit]
        done = ended(words, folder=root, limit_s=_ARCHIVE_LIMIT_S)
        if done.returncode != 0:
            why = done.stderr.strip().rpartition("\n")[2]
            raise CommandRefusedError(
                f"git cannot read commit {commit}: {why}. Fetch it, or pass a commit of this repository."
            )
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        if not (folder / ".venv").exists():
            (folder / ".venv").symlink_to((root / ".venv").resolve())
        yield folder
