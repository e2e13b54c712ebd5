"""The load tester's server of known timing, as something to check."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from loadtest.tests.conftest import timed_server


@pytest.fixture(scope="module")
def start_server() -> Iterator[Callable[..., str]]:
    """Starts a server with these options and gives its address."""
    with contextlib.ExitStack() as stack:
        yield lambda *options: stack.enter_context(timed_server(*options)).url


@pytest.fixture(scope="module")
def url(start_server) -> str:
    """First token after 10 ms, then one every 2 ms; 2,048 tokens a request at most."""
    return start_server("--ttft-s", "0.01", "--tpot-s", "0.002", "--max-model-len", "2048")
