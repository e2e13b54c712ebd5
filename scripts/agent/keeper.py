"""Process that enforces the limit in hours of a service that an assistant deployed.

It deletes the stack, but not its bucket, after the limit, or as soon as the assistant's server exits or is killed: that server has the only
writing end of its standard input. It has a session of its own, so Ctrl-C and a client that kills its processes do not end it.
If it is killed too, the next server in this folder starts it again.
"""

import fcntl
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.engine import runner
from gemma_serving.scripts.agent.programs import script
from gemma_serving.scripts.cli.command import print_progress
from gemma_serving.scripts.stack.unfinished_teardown import LIMITS, forget, limit_file

LOG: Final = LIMITS.with_suffix(".log")
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
        return process is not None and process.poll() is None and limit_file(stack).exists()

    def keep(self, stack: str, hours: float) -> None:
        """Start the process of a stack, unless it runs. Raises CommandRefusedError if another server has one."""
        if not self.has(stack) and not self._start(stack, time.time() + hours * 3600):
            raise CommandRefusedError(
                f"Another assistant in this folder enforces a limit of stack {stack}. Use that one, or end it first."
            )

    def resume(self) -> None:
        """Start the process of each stack whose process was killed. It deletes the stack now, as its approval said."""
        for stack in sorted(path.name for path in (runner.project_folder() / LIMITS).glob("*")):
            if self._start(stack, 0.0):
                print_progress("agent", f"deleting stack {stack}: its limit was not enforced. Progress is in {LOG}")

    def _start(self, stack: str, until_s: float) -> bool:
        """Start a process with the lock of the stack's file. Return False if another one has the lock."""
        path = limit_file(stack)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as lock, (runner.project_folder() / LOG).open("a") as log:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the process inherits it
            except BlockingIOError:
                return False
            if until_s:
                path.touch()  # a new limit begins now, also with the file of an earlier one
            self._started[stack] = subprocess.Popen(
                [sys.executable, "-m", __name__, stack, str(until_s), str(path.stat().st_mtime)],
                cwd=runner.project_folder(),
                env=runner.environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )
        return True


def main(stack: str, until_s: float, began_s: float) -> bool:
    """Wait for the limit of a stack or the end of the server, and delete the stack. Return False if that failed, to the last attempt."""
    path = limit_file(stack)
    while path.exists() and time.time() < until_s:
        if select.select([0], [], [], POLL_S)[0] and not os.read(0, 1):
            break
    for _ in range(ATTEMPTS):
        if not path.exists():
            return True
        if _try_to_end(stack, began_s):
            forget(stack)
            return True
        time.sleep(RETRY_S)  # such as while an engine of a killed server still runs
    return False


def _try_to_end(stack: str, began_s: float) -> bool:
    """Delete a stack, unless somebody else deployed it since the limit began. Return False if that failed."""
    said = partial(print, datetime.now(UTC).isoformat(timespec="seconds"), f"limit of stack {stack}:", flush=True)
    try:
        if _was_updated_by_others(stack, began_s):
            said("a user deployed the stack, so it stays")
            return True
    except ScriptError as error:
        said(str(error))
        return False
    said("deleting the stack")
    words = script("teardown", "--stack", stack, "--yes", "--keep-bucket")
    return subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode == 0


def _was_updated_by_others(stack: str, began_s: float) -> bool:
    """Return whether an update without a plan's id as its message began later. Raises ScriptError if that is unknown."""
    try:
        listed = runner.query(["stack", "history", "--json", "--page-size", "20", "--page", "1", "--stack", stack])
    except CommandRefusedError:  # the stack does not exist
        return False
    updates = [as_mapping(one) for one in as_sequence(json.loads(listed)) if as_mapping(one).get("kind") == "update"]
    later = [one for one in updates if datetime.fromisoformat(str(one["startTime"])).timestamp() >= began_s]
    return any(not str(one.get("message")).startswith("plan-") for one in later)


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])) else 1)
