"""Check whether a process of this machine is still running, for records that processes leave, such as a stack's lock."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_CLOCK_TICKS_S: Final = 2.0
"""Tolerance for comparing the start of a process with the time of its record, in seconds."""


def is_alive(pid: int, since: str) -> bool:
    """Return whether the process that had this number at a time (RFC 3339) is still running.

    A process that started later merely has the same number.
    """
    process = Path(f"/proc/{pid}")
    if not Path("/proc/self").exists():
        return _answers(pid)
    try:
        state, started_s = _stat(process)
    except (OSError, ValueError, IndexError):
        return False
    return state != "Z" and started_s <= seconds_of(since) + _CLOCK_TICKS_S


def _answers(pid: int) -> bool:
    """Return whether a process has this number, on systems without /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _stat(process: Path) -> tuple[str, float]:
    """Return a process's state letter and its start, in seconds since 1970 (proc_pid_stat(5), fields 3 and 22)."""
    fields = (process / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    ticks = float(fields[19]) / os.sysconf("SC_CLK_TCK")
    boot = next(
        line for line in Path("/proc/stat").read_text(encoding="ascii").splitlines() if line.startswith("btime")
    )
    return fields[0], float(boot.split()[1]) + ticks


def seconds_of(since: str) -> float:
    """Return an RFC 3339 time in seconds since 1970. An invalid time is in the far future, so its holder is treated as alive."""
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", since)).astimezone(UTC).timestamp()
    except ValueError:
        return float("inf")
