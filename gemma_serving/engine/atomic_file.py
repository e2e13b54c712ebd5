"""Files that are replaced atomically, and files and folders that only their owner can read."""

import errno
import os
import shutil
import stat
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


def open_private(path: Path, flags: int) -> int:
    """Open a file of this user and return its descriptor. A new file is readable only by its owner. Raises OSError.

    A link of either kind, another user's file or a device is refused, because a write to it would change something else.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, OWNER_ONLY)
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_nlink != 1:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "It is not a regular file of this user", str(path))
    return descriptor


@contextmanager
def private_folder() -> Generator[Path]:
    """Yield a new empty folder, which is removed at the end. Only a killed process leaves one."""
    with tempfile.TemporaryDirectory(prefix="gemma-private-") as folder:  # mode 0700
        yield Path(folder)
