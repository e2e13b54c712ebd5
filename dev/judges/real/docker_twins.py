"""The same docker commands to a real daemon and to the simulated docker of a machine: exit codes, messages and states must agree."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from gemma_serving.contracts.guest_attributes import DOCKER_HINT
from localcloud.running.shims import MACHINE_COMMANDS, install
from localcloud.running.shims.machine import FOLDER_VARIABLE, write_json

CASES_FILE: Final = Path(__file__).with_name("docker_cases.toml")
NAME: Final = "twin"
"""Name of the container of every case."""
KILL: Final = "@kill"
"""In place of a docker command: send SIGKILL to the container's process, as the kernel does without memory."""
READY: Final = "@ready"
"""In place of a docker command: wait until the container's server is ready. As process 1 it ignores SIGTERM until it handles it."""
_READY_LINE: Final = "Application startup complete"
_LIMIT_S: Final = 120
_IDS: Final = re.compile(r"\b(?:sha256:)?[0-9a-f]{64}\b|\b[0-9a-f]{12}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Answer of docker: exit code, stdout and stderr, without ids and hints."""

    code: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinCase:
    """One claim: a command, those that run before it, and the fields of `Said` that must agree. Words have their placeholders."""

    claim: str
    argv: Sequence[str]
    before: Sequence[Sequence[str]]
    compared: Sequence[str]


def cases() -> Sequence[TwinCase]:
    """Return the cases of docker_cases.toml."""
    found = tomllib.loads(CASES_FILE.read_text(encoding="utf-8"))
    lists: Mapping[str, Sequence[str]] = found["words"]

    def full(words: Sequence[str]) -> list[str]:
        """Return the words with each @NAME replaced by its list."""
        parts = (full(lists[word[1:]]) if word[1:] in lists and word[0] == "@" else [word] for word in words)
        return [word for part in parts for word in part]

    return [
        TwinCase(
            claim=case["claim"],
            argv=full(case["argv"]),
            before=[full(words) for words in case.get("before", ())],
            compared=case.get("compared", ("code", "errors")),
        )
        for case in found["cases"]
    ]


def normalized(text: str) -> str:
    """Return a text without ids, hints and blank lines."""
    lines = (line.strip() for line in _IDS.sub("ID", text).splitlines())
    return "\n".join(line for line in lines if line and not DOCKER_HINT.fullmatch(line))


@dataclass(frozen=True, slots=True, kw_only=True)
class Docker:
    """A docker program with its variables. `of_run`: options that it adds to each `run`; `values`: of the placeholders."""

    program: str
    environment: Mapping[str, str]
    values: Mapping[str, str]
    of_run: Sequence[str] = ()

    def said(self, argv: Sequence[str]) -> Said:
        """Run a command, kill a container's process, or wait for its server."""
        if argv[0] == READY:
            return self._ready()
        if argv[0] == KILL:
            state = self.said(("inspect", "--format={{.State.Pid}}", NAME))
            os.kill(int(state.output), signal.SIGKILL)
            return state
        words = [*argv[:1], *self.of_run, *argv[1:]] if argv[0] == "run" else [*argv]
        for name, value in self.values.items():
            words = [word.replace(name, value) for word in words]
        done = subprocess.run(
            [self.program, *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self.environment},
            timeout=_LIMIT_S,
            check=False,
        )
        return Said(code=done.returncode, output=normalized(done.stdout), errors=normalized(done.stderr))

    def _ready(self) -> Said:
        until_s = time.monotonic() + _LIMIT_S
        while _READY_LINE not in (logs := self.said(("logs", NAME))).output + logs.errors:
            assert time.monotonic() < until_s, f"the server of {self.program} is not ready: {logs.errors[-300:]}"
            time.sleep(0.2)
        return logs


def values_of(image: str, folder: Path, port: int) -> Mapping[str, str]:
    """Return the values of the placeholders of one docker. Both use the machine's network, so each needs a port of its own."""
    repository = image.partition("@")[0]
    return {
        "{image}": image,
        "{absent}": f"{repository}@sha256:{'0' * 64}",
        "{host}": image.partition("/")[0],
        "{folder}": str(folder),
        "{port}": str(port),
    }


@contextmanager
def simulated_docker(folder: Path, values: Mapping[str, str]) -> Generator[Docker]:
    """Yield the simulated docker of a machine whose registry has one image, by digest. Its containers end with it."""
    name, _, digest = values["{image}"].partition("@")
    manifest = f"/{name.partition('/')[2]}/manifests/{digest}"

    class Manifests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path.endswith(manifest) or not self.path.startswith("/registry/")
            refusal = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
            body = json.dumps({} if known else refusal).encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Manifests)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    registry = f"http://127.0.0.1:{server.server_address[1]}"
    write_json(folder / "machine.json", {"clock_speed": 1000, "base_url": registry, "init_pid": os.getpid()})
    commands = {"docker": MACHINE_COMMANDS["docker"]}
    program = install(folder / "bin", commands, {FOLDER_VARIABLE: str(folder)}) / "docker"
    simulated = Docker(program=str(program), environment={"DOCKER_CONFIG": str(folder / "client")}, values=values)
    try:
        yield simulated
    finally:
        simulated.said(("rm", "-f", NAME))
        server.shutdown()
        server.server_close()
