"""Starts simulated servers for the tests and talks to them with the standard library."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    def events(self) -> list[Any]:
        """The server-sent events, parsed; the last one has to be [DONE]."""
        data = [line.removeprefix("data: ") for line in self.text.splitlines() if line]
        assert data[-1] == "[DONE]"
        return [json.loads(item) for item in data[:-1]]


def ask(url: str, body: Any = None, *, headers: Mapping[str, str] | None = None, timeout_s: float = 60) -> Answer:
    data = None if body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data=data, headers=given)  # noqa: S310 - loopback
    try:
        with _DIRECT.open(request, timeout=timeout_s) as response:
            return Answer(response.status, dict(response.headers), response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, dict(error.headers), error.read().decode())


def environment(**variables: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "PULUMI_", "GOOGLE_"))}
    return {**kept, "PYTHONUNBUFFERED": "1", **variables}


@contextlib.contextmanager
def server(words: Sequence[str], *, open_files: int | None = None, **variables: str) -> Iterator[str]:
    """Run a server until the block ends; yields its URL once it serves. `open_files` is the soft limit that it starts with."""
    limited = [] if open_files is None else ["/bin/sh", "-c", f'ulimit -S -n {open_files}; exec "$@"', "sh"]
    process = subprocess.Popen(
        [*limited, sys.executable, "-m", "localcloud.vllm", *words],
        env=environment(VLLM_SIM_BIND_PORT="0", VLLM_SIM_CLOCK_SPEED="5000", VLLM_SIM_LIFELINE="stdin", **variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        port = ""
        said: list[str] = []
        for line in process.stdout:
            said.append(line)
            if "listening on port" in line:
                port = line.split("listening on port ")[1].split()[0]
            if "Application startup complete" in line:
                break
        else:
            raise AssertionError("the server ended: " + "".join(said))
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


def run_to_end(words: Sequence[str], **variables: str) -> tuple[int, str]:
    """Run a server that is expected to exit on its own; return its exit code and output."""
    done = subprocess.run(
        [sys.executable, "-m", "localcloud.vllm", *words],
        env=environment(VLLM_SIM_BIND_PORT="0", VLLM_SIM_CLOCK_SPEED="5000", **variables),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
