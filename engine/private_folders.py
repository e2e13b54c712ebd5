"""Temporary folders that only their owner can read, removed after their last user.

A killed process removes nothing. Its folder is removed later, unless a program that it started still uses it: the
lock of a folder is inherited, and the kernel releases it when the last of them has exited.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PREFIX: Final = "gemma-private-"
_LOCK: Final = ".in-use"
_OWNER_ONLY: Final = 0o600
_HELD: Final[set[int]] = set()


def held_locks() -> tuple[int, ...]:
    """Return the descriptors that each started program inherits, so its folder is kept while it runs."""
    return tuple(_HELD)


@contextmanager
def private_folder() -> Generator[Path]:
    """Yield a new empty folder below one that only this user can read. It is always removed at the end."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as parent:  # mode 0700
        folder = Path(parent, "files")
        folder.mkdir()
        fresh = Path(parent, f"{_LOCK}.new")
        lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        fresh.rename(Path(parent, _LOCK))  # a lock that another process can see is already held
        _HELD.add(lock)
        try:
            yield folder
        finally:
            _HELD.discard(lock)
            os.close(lock)


def remove_left_folders() -> int:
    """Remove the folders of this user's killed processes, and return their number. Folders in use are kept."""
    found = [path for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if _is_left(path)]
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
    return len(found)


def _is_left(path: Path) -> bool:
    try:
        about = path.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            return False
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)  # without a lock, the folder is being created
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
