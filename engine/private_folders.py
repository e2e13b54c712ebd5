"""Temporary folders that only their owner can read."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def private_folder() -> Generator[Path]:
    """Yield a new empty folder, which is removed at the end. Only a killed process leaves one."""
    with tempfile.TemporaryDirectory(prefix="gemma-private-") as folder:  # mode 0700
        yield Path(folder)
