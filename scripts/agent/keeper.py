"""Process that enforces the limit in hours of a service that an assistant deployed.

It deletes the stack, but not its bucket, after the limit, or as soon as the assistant's server exits or is killed: that server has the only
writing end of its standard input. It has a session of its own, so Ctrl-C and a client that kills its processes do not end it.
If it is killed too, the next server in this folder starts it again.
"""

import fcntl
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.installation import product_program
from gemma_serving.contracts.memory import STATE_HOME_VARIABLE, open_private
from gemma_serving.contracts.naming import NamingError, check_stack_name
from gemma_serving.contracts.proof import Proof
from gemma_serving.engine import runner
from gemma_serving.engine.backend import memory
from gemma_serving.scripts.agent.limits import add_plan, new_record, prove, read_record, write_record
from gemma_serving.scripts.cli.command import print_progress, print_text
from gemma_serving.scripts.stack.limit_record import LIMIT, limit_name
from gemma_serving.scripts.stack.unfinished_teardown import forget

LOG: Final = "limits.log"
READY: Final = "ready"
"""First line of the process, after it ran the command that deletes."""
START_LIMIT_S: Final = 120.0
POLL_S: Final = 1.0
"""Interval of a look at the clock and at the file. A wait of the whole limit would not count the sleep of a laptop."""
RETRY_S: Final = 60.0
ATTEMPTS: Final = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepers:
    """Processes of this server that delete stacks at their limits."""

    _started: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])

    def has(self, stack: str) -> bool:
        """Return whether a process of this server will delete a stack."""
        process = self._started.get(stack)
        return process is not None and process.poll() is None and memory().path(limit_name(stack)).exists()

    def keep(self, stack: str, hours: float, *, plan_id: str, project: str) -> None:
        """Record an approved plan of a stack, and start the stack's process unless it runs.

        Raises CommandRefusedError if another server has one, or if it does not start, and ScriptError if the stack's history is unknown.
        """
        if self.has(stack):
            add_plan(stack, plan_id)
            return
        record = new_record(stack, plan_id=plan_id, project=project)
        with os.fdopen(_opened(limit_name(stack), os.O_RDWR | os.O_CREAT), "r+b") as lock:
            if not _is_locked(lock.fileno()):
                raise CommandRefusedError(
                    f"Another assistant in this folder enforces a limit of stack {stack}. Use that one, or end it first."
                )
            write_record(lock.fileno(), record)
            read_record(stack)  # a record that proves nothing later is refused now
            if not self._start(stack, time.time() + hours * 3600, lock.fileno()):
                forget(stack)
                raise CommandRefusedError(
                    f"{_not_started(stack)}, so nothing was deployed. Its errors are in {_log_file()}."
                )

    def resume(self) -> None:
        """Start the process of each stack whose process was killed. It deletes the stack now, as its approval said.

        Without the proof that an assistant deployed a stack, print the command that deletes it instead.
        """
        for stack in memory().stacks(LIMIT):
            try:
                check_stack_name(stack)
                with os.fdopen(_opened(limit_name(stack), os.O_RDWR), "r+b") as lock:
                    if not (_is_locked(lock.fileno()) and _may_delete(stack)):
                        continue
                    is_started = self._start(stack, 0.0, lock.fileno())
            except (NamingError, CommandRefusedError) as error:
                print_progress("agent", str(error))
                continue
            began = f"deleting stack {stack}: its limit was not enforced. Progress is in {_log_file()}"
            print_progress("agent", began if is_started else f"{_not_started(stack)}. Its errors are in {_log_file()}.")

    def _start(self, stack: str, until_s: float, lock: int) -> bool:
        """Start a process, which inherits the lock of the stack's record. Return whether it printed its first line."""
        with os.fdopen(_opened(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as log:
            process = self._started[stack] = subprocess.Popen(
                product_program("gemma_serving.scripts.agent.keeper", stack, str(until_s)),
                cwd=runner.project_folder(),
                env=runner.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[lock],
                start_new_session=True,
            )
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        has_printed = select.select([process.stdout], [], [], START_LIMIT_S)[0]
        if has_printed and process.stdout.readline().decode().strip() == READY:
            return True
        process.kill()
        process.wait()
        return False


def _not_started(stack: str) -> str:
    return f"The process that deletes stack {stack} at its limit did not start"


def _log_file() -> Path:
    return memory().path(LOG)


def _opened(name: str, flags: int) -> int:
    """Open a record of this user. Raises CommandRefusedError."""
    records = memory()
    try:
        records.make()
        return open_private(records.path(name), flags)
    except OSError as error:
        place = error.filename or records.path(name)
        raise CommandRefusedError(
            f"Cannot open {place}: {error.strerror}. Delete it, or set {STATE_HOME_VARIABLE} to a folder of yours, then run the command again."
        ) from None


def _is_locked(lock: int) -> bool:
    """Lock a record. Return False if another process has the lock."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _may_delete(stack: str) -> bool:
    """Return whether a stack is proved to be an assistant's, or cannot be read now. Forget the limit of one that a user deployed since, or that is gone.

    Raises CommandRefusedError without a proof.
    """
    try:
        if prove(stack) is None:
            memory().remove(limit_name(stack))
            return False
    except CommandRefusedError:
        raise
    except ScriptError as error:
        print_progress("agent", str(error))
    return True


def main(
    stack: str, until_s: float, *, now_s: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Wait for the limit of a stack or the end of the server, and delete the stack. Return False if that failed, to the last attempt."""
    path = memory().path(limit_name(stack))
    teardown = product_program("gemma_serving.scripts.teardown", f"--stack={stack}", "--yes", "--keep-bucket")
    if _run([*teardown, "--help"]):
        return False
    print_text(READY)
    while path.exists() and now_s() < until_s:
        if select.select([0], [], [], POLL_S)[0] and not os.read(0, 1):
            break
    for _ in range(ATTEMPTS):
        if not path.exists():
            return True
        try:
            if _end(stack, teardown):
                path.unlink(missing_ok=True)
                return True
        except ScriptError as error:
            _log(stack, str(error))
            if isinstance(error, CommandRefusedError):  # no proof
                return False
        sleep(RETRY_S)  # such as while an engine of a killed server still runs
    return False


def _end(stack: str, teardown: Sequence[str]) -> bool:
    """Delete a stack, unless a user deployed it since the limit began. Return False if that failed. Raises as `prove`."""
    proof = prove(stack)
    if proof is None:
        _log(stack, "a user deployed the stack, or nothing of it is left, so nothing is deleted")
        return True
    return _deleted(stack, teardown, proof)


def _deleted(stack: str, teardown: Sequence[str], proof: Proof) -> bool:
    """Delete the stack that a proof names. Return whether that succeeded."""
    _log(stack, f"deleting the stack: {proof.claim} ({proof.source})")
    return _run(teardown) == 0


def _log(stack: str, text: str) -> None:
    print_progress(datetime.now(UTC).isoformat(timespec="seconds"), f"limit of stack {stack}: {text}")


def _run(words: Sequence[str]) -> int:
    """Run a program, whose output goes to the log, and return its exit code."""
    return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1], float(sys.argv[2])) else 1)
