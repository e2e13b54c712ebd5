"""The local cloud's docker on a machine of a test: each container is a `Server` in a thread of the test."""

import io
import json
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from localcloud.running.shims import docker, docker_images
from localcloud.running.shims.docker_host import ContainerOptions, DockerError, Host
from localcloud.running.shims.machine import Machine, read_json, write_json
from tests.answers import Answer, Request, served
from tests.clock import ThreadClock

POLL_S = 0.02
LIMIT_S = 60.0
CONFINED_FAULT = "confined-fault"
"""File of the folder: a server that is not privileged ends with the exit code of its first line, and prints the others."""
REGISTRY_FAULT = "registry-fault"
"""File of the folder: what docker says instead of pulling an image."""


class Server:
    """vLLM, as far as the agent meets it. Files beside `base` say what it meets: `.stuck`, `.sick`, `.busy`,
    and `.answered`, such as "stop=3 abort=1": its finished requests by their reason."""

    def __init__(self, machine: Machine, wanted: ContainerOptions) -> None:
        self.base, self.log = machine.folder / wanted.name, machine.log(wanted.name)
        self.args, self.env, self.is_privileged = wanted.command, wanted.environment, wanted.rights.privileged
        self.settled, self.over = threading.Event(), threading.Event()
        """It answers, compiles for ever, or has ended; its end is in its record."""
        self._ending, self._code = threading.Event(), 0

    def say(self, line: str) -> None:
        with self.log.open("a") as out:
            out.write(f"{line}\n")

    def beside(self, name: str) -> Path:
        return self.base.with_name(f"{self.base.name}.{name}")

    def end(self, code: int) -> None:
        if not self._ending.is_set():
            self._code = code
            self._ending.set()

    def run(self) -> int:
        self._start()
        if not self._ending.is_set():
            port = next((int(word[7:]) for word in self.args if word.startswith("--port=")), 0)
            with served(self._answer, port):
                self.settled.set()
                self._ending.wait()
        return self._code

    def _start(self) -> None:
        self.say("INFO Initializing a V1 LLM engine with config: model='m', compilation_config={'cudagraph_sizes': []}")
        if "--no-such-flag" in self.args:
            self._fail(2, "vllm: error: unrecognized arguments: --no-such-flag")
        elif "--crash" in self.args:
            self._fail(3, "ValueError: no such flag", f"the token is {self.env.get('HF_TOKEN', '')}")
        elif self.base.with_name("no-device").exists():
            self._fail(2, "no device")
        elif not self.is_privileged and self.base.with_name(CONFINED_FAULT).exists():
            code, *lines = self.base.with_name(CONFINED_FAULT).read_text().splitlines()
            self._fail(int(code), *lines)
        else:
            self._compile()

    def _fail(self, code: int, *lines: str) -> None:
        for line in lines:
            self.say(line)
        self.end(code)

    def _compile(self) -> None:
        self.say("INFO Starting to load model google/gemma")
        self.say("INFO Precompile backbone with sampling")
        while ("--stuck" in self.args or self.beside("stuck").exists()) and not self._ending.wait(POLL_S):
            self.settled.set()

    def _answer(self, request: Request) -> Answer:
        if request.path.startswith("/die"):
            self.end(int(request.path[5:] or 137))
        elif request.path != "/health" and not self._lets_in(request.headers.get("Authorization")):
            return 401, ""
        elif request.path == "/metrics":
            return 200, self.metrics()
        return 503 if request.path == "/health" and self.beside("sick").exists() else 200, ""

    def _lets_in(self, authorization: str | None) -> bool:
        """Whether the path guard lets a request in, if the command line names it."""
        is_guarded = any(word.startswith("--middleware=") for word in self.args)
        return not is_guarded or authorization == f"Bearer {self.env['VLLM_API_KEY']}"

    def metrics(self) -> str:
        busy, answered = self.beside("busy"), self.beside("answered")
        running = busy.read_text() if busy.exists() else "0"
        counted = [one.split("=") for one in (answered.read_text().split() if answered.exists() else ())]
        self.beside("asked").touch()
        lines = [f'vllm:num_requests_running{{engine="0"}} {running}', 'vllm:num_requests_waiting{engine="0"} 0.0']
        lines += [f'vllm:request_success_total{{engine="0",finished_reason="{why}"}} {many}' for why, many in counted]
        return "\n".join([*lines, ""])


def registry(host: Host, image: str) -> None:
    """Send an image, unless a test has a fault for it, or the caller has no login at Artifact Registry."""
    fault, name = host.machine.folder / REGISTRY_FAULT, image.partition("/")[0]
    if fault.exists():
        raise DockerError(fault.read_text())
    if "missing" in image:
        raise DockerError("Error response from daemon: manifest unknown")
    if name.endswith("-docker.pkg.dev") and docker_images.login_token(host, name) is None:
        raise DockerError(f"Error response from daemon: {image}: Unauthenticated request")


