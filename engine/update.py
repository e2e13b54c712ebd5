"""Run `pulumi up` for a user who watches: its output kept, its events read as they come."""

import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from engine import events
from engine.children import started
from engine.private_folders import held_locks
from engine.runner import environment, project_folder, pulumi

_POLL_S: Final = 0.2
_LAST_OUTPUT_S: Final = 5.0
"""How long to read on after the engine exited. A plugin that outlives it may keep the pipe open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """Exit code of the engine, and what it printed."""

    exit_code: int
    output: str


def update(stack: str, *options: str, log: Path, watch: Callable[[], None]) -> UpdateResult:
    """Deploy a stack without a preview, and call `watch` several times a second while the engine writes its events to `log`.

    Waits for the engine's end, also after a signal. Raises KeyboardInterrupt then, and CommandRefusedError without an engine.
    """
    command = [
        *(pulumi(), "up", "--yes", "--skip-preview", "--suppress-outputs", "--non-interactive"),
        *("--event-log", str(log), "--stack", stack, *options),
    ]
    printed: list[str] = []
    with started(
        command,
        read_by_caller=True,
        cwd=project_folder(),
        env={**environment(), **events.VARIABLES},
        pass_fds=held_locks(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # noqa: S101 - it was asked for above
        reader = threading.Thread(target=_keep, args=(process.stdout, printed), daemon=True)
        reader.start()
        exit_code = _wait(process, watch)
    reader.join(timeout=_LAST_OUTPUT_S)
    watch()
    return UpdateResult(exit_code=exit_code, output="".join(printed))


def _wait(process: "subprocess.Popen[str]", watch: Callable[[], None]) -> int:
    while True:
        try:
            return process.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            watch()


def _keep(stream: IO[str], printed: list[str]) -> None:
    printed.extend(stream)
