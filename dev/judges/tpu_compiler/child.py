"""The child process that builds and compiles: started with a clean environment, read line by line, and always ended."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from dev.judges.tpu_compiler.answer import Done, Event, FailedJudge, NotUnderstoodError, RefusedServer, read_event
from dev.judges.tpu_compiler.confined import confinement

ROOT: Final = Path(__file__).resolve().parents[3]
LIMIT_S: Final = 3_600.0
"""Limit of the whole work. The largest shipped stack needs about eight minutes for three programs on two cores."""
_TICK_S: Final = 0.5
_GRACE_S: Final = 5.0
"""Time to end after SIGTERM, before SIGKILL."""
_START: Final = (
    "import sys; sys.path.append({root!r}); from dev.judges.tpu_compiler.server.start import main; main(sys.argv[1])"
)
_BYTES: Final = 1 << 16


def command_of(python: Path, request: Path) -> tuple[str, ...]:
    """Return the command that answers a request. The wheels come before the project on its path."""
    return (str(python), "-P", "-c", _START.format(root=str(ROOT)), str(request))


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    report: Callable[[Event | None], None],
    limit_s: float = LIMIT_S,
) -> tuple[Sequence[Event], str]:
    """Return the events of the child, and why it ended early; empty if it did not.

    `report` gets each event, and None every half a second. stderr goes to `log`. The process group is terminated at the end, and if
    anything is raised, such as KeyboardInterrupt. Raises CommandRefusedError if the kernel cannot confine it.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    events: list[Event] = []
    with log.open("wb") as errors, confinement() as confine:
        try:
            process = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
                preexec_fn=confine,  # noqa: PLW1509 - it calls the C library only
            )
        except OSError as error:
            return (), f"{command[0]} cannot be started: {error.strerror}"
        try:
            for line in _lines(process, time.monotonic() + limit_s):
                event = None if line is None else read_event(line)
                events += [] if event is None else [event]
                report(event)
                if isinstance(event, Done):
                    break
            reason = _missing(events[-1] if events else None, process, log)
        except NotUnderstoodError as error:
            reason = f"{error}. Log: {log}"
        except (TimeoutError, subprocess.TimeoutExpired):
            reason = f"it did not end within {limit_s / 60:g} minutes. Log: {log}"
        finally:
            _end(process)
    return events, reason


def _lines(process: "subprocess.Popen[bytes]", deadline_s: float) -> Iterator[bytes | None]:
    """Yield each line of stdout, and None at each tick. Raises TimeoutError at the deadline."""
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    stream, rest = process.stdout.fileno(), b""
    ready = select.poll()  # select() fails above 1,024 open files
    ready.register(stream, select.POLLIN | select.POLLHUP)
    while True:
        has_ended = process.poll() is not None  # its own children may keep the pipe open
        if time.monotonic() > deadline_s:
            raise TimeoutError
        if not ready.poll(0 if has_ended else _TICK_S * 1_000):
            if has_ended:
                break
            yield None
            continue
        chunk = os.read(stream, _BYTES)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
    if rest.strip():
        yield rest


def _missing(last: Event | None, process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Return why the events are no answer; empty if they are one."""
    if isinstance(last, Done | RefusedServer):
        return ""
    if isinstance(last, FailedJudge):
        return f"the judge failed at {last.stage}: {last.words.rstrip('.')}. Log: {log}"
    return _death(process.wait(_GRACE_S), log)


def _death(code: int, log: Path) -> str:
    """Return why the process died; empty if it ended by itself."""
    if code == 0:
        return ""
    if code == -signal.SIGKILL:
        return f"the process was killed (exit -9), usually because memory ran out: it needs about 6 GiB. Log: {log}"
    return f"the process ended with exit code {code}. Log: {log}"


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process group: the process gets time after SIGTERM, and its own children end with it."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
