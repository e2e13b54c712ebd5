"""The locks of a stack in a local backend, for when the engine does not run or has nothing to do."""

from pathlib import Path

from contracts.labels import PRODUCT
from scripts.pulumi.locks import StackLock, read_locks
from scripts.teardown.state import backend_folder


def in_backend(stack: str) -> tuple[StackLock, ...]:
    """Return the locks of a stack in a local backend; none for other backends."""
    folder = _folder(stack)
    return read_locks(folder) if folder is not None and folder.is_dir() else ()


def remove_from_backend(stack: str) -> None:
    """Remove the locks of a stack from a local backend, as `pulumi cancel` does."""
    folder = _folder(stack)
    if folder is not None:
        for path in folder.glob("*.json"):
            path.unlink(missing_ok=True)


def _folder(stack: str) -> Path | None:
    backend = backend_folder()
    return backend / "locks" / "organization" / PRODUCT / stack if backend else None
