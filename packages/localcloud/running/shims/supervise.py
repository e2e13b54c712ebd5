"""Supervises one process, as dockerd does for a container and systemd for a unit.

`python -m localcloud.running.shims.supervise STATE.json LOG RESTART_SEC|no GRACE_S INIT_PID PAUSE -- COMMAND...` starts the command in its own session,
with the environment from standard input, a JSON object, so secrets in it reach neither a disk nor a command line. It writes the command's
state (`pid`, `supervisor`, `running`, `restarting`, `exitCode`, `startedAt`, `finishedAt`) to STATE.json and its output to LOG, restarts it if
requested, but not while the file PAUSE exists, and forwards SIGTERM. When the machine's init process exits, the command and this process exit too.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final

from localcloud.running import interpreter
from localcloud.running.shims.machine import alive, read_json, write_json
from localcloud.vllm.parent_watch import hold

_START_LIMIT_S: Final = 30.0
_POLL_S: Final = 0.02


class _Supervisor:
    def __init__(
        self,
        state: Path,
        log: Path,
        *,
        restart_s: float | None,
        grace_s: float,
        pause: str,
        environment: Mapping[str, str],
    ) -> None:
        self._environment = environment
        self._state = state
        self._log = log
        self._restart_s = restart_s
        self._grace_s = grace_s
        self._pause = pause
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()

    def run(self, command: list[str]) -> int:
        """Run the command, with restarts, and return its last exit code.

        The record that says that the end is final is the last one written: who reads it can remove the record at once.
        """
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        while True:
            code, restarts = self._once(command)
            if not restarts:
                return code
            if self._stopping.wait(self._restart_s):
                self._write(restarting=False)
                return code
            while self._pause and Path(self._pause).exists() and not self._stopping.wait(_POLL_S):
                pass

    def _once(self, command: list[str]) -> tuple[int, bool]:
        """Run the command once. Return its exit code, and whether the record says that it starts again."""
        with self._log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                log.write(f"{command[0]}: {error.strerror}\n".encode())
                return self._ended(127)
            self._write(running=True, restarting=False, pid=self._process.pid, exitCode=0, startedAt=_now())
            if self._stopping.is_set():
                self._end_process()
            code = self._process.wait()
        return self._ended(128 - code if code < 0 else code)

    def _ended(self, code: int) -> tuple[int, bool]:
        restarts = self._restart_s is not None and not self._stopping.is_set()
        self._write(running=False, restarting=restarts, pid=0, exitCode=code, finishedAt=_now())
        return code, restarts

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if not self._stopping.is_set():
            self._stopping.set()
            self._end_process()

    def _end_process(self) -> None:
        """Send SIGTERM to the process; kill its whole group after the grace period."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        timer = threading.Timer(self._grace_s, self.kill)
        timer.daemon = True
        timer.start()

    def kill(self) -> None:
        """Kill the process and its group."""
        process = self._process
        if process is not None and process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                process.kill()

    def _write(self, **changes: Any) -> None:  # noqa: ANN401 - fields of a JSON document
        # A missing record was removed on purpose: do not write it again.
        document = read_json(self._state)
        if document is None:
            return
        if document.get("autoRemove") and changes.get("running") is False:
            self._state.unlink(missing_ok=True)
        else:
            write_json(self._state, document | changes | {"supervisor": os.getpid()})


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def start(
    state: Path,
    log: Path,
    command: list[str],
    *,
    restart_s: float | None,
    grace_s: float,
    init_pid: int,
    environment: Mapping[str, str],
    pause: Path | None = None,
) -> int:
    """Start a supervisor in the background and return its pid."""
    log.parent.mkdir(parents=True, exist_ok=True)
    restart = "no" if restart_s is None else repr(restart_s)
    own = [str(state), str(log), restart, repr(grace_s), str(init_pid), str(pause or ""), "--"]
    process = subprocess.Popen(
        interpreter.command("localcloud.running.shims.supervise", *own, *command),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=interpreter.ENVIRONMENT,
        start_new_session=True,
    )
    if process.stdin is not None:
        process.stdin.write(json.dumps(dict(environment)).encode())
        process.stdin.close()
    return process.pid


def wait_until_started(state: Path, supervisor: int) -> bool:
    """Wait until a supervisor has started its command. Return False if it did not."""
    deadline = time.monotonic() + _START_LIMIT_S
    while "startedAt" not in (document := read_json(state) or {"startedAt": ""}) and "finishedAt" not in document:
        if time.monotonic() > deadline or not alive(supervisor):
            return False
        time.sleep(_POLL_S)
    return True


def main(argv: list[str]) -> int:
    """Run the supervisor; see the module's docstring."""
    state, log, restart, grace_s, init_process, pause = argv[:6]
    environment = json.loads(sys.stdin.read())
    restart_s = None if restart == "no" else float(restart)
    supervisor = _Supervisor(
        Path(state), Path(log), restart_s=restart_s, grace_s=float(grace_s), pause=pause, environment=environment
    )

    def end() -> None:
        supervisor.kill()
        os._exit(1)

    hold(f"pid:{init_process}", end)
    return supervisor.run(argv[7:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
