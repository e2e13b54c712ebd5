"""Check whether a process of this machine is still running."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path


def is_alive(pid: int, since: str) -> bool:
    """Return whether the process that had this number at a time (RFC 3339) is still running. A process that started later is another one."""
    if pid <= 0:  # a group, not a process
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        booted = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:  # a system without /proc, or it has just ended
        return not Path("/proc/self").exists()
    # proc_pid_stat(5): fields 3, the state, and 22, the start in clock ticks after boot.
    started_s = float(booted[1] if booted else 0) + float(fields[19]) / os.sysconf("SC_CLK_TCK")
    return fields[0] != "Z" and started_s <= seconds_of(since) + 2  # the clock of the ticks is not exact


def seconds_of(since: str) -> float:
    """Return an RFC 3339 time in seconds since 1970. An invalid time is in the far future: its holder is alive."""
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", since)).astimezone(UTC).timestamp()
    except ValueError:
        return float("inf")
