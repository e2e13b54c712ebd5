"""Files in folders that a container can write, opened so no link of the container is followed.

The agent is root outside the container. A link, pipe or device in the place of a file is an error, at any time.
"""

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_SAFE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = ".gemma-serving-new"
"""Name of an entry before it replaces another one."""
_DEEPEST = 32
"""Deepest folder of a tree that is read. The hub's cache has five levels, and each one costs a descriptor."""


@contextmanager
def opened_folder(path: "Path | str", parent: "int | None" = None) -> Generator[int]:
    """Yield the descriptor of a folder, by its path or its name in `parent`. Raises OSError for anything else."""
    descriptor = os.open(path, _SAFE | os.O_DIRECTORY, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def names_in(folder: int) -> list[str]:
    """Return the names in an opened folder. Raises OSError."""
    return os.listdir(folder)


def open_mounted(path: Path) -> BinaryIO:
    """Open a regular file of a mounted folder. Raises OSError for a link, also as its folder, and for other files."""
    with opened_folder(path.parent) as folder:
        descriptor = os.open(path.name, _SAFE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def made_folder(opened: ExitStack, parent: int, *names: str) -> int:
    """Return the descriptor of a folder below an opened one, created if it is missing. Raises OSError for a link."""
    for name in names:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
        parent = opened.enter_context(opened_folder(name, parent))
    return parent


def set_file(folder: int, name: str, text: str) -> None:
    """Write a small file in an opened folder. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(_NEW, dir_fd=folder)
    descriptor = os.open(
        _NEW, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder
    )
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(_NEW, name, src_dir_fd=folder, dst_dir_fd=folder)


def remove_tree(folder: int, name: str) -> None:
    """Delete a file or a tree of an opened folder. Raises OSError."""
    for parent, one in tree(folder, name):
        is_folder = stat.S_ISDIR(os.stat(one, dir_fd=parent, follow_symlinks=False).st_mode)
        (os.rmdir if is_folder else os.unlink)(one, dir_fd=parent)


def tree_bytes(folder: int, name: str) -> int:
    """Return the bytes of a tree of an opened folder, without files that disappear."""
    size = 0
    with suppress(OSError):
        for parent, one in tree(folder, name):
            size += os.stat(one, dir_fd=parent, follow_symlinks=False).st_size
    return size


def tree(folder: int, name: str, depth: int = 0) -> "Iterator[tuple[int, str]]":
    """Yield each file of a tree before its folder, as its folder's descriptor and its name. Raises OSError."""
    if depth > _DEEPEST:
        raise OSError(errno.ENAMETOOLONG, "too many folders", name)
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        with opened_folder(name, folder) as inside:
            for one in names_in(inside):
                yield from tree(inside, one, depth + 1)
    yield folder, name
