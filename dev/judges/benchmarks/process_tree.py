"""CPU seconds of a command and all its descendants, by process.

The kernel reports the total when the processes have exited. The time of each process is read from /proc while it runs, in hundredths of a second.
Processes whose parent exited first become children of this one, so none is missed. Linux only.
"""

import ctypes
import os
import re
import resource
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS: Final = os.sysconf("SC_CLK_TCK")
POLL_S: Final = 0.01
LIMIT_S: Final = 300.0
_PR_SET_CHILD_SUBREAPER: Final = 36
"""prctl(2)."""
_PARENT: Final = 1
_USER_TICKS: Final = 11
"""Positions in /proc/PID/stat after the command's name; `stime` follows `utime`: proc_pid_stat(5)."""
OTHERS: Final = "shells and others"
UNSEEN: Final = "exited between two samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeCost:
    """CPU time and output of one command."""

    code: int
    output: str
    cpu_s: float
    by_part: Mapping[str, float]
    """CPU seconds by part, with `cpu_s` as their sum."""


def measure_process_tree(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str], parts: Mapping[str, str]
) -> TreeCost:
    """Run a command and count the CPU seconds of its tree. `parts`: patterns of command lines by name; the first match counts."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before_s = children_s()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        seen = _watch(process)
        _wait_for_orphans()
        output.seek(0)
        text = output.read().decode(errors="replace")
    cpu_s = children_s() - before_s
    by_part: dict[str, float] = {}
    for command_line, seconds in seen.values():
        part = next((name for name, pattern in parts.items() if re.search(pattern, command_line)), OTHERS)
        by_part[part] = by_part.get(part, 0.0) + seconds
    by_part[UNSEEN] = cpu_s - sum(by_part.values())
    return TreeCost(code=process.returncode, output=text, cpu_s=cpu_s, by_part=by_part)


def children_s() -> float:
    """Return the CPU seconds of all children that exited and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _watch(process: "subprocess.Popen[bytes]") -> Mapping[str, tuple[str, float]]:
    """Return the command line and the CPU seconds of each descendant of this process, as last seen."""
    seen: dict[str, tuple[str, float]] = {}
    ours = {str(os.getpid())}
    end = time.monotonic() + LIMIT_S
    while process.poll() is None:
        if time.monotonic() > end:
            process.kill()
            process.wait()
            raise TimeoutError(f"{process.args} took longer than {LIMIT_S:.0f} s")
        for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda entry: int(entry.name)):  # parents first, mostly
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                words = (entry / "cmdline").read_bytes().rstrip(b"\0")
            except OSError:
                continue  # it exited
            if fields[_PARENT] in ours and words:
                ours.add(entry.name)
                ticks = int(fields[_USER_TICKS]) + int(fields[_USER_TICKS + 1])
                seen[entry.name] = (words.replace(b"\0", b" ").decode(errors="replace"), ticks / TICKS)
        time.sleep(POLL_S)
    return seen


def _wait_for_orphans() -> None:
    """Wait until no child is left, including processes that the engine leaves to exit on their own."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        try:
            found, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if found == 0:
            time.sleep(POLL_S)
    raise TimeoutError("a process of the tree did not exit")
