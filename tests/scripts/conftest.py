"""The benchmark's server of known timing, in a process of its own, as something to check."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SERVER = Path(__file__).parents[2] / "packages" / "loadtest" / "tests" / "timed_server.py"


@pytest.fixture(scope="module")
def start_server() -> Iterator[Callable[..., str]]:
    """Starts a server with these options and gives its address."""
    with contextlib.ExitStack() as stack:

        def start(*options: str) -> str:
            process = stack.enter_context(
                subprocess.Popen([sys.executable, str(SERVER), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            return f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"

        yield start


@pytest.fixture(scope="module")
def url(start_server) -> str:
    """First token after 10 ms, then one every 2 ms; 2,048 tokens a request at most."""
    return start_server("--ttft-s", "0.01", "--tpot-s", "0.002", "--max-model-len", "2048")
