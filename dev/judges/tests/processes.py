"""Processes that tests start and that must end."""

from pathlib import Path


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, although its parent may not have awaited it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except FileNotFoundError:
        return True