class Docker:
    """The docker of one machine. Its containers are numbered in place of processes."""

    def __init__(self, root: Path) -> None:
        self.machine = Machine(folder=root, clock_speed=10**6)
        self._servers: list[Server] = []

    def start(self, host: Host, wanted: ContainerOptions) -> bool:
        seen = {"env": wanted.environment, "args": wanted.command}
        write_json(host.machine.folder / f"seen-{time.time_ns()}.json", seen)
        record, server = host.machine.record(wanted.name), Server(host.machine, wanted)
        self._servers.append(server)
        pid = len(self._servers)
        write_json(record, {**(read_json(record) or {}), "pid": pid, "supervisor": pid})

        def run() -> None:
            try:
                ended = {"running": False, "restarting": False, "exitCode": server.run()}
                write_json(record, {**(read_json(record) or {}), **ended})
            finally:
                server.over.set()
                server.settled.set()

        threading.Thread(target=run, daemon=True).start()
        server.settled.wait(LIMIT_S)  # so that the agent has nothing to wait for
        return True

    def is_alive(self, pid: int) -> bool:
        return not self._servers[pid - 1].over.is_set()

    def signal(self, pid: int, number: signal.Signals) -> None:
        if pid:
            server = self._servers[pid - 1]
            server.end(137 if number == signal.SIGKILL else 0)
            server.over.wait(LIMIT_S)

    def power_off(self) -> None:
        """End every server."""
        for server in self._servers:
            server.end(137)
        assert all(server.over.wait(LIMIT_S) for server in self._servers)

    def call(self, argv: Sequence[str], **of_caller: Any) -> int:
        """Write a command down, and run it. Return its exit code. While a file such as `hang-pull` exists, a pull does not end."""
        host = Host(machine=self.machine, containers=self, registry=registry, **of_caller)
        root = self.machine.folder
        env_files = [Path(word.partition("=")[2]) for word in argv if word.startswith("--env-file=")]
        lines = [json.dumps([*argv])]
        lines += [f"env file {oct(file.stat().st_mode & 0o777)} in {file.parent}" for file in env_files]
        lines += [f"login in {host.environment['DOCKER_CONFIG']}"] if argv[0] == "login" else []
        with (root / "docker.log").open("a") as log:
            log.writelines(f"{line}\n" for line in lines)

        def pause(seconds: float) -> None:
            host.sleep(seconds)
            while (root / f"hang-{argv[0]}").exists() or "slow" in argv[-1]:
                host.sleep(POLL_S)

        if argv[0] == "run":
            pause(0)
        return docker.run(replace(host, sleep=pause), argv)

    def answer(self, given: Mapping[str, Any], client: BinaryIO) -> None:
        """Answer the program `docker`: lines with the number of a stream and its text, and at last 0 and the exit code."""

        def tell(number: int, said: str | int) -> None:
            client.write(f"{json.dumps([number, said])}\n".encode())

        with suppress(OSError):  # the program was killed
            out, err = (_Stream(partial(tell, number)) for number in (1, 2))
            of_caller = {"environment": given["env"], "stdin": io.StringIO(given["stdin"])}
            tell(0, self.call(given["argv"], out=out, err=err, **of_caller))


class _Stream(io.StringIO):
    """A stream that gives its text away."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def write(self, text: str) -> int:
        self._tell(text)
        return len(text)


class ThreadedCommand:
    """What the agent's modules use of `subprocess.Popen`, for a docker that runs in a thread."""

    def __init__(self, docker: Docker, clock: ThreadClock, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._clock, self._changed, self._lines, self._part = clock, threading.Condition(), deque[str](), ""
        self._is_killed, self._is_over, self.returncode = False, False, -signal.SIGKILL
        out = _Stream(self._tell)

        def sleep(seconds: float) -> None:
            clock.sleep(seconds)
            if self._is_killed:
                raise SystemExit

        def run() -> None:
            try:
                status = docker.call(argv[1:], environment=env, out=out, err=out, now=clock.now, sleep=sleep)
                if not self._is_killed:
                    self.returncode = status
            finally:
                with self._changed:
                    self._is_over = True
                    self._changed.notify_all()

        clock.start(run, name=" ".join(argv[:2]))

    def _tell(self, text: str) -> None:
        with self._changed:
            *lines, self._part = f"{self._part}{text}".split("\n")
            self._lines.extend(lines)
            self._changed.notify_all()

    @property
    def stdout(self) -> Iterator[str]:
        while True:
            with self._changed:
                while not self._lines and not self._is_over:
                    self._clock.wait(self._changed)
                if not self._lines:
                    return
                line = self._lines.popleft()
            yield line

    def poll(self) -> int | None:
        return self.returncode if self._is_over else None

    def wait(self, timeout: float | None = None) -> int:
        until = self._clock.now() + (float("inf") if timeout is None else timeout)
        with self._changed:
            while not self._is_over:
                left_s = until - self._clock.now()
                if left_s <= 0:
                    raise subprocess.TimeoutExpired("docker", timeout or 0.0)
                self._clock.wait(self._changed, left_s)
        return self.returncode

    def kill(self) -> None:
        self._is_killed = True


def in_threads(docker: Docker, clock: ThreadClock) -> SimpleNamespace:
    """Return a `subprocess` for the agent's modules whose docker runs in threads of this process, in virtual time."""

    def run(argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        out, own = io.StringIO(), io.StringIO()
        err = out if options["stderr"] == subprocess.STDOUT else own
        of_caller = {"environment": options["env"], "stdin": io.StringIO(options["input"]), "out": out, "err": err}
        status = docker.call(argv[1:], **of_caller, now=clock.now, sleep=clock.sleep)
        return subprocess.CompletedProcess(argv, status, out.getvalue(), own.getvalue())

    def popen(argv: Sequence[str], *, env: Mapping[str, str] | None = None, **_: Any) -> ThreadedCommand:
        return ThreadedCommand(docker, clock, argv, os.environ if env is None else env)

    names = ("PIPE", "STDOUT", "TimeoutExpired")
    return SimpleNamespace(run=run, Popen=popen, **{name: getattr(subprocess, name) for name in names})
