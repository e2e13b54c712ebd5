"""A docker that knows what the agent uses, with its state in a folder: a program first on PATH, or threads of a test.

A container is a `Server`, in a process or in a thread. `docker run` is that of the local cloud. Otherwise nothing is imported but the standard library.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

    from localcloud.running.shims.docker_run import RunError
    from tests.clock import ThreadClock

POLL_S = 0.02
LIMIT_S = 60.0
FOLDERS = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "packages")]
IMPORT = f"import sys; sys.path[:0] = {FOLDERS}; import docker; "
"""As the first line of a program: so the module is compiled once, not at each start."""
CONFINED_FAULT = "confined-fault"
"""File of the folder: a server that is not privileged ends with the exit code of its first line, and prints the others."""
RUN_FAULT = "run-fault"
"""File of the folder: what docker says to a container that is not privileged, and refuses."""
PRIVILEGED = "TEST_IS_PRIVILEGED"
AWAY = "docker-away"
"""File of the folder: while it exists, the daemon does not run."""
NO_DAEMON = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
HINT = "\n\nRun 'docker run --help' for more information\n"
WARNING = "warning"
"""File of the folder: what each command writes to stderr before it does something else."""
REGISTRY_FAULT = "registry-fault"
"""File of the folder: what docker says instead of pulling an image."""
HANG = {"pull": "hang-pull", "run": "hang-run"}
"""Files of the folder: while one exists, the command does not end."""


class Server:
    """vLLM, as far as the agent meets it. Files beside `exit_file` say what it meets: `.stuck`, `.sick`, `.busy`,
    and `.answered`, such as "stop=3 abort=1": its finished requests by their reason."""

    def __init__(self, exit_file: Path, args: Sequence[str], env: Mapping[str, str], say: Callable[[str], None]):
        self.exit_file, self.args, self.env, self.say = exit_file, args, env, say
        self.settled, self.over = threading.Event(), threading.Event()
        """It answers, compiles for ever, or has ended; it has ended."""
        self._ending, self._code = threading.Event(), 0

    def beside(self, name: str) -> Path:
        return self.exit_file.with_name(f"{self.exit_file.name}.{name}")

    def end(self, code: int) -> None:
        if not self._ending.is_set():
            self._code = code
            self._ending.set()

    def run(self) -> int:
        try:
            self._start()
            if not self._ending.is_set():
                self._answer()
        finally:
            self.exit_file.write_text(str(self._code))
            self.over.set()
            self.settled.set()
        return self._code

    def _start(self) -> None:
        self.say("INFO Initializing a V1 LLM engine with config: model='m', compilation_config={'cudagraph_sizes': []}")
        if "--no-such-flag" in self.args:
            self._fail(2, "vllm: error: unrecognized arguments: --no-such-flag")
        elif "--crash" in self.args:
            self._fail(3, "ValueError: no such flag", f"the token is {self.env.get('HF_TOKEN', '')}")
        elif self.exit_file.with_name("no-device").exists():
            self._fail(2, "no device")
        elif PRIVILEGED not in self.env and self.exit_file.with_name(CONFINED_FAULT).exists():
            code, *lines = self.exit_file.with_name(CONFINED_FAULT).read_text().splitlines()
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

    def _answer(self) -> None:
        from http.server import HTTPServer  # noqa: PLC0415 - most commands need no server

        port = next((int(word[7:]) for word in self.args if word.startswith("--port=")), None)
        if port is None:  # a collector
            self.settled.set()
            self._ending.wait()
            return

        class Server(HTTPServer):
            def handle_error(self, *_: object) -> None:
                """Write no line when an agent that is stopped closes its connection before the response, as vLLM."""

        with Server(("127.0.0.1", port), self._handler()) as http:
            threading.Thread(target=http.serve_forever, args=(POLL_S,), daemon=True).start()
            self.settled.set()
            self._ending.wait()
            http.shutdown()

    def _handler(self) -> "type[BaseHTTPRequestHandler]":
        from http.server import BaseHTTPRequestHandler  # noqa: PLC0415 - the same

        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.startswith("/die"):
                    server.end(int(self.path[5:] or 137))
                    return
                if not server.lets_in(self.path, self.headers.get("Authorization")):
                    self.send_error(401)
                    return
                body = server.metrics() if self.path == "/metrics" else b""
                self.send_response(503 if self.path == "/health" and server.beside("sick").exists() else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def lets_in(self, path: str, authorization: str | None) -> bool:
        """Whether the path guard lets a request in, if the command line names it."""
        is_guarded = any(word.startswith("--middleware=") for word in self.args)
        return not is_guarded or path == "/health" or authorization == f"Bearer {self.env['VLLM_API_KEY']}"

    def metrics(self) -> bytes:
        busy, answered = self.beside("busy"), self.beside("answered")
        running = busy.read_text() if busy.exists() else "0"
        counted = [one.split("=") for one in (answered.read_text().split() if answered.exists() else ())]
        self.beside("asked").touch()
        lines = [f'vllm:num_requests_running{{engine="0"}} {running}', 'vllm:num_requests_waiting{engine="0"} 0.0']
        lines += [f'vllm:request_success_total{{engine="0",finished_reason="{why}"}} {many}' for why, many in counted]
        return "\n".join([*lines, ""]).encode()


class Processes:
    """Each server is a process of its own, as a container is."""

    def start(self, root: Path, name: str, args: Sequence[str], env: Mapping[str, str]) -> dict[str, int]:
        argv = [sys.executable, "-IS", "-c", f"{IMPORT}docker.serve()", str(root / f"{name}.exit"), *args]
        with (root / f"{name}.log").open("w") as out:
            process = subprocess.Popen(argv, stdout=out, stderr=out, env=dict(env), start_new_session=True)
        return {"pid": process.pid}

    def is_alive(self, box: Mapping[str, Any]) -> bool:
        try:
            stat = Path(f"/proc/{box['pid']}/stat").read_text()
        except OSError:
            return False
        return stat.rsplit(")", 1)[1].split()[0] != "Z"

    def stop(self, box: Mapping[str, Any]) -> None:
        os.kill(box["pid"], signal.SIGTERM)

    def kill(self, box: Mapping[str, Any]) -> None:
        os.kill(box["pid"], signal.SIGKILL)


class Threads:
    """Each server is a thread of this process."""

    def __init__(self) -> None:
        self._servers: list[Server] = []

    def start(self, root: Path, name: str, args: Sequence[str], env: Mapping[str, str]) -> dict[str, int]:
        log = root / f"{name}.log"
        log.write_text("")

        def say(line: str) -> None:
            with log.open("a") as out:
                out.write(f"{line}\n")

        server = Server(root / f"{name}.exit", args, env, say)
        self._servers.append(server)
        threading.Thread(target=server.run, daemon=True).start()
        server.settled.wait(LIMIT_S)  # so that the agent has nothing to wait for
        return {"server": len(self._servers) - 1}

    def _server(self, box: Mapping[str, Any]) -> Server:
        return self._servers[box["server"]]

    def is_alive(self, box: Mapping[str, Any]) -> bool:
        return not self._server(box).over.is_set()

    def stop(self, box: Mapping[str, Any]) -> None:
        self._ended(box, 0)

    def kill(self, box: Mapping[str, Any]) -> None:
        self._ended(box, 137)

    def _ended(self, box: Mapping[str, Any], code: int) -> None:
        self._server(box).end(code)
        self._server(box).over.wait(LIMIT_S)

    def close(self) -> None:
        for server in self._servers:
            server.end(137)
        assert all(server.over.wait(LIMIT_S) for server in self._servers)


class Docker:
    """One command: `call` returns its exit status. `gone` says whether whoever waits for it has left."""

    def __init__(
        self,
        root: Path,
        containers: Processes | Threads,
        say: Callable[[str], object],
        complain: Callable[[str], object],
        gone: Callable[[], bool] = lambda: False,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.root, self.containers, self.say, self.complain = root, containers, say, complain
        self.gone, self.sleep = gone, sleep

    def call(self, args: Sequence[str], env: Mapping[str, str], stdin: Callable[[], str]) -> int:
        self._log(json.dumps(list(args)))
        verb, rest = args[0], list(args[1:])
        if (self.root / WARNING).exists():
            self.complain((self.root / WARNING).read_text())
        if (self.root / AWAY).exists() and verb not in {"login", "--version"}:
            self.complain(f"docker: {NO_DAEMON}{HINT}" if verb == "run" else f"{NO_DAEMON}\n")
            return 125 if verb == "run" else 1
        if verb == "login":
            self._log(f"login with a token of {len(stdin())} characters in {env['DOCKER_CONFIG']}")
            return 0
        if verb == "run":
            return self._run(rest)
        if verb in {"pull", "rmi"}:
            return self._pull(rest[-1]) if verb == "pull" else self._remove_image(rest[-1])
        if verb in {"inspect", "stop", "rm", "logs"}:
            return self._about_a_container(verb, rest)
        return 0  # ps, --version

    def _log(self, line: str) -> None:
        with (self.root / "docker.log").open("a") as log:
            log.write(f"{line}\n")

    def _hangs(self, verb: str) -> bool:
        """Wait as long as a test requires. Return False if the command was killed."""
        while (self.root / HANG[verb]).exists() and not self.gone():
            self.sleep(POLL_S)
        return not self.gone()

    def _image(self, name: str) -> Path:
        return self.root / f"image-{name.replace('/', '_')}"

    def _pull(self, image: str) -> int:
        if (self.root / REGISTRY_FAULT).exists():
            self.complain(f"{(self.root / REGISTRY_FAULT).read_text()}\n")
            return 1
        if "missing" in image or (self.root / "registry-gone").exists():
            self.complain("Error response from daemon: manifest unknown\n")
            return 1
        self.say("abc: Pulling fs layer\n" * 3)
        while "slow" in image and not self.gone():
            self.sleep(POLL_S)
        if not self._hangs("pull"):
            return 1
        self.say("abc: Pull complete\n" * 3)
        self._image(image).touch()
        return 0

    def _remove_image(self, image: str) -> int:
        if not self._image(image).exists():
            self.complain(f"Error response from daemon: No such image: {image}\n")
            return 1
        self._image(image).unlink()
        return 0

    def _run(self, args: list[str]) -> int:
        """Read the command line as the local cloud's docker does, which a real daemon judges, and start a server."""
        from localcloud.running.shims import docker_run  # noqa: PLC0415 - most commands do not need it

        for file in (Path(word.partition("=")[2]) for word in args if word.startswith("--env-file=")):
            self._log(f"env file {oct(file.stat().st_mode & 0o777)} in {file.parent}")
        try:
            wanted = docker_run.parse(args)
            docker_run.check_start(wanted)
        except docker_run.RunError as error:
            return self._refused(error)
        if not wanted.rights.privileged and (self.root / RUN_FAULT).exists():
            return self._refused(docker_run.RunError((self.root / RUN_FAULT).read_text().rstrip()))
        if not self._image(wanted.image).exists():
            return self._refused(docker_run.RunError("Unable to find image"))
        if not self._hangs("run"):
            return 1  # as systemd ends the processes of a unit with it
        if self._box(wanted.name) is not None:
            return self._refused(docker_run.RunError("Conflict. The container name is already in use"))
        env, name = {**wanted.environment, **({PRIVILEGED: "yes"} if wanted.rights.privileged else {})}, wanted.name
        draft = self.root / f".seen-{os.getpid()}"
        draft.write_text(json.dumps({"env": env, "args": wanted.command}))
        draft.rename(self.root / f"seen-{time.time_ns()}.json")  # complete, for a test that reads it at the same time
        (self.root / f"{name}.exit").unlink(missing_ok=True)
        box = {**self.containers.start(self.root, name, wanted.command, env), "labels": wanted.labels}
        (self.root / f"{name}.json").write_text(json.dumps(box))
        return 0

    def _refused(self, error: "RunError") -> int:
        self.complain(f"{error.shown}\n")
        return error.code

    def _box(self, name: str) -> dict[str, Any] | None:
        try:
            return json.loads((self.root / f"{name}.json").read_text())
        except OSError:
            return None

    def _about_a_container(self, verb: str, args: list[str]) -> int:
        name = args[-1]
        if "--type=image" in args:
            if "--format={{json .Config.Env}}" in args:
                self.say('["PATH=/usr/bin", "PYTHONPATH=/image/packages"]\n')
            return 0 if self._image(name).exists() else 1
        box = self._box(name)
        if box is None:
            self.say("\n")
            self.complain(f"Error response from daemon: No such container: {name}\n")
            return 1
        if verb == "inspect":
            self._inspect(name, box, args)
        elif verb == "logs":
            self._follow(name, box, is_new_only="--tail=0" in args)
        else:
            self._end(name, box, verb)
        return 0

    def _inspect(self, name: str, box: Mapping[str, Any], args: Sequence[str]) -> None:
        is_running, code = self.containers.is_alive(box), self.root / f"{name}.exit"
        asked = [part.split('"')[0] for part in args[1].split('Config.Labels "')[1:]]
        exit_code = "0" if is_running or not code.exists() else code.read_text()
        labels = [box["labels"].get(label, "") for label in asked]
        is_restarting = (self.root / f"{name}.restarting").exists()
        status = "restarting" if is_restarting else "running" if is_running else "exited"
        state = status if "State.Status" in args[1] else "true" if is_running or is_restarting else "false"
        self.say(" ".join([state, exit_code, *labels]) + "\n")

    def _follow(self, name: str, box: Mapping[str, Any], *, is_new_only: bool) -> None:
        with (self.root / f"{name}.log").open() as log:
            if is_new_only:
                log.read()
            while not self.gone() and not (self.root / AWAY).exists():
                is_running = self.containers.is_alive(box)
                self.say(log.read())
                if not is_running:
                    return
                self.sleep(POLL_S)

    def _end(self, name: str, box: Mapping[str, Any], verb: str) -> None:
        if self.containers.is_alive(box):
            (self.containers.stop if verb == "stop" else self.containers.kill)(box)
        while self.containers.is_alive(box):
            self.sleep(POLL_S)
        if verb == "rm":
            (self.root / f"{name}.json").unlink(missing_ok=True)


