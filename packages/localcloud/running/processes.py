"""Start a simulated server as a process and log its output without the values of secrets."""

import asyncio
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcloud.running import interpreter
from localcloud.vllm import KILLED_MARK, PLANNED_MARK

_STOP_GRACE_S: Final = 10.0
"""Seconds between SIGTERM and SIGKILL (Cloud Run, "Container runtime contract")."""
_LINE_LIMIT_BYTES: Final = 1024 * 1024


def server_environment(container: Mapping[str, str], simulator: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server: the container's own variables, the interpreter's variables, and the simulator's settings."""
    needed = {**interpreter.ENVIRONMENT, "PATH": os.environ.get("PATH", os.defpath), "PYTHONUNBUFFERED": "1"}
    return {**interpreter.simulator_variables(), **container, **needed, **simulator}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStart:
    """Announcement of a server when its process runs: the container's port, and the duration of its start in simulated seconds."""

    port: int
    start_s: float


class Server:
    """One running server. It watches its standard input and exits when this process exits."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        log: Path,
        secrets: Sequence[str],
        printed: Callable[[str, str], None],
    ) -> None:
        self._process = process
        self._log = log
        self._printed = printed
        self._secrets = sorted((secret for secret in secrets if secret), key=len, reverse=True)
        self._up: asyncio.Future[PlannedStart | None] = asyncio.get_running_loop().create_future()
        self.killed_with_mib: int | None = None
        streams = (("stdout", process.stdout), ("stderr", process.stderr))
        self._readers = [asyncio.create_task(self._read(name, stream)) for name, stream in streams]
        self._ended = asyncio.create_task(self._end())

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        secrets: Sequence[str],
        printed: Callable[[str, str], None],
    ) -> "Server":
        """Start a server by its whole command line. `printed` receives each line as printed, with the name of its stream.

        The file `log` contains the log without the values of secrets.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            limit=_LINE_LIMIT_BYTES,
            start_new_session=True,
        )
        return cls(process, log, secrets, printed)

    @property
    def running(self) -> bool:
        """Return whether the process runs."""
        return self._process.returncode is None

    async def up(self) -> PlannedStart | None:
        """Wait until the process has announced its start. Return None if it exited instead."""
        return await asyncio.shield(self._up)

    async def ended(self) -> int:
        """Wait for the process to exit and return its exit code (128 + n after signal n)."""
        return await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """Stop the server: SIGTERM, then SIGKILL after a grace period. A server that has exited is ignored."""
        if self.running:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.ended(), _STOP_GRACE_S)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    self._process.kill()
        await self.ended()

    async def _end(self) -> int:
        code = await self._process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not self._up.done():
            self._up.set_result(None)
        return 128 - code if code < 0 else code

    async def _read(self, name: str, stream: asyncio.StreamReader | None) -> None:
        if stream is None:
            return
        with self._log.open("a", encoding="utf-8") as log:
            while line := await stream.readline():
                text = line.decode(errors="replace").rstrip()
                log.write(self._clean(text) + "\n")
                log.flush()
                self._take(name, text)

    def _clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[removed]")
        return text

    def _take(self, name: str, text: str) -> None:
        planned = re.match(re.escape(PLANNED_MARK) + r" port (\d+), ([\d.]+) simulated", text)
        if planned is not None and not self._up.done():
            self._up.set_result(PlannedStart(port=int(planned[1]), start_s=float(planned[2])))
        killed = re.match(re.escape(KILLED_MARK) + r" (\d+) MiB", text)
        if killed is not None:
            # Not part of a container's output because the kernel kills it. Cloud Run's own entry has the figures.
            self.killed_with_mib = int(killed[1])
        elif text:
            self._printed(name, text)
