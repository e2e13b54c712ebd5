"""What this machine remembers of a project, in the user's state folder, and files that only their owner can read.

No commit, archive or other user can write the state folder. A file there that another user owns or can write, or a link, is not read.
"""

import errno
import os
import secrets
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STATE_HOME_VARIABLE: Final = "XDG_STATE_HOME"
OWNER_ONLY: Final = 0o600
_FOLDER_MODE: Final = 0o700
_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Memory:
    """The records of one project folder, or of one backend of it. Methods that write raise OSError."""

    folder: Path

    def path(self, name: str) -> Path:
        """Return the file of a record."""
        return self.folder / name

    def read(self, name: str) -> str | None:
        """Return a record; None without one that only this user can have written."""
        try:
            _require_private(self.folder)
            with os.fdopen(open_private(self.path(name), os.O_RDONLY), encoding="utf-8") as file:
                return file.read() if _is_private(os.fstat(file.fileno())) else None
        except (OSError, UnicodeDecodeError):
            return None

    def written_s(self, name: str) -> float:
        """Return when a record was written, in seconds since 1970; 0 without one."""
        with suppress(OSError):
            return self.path(name).lstat().st_mtime
        return 0.0

    def write(self, name: str, text: str) -> None:
        """Replace a record atomically."""
        self.make()
        write_private(self.path(name), text)

    def remove(self, name: str) -> None:
        """Remove a record, if there is one."""
        with suppress(FileNotFoundError, NotADirectoryError):
            self.path(name).unlink()

    def stacks(self, prefix: str) -> Sequence[str]:
        """Return the stacks that have a record with a prefix, in order: `limit-chat.json` is one of stack chat."""
        return sorted(path.name.removeprefix(prefix).removesuffix(".json") for path in self.folder.glob(f"{prefix}*"))

    def of_backends(self) -> Sequence["Memory"]:
        """Return the records of each backend of a project folder."""
        return [Memory(path) for path in sorted(self.folder.glob("backend-*"))]

    def make(self) -> None:
        """Create the folder, readable only by its owner. Raises OSError, also if another user can write it."""
        for place in (*reversed(self.folder.parents), self.folder):
            if not place.exists():
                place.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        _require_private(self.folder)


def memory_of(project: Path, backend: str | None = None) -> Memory:
    """Return the records of a project folder, or of the deployments in one backend of it, by its URL."""
    home = os.environ.get(STATE_HOME_VARIABLE) or os.path.expanduser("~/.local/state")  # noqa: PTH111 - it raises nothing without a home
    folder = Path(home, "gemma-serving", f"{project.name}-{_digest(str(project.resolve()))}")
    return Memory(folder if backend is None else folder / f"backend-{_digest(backend)}")


def write_private(path: Path, text: str, *, new: bool = False) -> None:
    """Write a file atomically that only its owner can read. Raises OSError for a link or a device; with `new`, for any file that exists."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise PermissionError(errno.EPERM, "It is a link or a device", str(path))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    place = path if new else path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(place, flags, OWNER_ONLY), "w", encoding="utf-8") as file:
            file.write(text)
        if not new:
            place.replace(path)
    except OSError as error:
        if not new:
            place.unlink(missing_ok=True)
        error.filename = str(path)
        raise


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


def _require_private(folder: Path) -> None:
    """Raise OSError unless a folder and its parent, which this product makes too, are folders that only this user can write."""
    for place in (folder, folder.parent):
        about = place.lstat()
        if not stat.S_ISDIR(about.st_mode) or not _is_private(about):
            raise PermissionError(errno.EPERM, "It is not a folder that only this user can write", str(place))


def _is_private(about: os.stat_result) -> bool:
    """Return whether this user owns a file or folder, and no other user can write it."""
    return about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _digest(text: str) -> str:
    import hashlib  # noqa: PLC0415 - 2 ms, and few commands read a record

    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