class ThreadedCommand:
    """What the agent's modules use of `subprocess.Popen`, for a docker that runs in a thread."""

    def __init__(
        self, root: Path, containers: Threads, clock: "ThreadClock", argv: Sequence[str], env: Mapping[str, str]
    ) -> None:
        self._clock, self._changed, self._lines = clock, threading.Condition(), deque[str]()
        self._killed, self._is_over, self.returncode = threading.Event(), False, -signal.SIGKILL
        docker = Docker(root, containers, self._say, self._say, self._killed.is_set, sleep=clock.sleep)

        def run() -> None:
            try:
                status = docker.call(argv[1:], env, str)
                if not self._killed.is_set():
                    self.returncode = status
            finally:
                with self._changed:
                    self._is_over = True
                    self._changed.notify_all()

        clock.start(run, name=" ".join(argv[:2]))

    def _say(self, text: str) -> None:
        with self._changed:
            self._lines.extend(text.splitlines())
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
        self._killed.set()


def in_threads(root: Path, containers: Threads, clock: "ThreadClock") -> SimpleNamespace:
    """Return a `subprocess` for the agent's modules whose docker, and the servers in its containers, run in this process."""

    def run(argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        said: list[str] = []
        errors = said if options["stderr"] == subprocess.STDOUT else list[str]()
        docker = Docker(root, containers, said.append, errors.append, sleep=clock.sleep)
        status = docker.call(argv[1:], options["env"], lambda: options["input"])
        return subprocess.CompletedProcess(argv, status, "".join(said), "" if errors is said else "".join(errors))

    def popen(argv: Sequence[str], *, env: Mapping[str, str] | None = None, **_: Any) -> ThreadedCommand:
        return ThreadedCommand(root, containers, clock, argv, os.environ if env is None else env)

    names = ("PIPE", "STDOUT", "TimeoutExpired")
    return SimpleNamespace(run=run, Popen=popen, **{name: getattr(subprocess, name) for name in names})


def program(root: Path) -> str:
    """Return the text of `docker` for a machine: it starts without `site`, because a test runs it dozens of times."""
    return f"#!{sys.executable} -IS\n{IMPORT}docker.command({str(root)!r})\n"


def command(root: str) -> None:
    """Run the command of this process, and exit."""

    def say(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    caller = os.getppid()
    docker = Docker(Path(root), Processes(), say, sys.stderr.write, lambda: os.getppid() != caller)
    sys.exit(docker.call(sys.argv[1:], os.environ, sys.stdin.read))


def serve() -> None:
    """Be the server of a container, and exit."""

    def say(line: str) -> None:
        print(line, flush=True)

    exit_file, *args = sys.argv[1:]
    server = Server(Path(exit_file), args, os.environ, say)
    signal.signal(signal.SIGTERM, lambda *_: server.end(0))
    os._exit(server.run())
