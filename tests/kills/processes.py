"""Processes of one command, found by a mark in their environment: also those that left their group or lost their parent. Linux only."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK: Final = "GEMMA_KILLS_MARK"
_PROC: Final = Path("/proc")
_PROGRAM: Final = "pulumi-language-python-exec"


@dataclass(frozen=True, kw_only=True)
class Process:
    """A living process."""

    pid: int
    words: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Return what it is to the engine; empty for others."""
        words = self.words
        name = Path(words[0]).name
        if name == "pulumi":
            return "engine"
        if any("language_host" in word for word in words) or name == "pulumi-language-python":
            return "language host"
        if any(_PROGRAM in word for word in words):
            return "program"
        if any("gcp_tpu_provider" in word or "pulumi-resource-gcp-tpu" in word for word in words):
            return "provider"
        return ""


def marked(mark: str) -> list[Process]:
    """Return the living processes with this mark."""
    wanted = f"{MARK}={mark}".encode()
    return [found for found in _living(wanted) if found.words]


def _living(wanted: bytes) -> Iterator[Process]:
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile, or belongs to somebody else
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
                yield Process(pid=int(folder.name), words=tuple(words) if words != [""] else ())


def send(pid: int, name: str) -> bool:
    """Send a signal by its name. Return whether there was such a process."""
    try:
        os.kill(pid, signal.Signals[name])
    except ProcessLookupError:
        return False
    return True


def hit(mark: str, root: int, target: str, name: str) -> bool:
    """Send a signal to a target among the processes of a command. Return whether there was one."""
    found = marked(mark)
    if target == "command":
        return send(root, name)
    if target == "group":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(root, signal.Signals[name])
            return True
        return False
    chosen = [each for each in found if target in {"everything", each.kind}]
    sent = [send(each.pid, name) for each in chosen]
    return True in sent


def wait_for_the_end(mark: str, limit_s: float) -> list[Process]:
    """Wait until no process has the mark. Return those that live on."""
    end = time.monotonic() + limit_s
    while left := marked(mark):
        if time.monotonic() > end:
            return left
        time.sleep(0.1)  # processes that are not our children end unannounced
    return []
