"""Temporary folders: all of a server are in one, and the next server removes those of servers that were killed.

They hold what commands printed, secrets included. A lock says who still uses a folder: the server holds one, and so does each command
that it started, since a command goes on when its server is killed. The system releases the lock of a process that ends, however it ends.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "gemma-agent-"
_LOCK: Final = "lock"
_OWNER_ONLY: Final = 0o600


@contextmanager
def own_folder() -> Generator[Path]:
    """Put the temporary folders of this process into one of its own, and remove it at the end."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, held(Path(name)):
        tempfile.tempdir = name
        try:
            yield Path(name)
        finally:
            tempfile.tempdir = before


@contextmanager
def held(folder: Path) -> Generator[int]:
    """Say that a folder is in use. A child process that gets the file descriptor says it as long as it lives."""
    fresh = folder / f"{_LOCK}.new"
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        fresh.rename(folder / _LOCK)  # a lock that another server sees is held from its beginning
        yield descriptor
    finally:
        os.close(descriptor)


def remove_leftovers() -> int:
    """Remove the folders of servers that were killed, and return their number. One that a command still uses stays, like what others own."""
    return sum(_removed(folder) for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))


def _removed(folder: Path) -> bool:
    try:
        found = folder.lstat()
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
            return False
        locks = [path for path in (folder / _LOCK, *folder.glob(f"*/{_LOCK}")) if path.is_file()]
        # Without a lock of its own it is a folder that is being made, or none of these.
        if folder / _LOCK not in locks or not all(_is_free(path) for path in locks):
            return False
    except OSError:
        return False
    with suppress(OSError):
        shutil.rmtree(folder)
    return not folder.exists()


def _is_free(lock: Path) -> bool:
    descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
