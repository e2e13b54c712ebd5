"""Run the project's own commands for a tool, with their progress, and stop them as Ctrl-C does.

A command writes to files, not to pipes, so it can finish even if its output is no longer read.
"""

import json
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

import anyio

from gemma_serving.contracts.masking import LineMask, masked
from gemma_serving.contracts.plain_text import for_model
from gemma_serving.engine import runner
from gemma_serving.engine.atomic_file import private_folder
from gemma_serving.scripts.agent.presenting import each_text

INTERRUPT_GRACE_S: Final = 600.0
"""Grace period after SIGINT, in which the engine finishes its operations and writes its state."""
KILL_GRACE_S: Final = 20.0
POLL_S: Final = 0.1
LAST_LINES: Final = 40
MOST_LINE_CHARACTERS: Final = 2000
_LONGEST_SECRET: Final = 8192
"""Additional characters of a line to search for secrets, so no part of one is shown."""

Watch = Callable[[Sequence[str]], Awaitable[None]]
"""Receives the new lines of a command's progress, without secrets, several times per second and at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """Result of a command."""

    exit_code: int
    printed: str = field(repr=False)
    """Its raw stdout, which can contain secrets."""
    said: Sequence[str]
    """The last lines of its progress, without secrets."""
    secrets: Sequence[str] = field(default=(), repr=False)

    @property
    def document(self) -> Mapping[str, object] | None:
        """The JSON object on stdout, without secrets and hidden text; None if it has none."""
        try:
            found: object = json.loads(self.printed)
        except ValueError:
            return None
        if not isinstance(found, dict):
            return None
        # Masking the whole text can break the JSON.
        plain = each_text(cast("object", found), lambda text: for_model(masked(text, self.secrets)))
        return cast("Mapping[str, object]", plain)


async def run_program(
    argv: Sequence[str],
    *,
    watch: Watch,
    secrets: Sequence[str] = (),
    stdin: str = "",
) -> ProgramResult:
    """Run a command to its end in the project's folder. `stdin`: a text for its standard input.

    A cancelled call interrupts it.
    """
    with private_folder() as kept:
        out, said = kept / "out", kept / "said"
        (kept / "in").write_text(stdin, encoding="utf-8")
        process = _started(argv, kept / "in", out, said)
        lines = _GrowingFile(said, secrets)
        try:
            while process.poll() is None:
                await watch(lines.fresh())
                await anyio.sleep(POLL_S)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await _interrupt(process)
            raise
        await watch(lines.fresh(whole=True))
        printed = out.read_text(encoding="utf-8", errors="replace")
    return ProgramResult(exit_code=process.returncode, printed=printed, said=tuple(lines.all), secrets=tuple(secrets))


def _started(argv: Sequence[str], given: Path, out: Path, said: Path) -> "subprocess.Popen[bytes]":
    """Start a command in its own process group, so that an interrupt reaches only the command and its children.

    It inherits the locks of the private folders, which show that it still uses them, even if this process is killed.
    """
    with given.open("rb") as in_file, out.open("wb") as out_file, said.open("wb") as said_file:
        return subprocess.Popen(
            argv,
            cwd=runner.project_folder(),
            env=runner.environment(),
            stdin=in_file,
            stdout=out_file,
            stderr=said_file,
            process_group=0,
        )


async def _interrupt(process: "subprocess.Popen[bytes]") -> None:
    """End a command and its children: SIGINT, then SIGTERM, then SIGKILL. Return when it has ended."""
    grace_s = {signal.SIGINT: INTERRUPT_GRACE_S, signal.SIGTERM: KILL_GRACE_S, signal.SIGKILL: KILL_GRACE_S}
    for number, limit_s in grace_s.items():
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        with anyio.move_on_after(limit_s):
            while process.poll() is None:  # noqa: ASYNC110 - a process sets no event
                await anyio.sleep(POLL_S)


class _GrowingFile:
    """Lines of a growing file, without secrets."""

    def __init__(self, path: Path, secrets: Sequence[str]) -> None:
        self._path, self._mask = path, LineMask(tuple(secrets))
        self._at, self._rest = 0, b""
        self.all: list[str] = []

    def fresh(self, *, whole: bool = False) -> list[str]:
        """Return the last lines since the previous call; with `whole`, including an incomplete one."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
            self._at = file.tell()
        *ended, self._rest = (self._rest + data).split(b"\n")
        if whole:
            ended, self._rest = [*ended, self._rest], b""
        texts = [line.decode(errors="replace").rstrip() for line in ended[-LAST_LINES:]]
        found = [self._plain(text) for text in texts if text]
        self.all = [*self.all, *found][-LAST_LINES:]
        return found

    def _plain(self, line: str) -> str:
        """Return the start of a line without secrets, with hidden characters escaped."""
        return for_model(self._mask(line[: MOST_LINE_CHARACTERS + _LONGEST_SECRET]))[:MOST_LINE_CHARACTERS]
