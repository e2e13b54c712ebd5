"""Files that are replaced atomically, and files and folders that only their owner can read."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

OWNER_ONLY: Final = 0o600


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically and keep its mode, if it exists. Raises OSError."""
    fresh = path.with_name(f"{path.name}.new")
    exists = path.exists()
    try:
        fresh.unlink(missing_ok=True)  # left by a killed process, with any mode
        fresh.touch(mode=OWNER_ONLY if exists else 0o666)
        fresh.write_text(text, encoding="utf-8")
        if exists:
            shutil.copymode(path, fresh)
        fresh.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # the error of a full disk names no file
        raise
    finally:
        fresh.unlink(missing_ok=True)


def write_private(path: Path, text: str, *, new: bool = False) -> None:
    """Write a file that only its owner can read. Raises OSError; with `new`, if it exists."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if new else os.O_TRUNC)
    with os.fdopen(os.open(path, flags, OWNER_ONLY), "w", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def private_folder() -> Generator[Path]:
    """Yield a new empty folder, which is removed at the end. Only a killed process leaves one."""
    with tempfile.TemporaryDirectory(prefix="gemma-private-") as folder:  # mode 0700
        yield Path(folder)
