"""Read the history and the files of a checkout with git."""

import subprocess
from pathlib import Path


def git(root: Path, *words: str) -> str | None:
    """Return git's output, or None if it fails or is not installed."""
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
