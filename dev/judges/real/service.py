"""A program that a run starts, stops, kills and starts again, and that ends with the run."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from dev.judges.real_vllm.environment import last_line_of

_END_LIMIT_S: Final = 30.0
_POLL_S: Final = 0.1


class Service:
    """A program in its own session, so that Ctrl-C reaches only the run, which then stops it. Its outputs are appended to the log."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        folder: Path | None = None,
    ) -> None:
        self.command = command
        self.folder = folder
        self.log = log
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether the program runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last started process, None while it runs."""
        return self._process.poll() if self._process is not None else None

    @property
    def process_id(self) -> int:
        """The id of the last started process, 0 if none was started."""
        return self._process.pid if self._process is not None else 0

    def start(self, is_ready: Callable[[], bool], *, limit_s: float = 60.0) -> None:
        """Start the program and wait until it is ready. Skips the test if it ends before that, or after the limit."""
        with self.log.open("ab") as stream:
            self._process = subprocess.Popen(
                self.command,
                env=self._environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        name, began_s = Path(self.command[0]).name, time.monotonic()
        while not is_ready():
            if not self.runs:
                pytest.skip(f"{name} exited with {self._process.returncode}: {last_line_of(self.log)}")
            if time.monotonic() - began_s > limit_s:
                self.kill()
                pytest.skip(f"{name} was not ready after {limit_s:.0f} s: {last_line_of(self.log)}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Send SIGTERM and wait until the program has ended. After 30 s its process group is killed."""
        if self._process is not None and self.runs:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_END_LIMIT_S)
        self.kill()

    def kill(self) -> None:
        """Kill the program's process group, and wait until the program has ended."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
