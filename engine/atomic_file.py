"""Files that commands keep between runs: written under a lock, and replaced atomically."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from contracts.fields import ContractError, from_json

T = TypeVar("T")

OWNER_ONLY: Final = 0o600


class KeptFileError(Exception):
    """A stored file is invalid. The message is the reason as a clause, without the file's name."""


def read_kept(path: Path, kind: type[T], version: int, *, check: Callable[[T], object] = id) -> T | None:
    """Return the contract in a file with `schemaVersion`, or None if the file does not exist.

    `check` raises ValueError for errors that the types of a contract cannot express. Raises KeptFileError.
    """
    try:
        raw: object = json.loads(path.read_text(encoding="utf-8"))
        found = from_json(kind, raw)
        check(found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ContractError) as error:
        raise KeptFileError(f"cannot be read ({str(error).rstrip('.')})") from None
    written = getattr(found, "schema_version", None)
    if written != version:
        raise KeptFileError(f"has schemaVersion {written}, but this version of the project reads {version}")
    return found


def change_file(path: Path, text: Callable[[], str]) -> None:
    """Rewrite a file by a function that reads it, under a lock. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock")):
        replace_file(path, text())


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Wait for the lock at this path, and hold it. Raises OSError, for example for a link."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, OWNER_ONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically and keep its mode. Raises OSError.

    Until it has that mode, only its owner can read it.
    """
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
        error.filename = error.filename or str(path)  # that of a full disk names no file
        raise
    finally:
        fresh.unlink(missing_ok=True)


def write_private(path: Path, text: str, *, new: bool = False) -> None:
    """Write a file that only its owner can read. Raises OSError; with `new`, if it exists."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if new else os.O_TRUNC)
    with os.fdopen(os.open(path, flags, OWNER_ONLY), "w", encoding="utf-8") as file:
        file.write(text)
