"""Change a file that several commands write: they wait for one another, and a reader sees the old text or the new one, never half of one."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def change_file(path: Path, text: Callable[[], str]) -> None:
    """Write a file anew. `text` reads it and returns the new text; nobody else writes in between. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fresh = path.with_suffix(".new")
        fresh.write_text(text(), encoding="utf-8")
        os.replace(fresh, path)  # noqa: PTH105 - the atomic one, by its name
