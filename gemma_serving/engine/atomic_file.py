"""Files that are replaced atomically, and folders that only their owner can read."""

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from gemma_serving.contracts.memory import OWNER_ONLY


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


@contextmanager
def private_folder() -> Generator[Path]:
    """Yield a new empty folder, which is removed at the end. Only a killed process leaves one."""
    with tempfile.TemporaryDirectory(prefix="gemma-private-") as folder:  # mode 0700
        yield Path(folder)
