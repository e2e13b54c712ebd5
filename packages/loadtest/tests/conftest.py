"""A server with known timing, in a process of its own, and a sweep against it."""

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

if settings.get_current_profile_name() not in {"project", "part", "long"}:  # the suite runs alone, from its own folder
    settings.register_profile("alone", deadline=None, derandomize=True)
    settings.load_profile("alone")

SERVER = Path(__file__).with_name("timed_server.py")


@dataclass
class TimedServer:
    url: str
    process: subprocess.Popen[bytes]

    def control(self, fault: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._answer("/control", None if fault is None else json.dumps(fault).encode())

    def received(self) -> list[dict[str, Any]]:
        """The streamed requests with the server's own times, in the order of their arrival (`--keep-requests`)."""
        return self._answer("/received")

    def truth(self) -> list[dict[str, Any]]:
        """What the server itself saw of every stream that has ended, by its own clock."""
        return self._answer("/truth")

    def _answer(self, path: str, data: bytes | None = None) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", data=data, timeout=60) as answer:  # noqa: S310 - our own loopback server
            return json.load(answer)


@contextlib.contextmanager
def timed_server(*options: str) -> Generator[TimedServer]:
    process = subprocess.Popen([sys.executable, str(SERVER), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        yield TimedServer(url=f"http://127.0.0.1:{port}", process=process)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def start_server() -> Iterator[Callable[..., TimedServer]]:
    with contextlib.ExitStack() as stack:
        yield lambda *options: stack.enter_context(timed_server(*options))


@pytest.fixture(scope="module")
def server() -> Iterator[TimedServer]:
    """First token after 20 ms, then one every 5 ms; at most 4,096 tokens a request."""
    with timed_server("--ttft-s", "0.02", "--tpot-s", "0.005") as found:
        yield found


@pytest.fixture
def calm(server: TimedServer) -> Iterator[TimedServer]:
    """That server without the faults of another test."""
    server.control({})
    yield server
    server.control({})
