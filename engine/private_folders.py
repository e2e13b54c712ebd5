"""Temporary folders for copies of the project and output of commands: only their owner can read them, and none outlives its users.

A process that is killed removes nothing. The folder of such a process is removed later, unless a program that it started still runs in it: the
lock of a folder is inherited, and the kernel frees it when the last of them has ended.
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
    """Return the descriptors that each started program inherits, so that its folder stays while it runs."""
    return tuple(_HELD)


@contextmanager
def private_folder() -> Generator[Path]:
    """Return a new empty folder below one that only this user can read. It is removed at the end, whatever ends it."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as parent:  # mode 0700
        folder = Path(parent, "files")
        folder.mkdir()
        fresh = Path(parent, f"{_LOCK}.new")
        lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        fresh.rename(Path(parent, _LOCK))  # a lock that another process sees is held from its beginning
        _HELD.add(lock)
        try:
            yield folder
        finally:
            _HELD.discard(lock)
            os.close(lock)


def remove_left_folders() -> int:
    """Remove what killed processes of this user left, and return how many folders that were. One that is still in use stays."""
    found = [path for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if _is_left(path)]
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
    return len(found)


def _is_left(path: Path) -> bool:
    try:
        about = path.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            return False
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)  # without one, the folder is being made
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
