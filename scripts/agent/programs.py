"""Run the project's own commands for a tool: with their progress, and ended as Ctrl-C ends them.

A command writes to files, not to pipes: it can then end in its own time after a cancelled call, also if nobody reads any more.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

import anyio

from scripts.errors import ScriptError
from scripts.pulumi import engine
from stacks.masking import masked

INTERRUPT_GRACE_S: Final = 600.0
"""How long a command may take to end after SIGINT: the engine ends the calls that it has begun and writes its state."""
KILL_GRACE_S: Final = 20.0
POLL_S: Final = 0.1
LAST_LINES: Final = 40
_MOST_BYTES: Final = 8_000_000
"""Most bytes that are read of what a command printed."""

ENGINE_VARIABLES: Final = {"PULUMI_DEBUG_COMMANDS": "true"}
"""The engine has its option --event-log only with it."""

OnLine = Callable[[str], Awaitable[None]]
"""Is told each line of a command's progress, without secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """How a command ended."""

    exit_code: int
    printed: str = field(repr=False)
    """What it printed on stdout, as it is: it may hold secrets."""
    said: Sequence[str]
    """The last lines of its progress, without secrets."""
    secrets: Sequence[str] = field(default=(), repr=False)

    @property
    def out(self) -> str:
        """What it printed on stdout, without secrets."""
        return masked(self.printed, self.secrets)

    @property
    def document(self) -> Mapping[str, object]:
        """The JSON object that the command printed, without secrets. Raises ScriptError if it printed none."""
        try:
            found: object = json.loads(self.printed)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ScriptError(self.reason)
        return cast("Mapping[str, object]", self._masked(cast("object", found)))

    def _masked(self, value: object) -> object:
        """Return a JSON value without secrets. Masking its text as a whole could break the JSON."""
        if isinstance(value, str):
            return masked(value, self.secrets)
        if isinstance(value, dict):
            return {key: self._masked(item) for key, item in cast("Mapping[str, object]", value).items()}
        if isinstance(value, list):
            return [self._masked(item) for item in cast("Sequence[object]", value)]
        return value

    @property
    def reason(self) -> str:
        """The last thing that the command said, as a sentence."""
        return self.said[-1] if self.said else f"The command ended with exit code {self.exit_code} and said nothing."


def script(name: str, *arguments: str) -> Sequence[str]:
    """Return the command line of one of the project's commands."""
    return [sys.executable, "-m", f"scripts.{name}", *arguments]


async def _unheard(_line: str) -> None:
    """Nobody listens."""


async def run_program(
    argv: Sequence[str],
    *,
    on_line: OnLine = _unheard,
    secrets: Sequence[str] = (),
    grace_s: float = INTERRUPT_GRACE_S,
    watch: Callable[[], Awaitable[None]] | None = None,
) -> ProgramResult:
    """Run a command in the project's folder until its end.

    `watch` is called again and again while it runs. When the call is cancelled, the command gets what Ctrl-C sends, and has `grace_s`
    seconds to end; the cancellation goes on after its end.
    """
    with TemporaryDirectory(prefix="gemma-agent-") as folder:
        out, said = Path(folder, "out"), Path(folder, "said")
        process = _started(argv, out, said)
        lines = _Tail(said, secrets)
        try:
            while process.poll() is None:
                for line in lines.fresh():
                    await on_line(line)
                if watch is not None:
                    await watch()
                await anyio.sleep(POLL_S)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await _interrupt(process, grace_s)
            raise
        for line in lines.fresh(whole=True):
            await on_line(line)
        return ProgramResult(
            exit_code=process.returncode,
            printed=_read(out),
            said=tuple(lines.all[-LAST_LINES:]),
            secrets=tuple(secrets),
        )


def _started(argv: Sequence[str], out: Path, said: Path) -> "subprocess.Popen[bytes]":
    """Start a command in a process group of its own, so that it alone gets an interrupt, with all that it started."""
    with out.open("wb") as out_file, said.open("wb") as said_file:
        return subprocess.Popen(
            argv,
            cwd=engine.project_folder(),
            env={**engine.environment(), **ENGINE_VARIABLES},
            stdin=subprocess.DEVNULL,
            stdout=out_file,
            stderr=said_file,
            process_group=0,
        )


async def _interrupt(process: "subprocess.Popen[bytes]", grace_s: float) -> None:
    for number, limit_s in ((signal.SIGINT, grace_s), (signal.SIGTERM, KILL_GRACE_S), (signal.SIGKILL, KILL_GRACE_S)):
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        with anyio.move_on_after(limit_s):
            while process.poll() is None:  # noqa: ASYNC110 - a process sets no event
                await anyio.sleep(POLL_S)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES).decode(errors="replace")


class _Tail:
    """The lines of a file that grows, without secrets."""

    def __init__(self, path: Path, secrets: Sequence[str]) -> None:
        self._path, self._secrets = path, secrets
        self._at, self._rest = 0, b""
        self.all: list[str] = []

    def fresh(self, *, whole: bool = False) -> list[str]:
        """Return the lines that came since the last call; with `whole` also an unfinished one."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read(_MOST_BYTES)
            self._at = file.tell()
        *ended, self._rest = (self._rest + data).split(b"\n")
        if whole and self._rest:
            ended, self._rest = [*ended, self._rest], b""
        texts = [line.decode(errors="replace").rstrip() for line in ended]
        found = [masked(text, self._secrets) for text in texts if text]
        self.all = [*self.all, *found][-LAST_LINES:]
        return found
