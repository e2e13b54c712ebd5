import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from unittest.mock import Mock

import pytest

from gemma_serving.cloud import google_calls, google_session
from gemma_serving.cloud.clock import GOOGLE_CLOCK, GoogleClock
from gemma_serving.cloud.google_api import endpoint
from gemma_serving.cloud.google_session import NotJsonError
from tests.cloud.populated import PROJECT, WRONG_CLOCKS, off_by, open_world


@pytest.mark.parametrize(
    ("api", "given", "root"),
    [
        ("storage", None, "https://storage.googleapis.com/"),
        ("storage", "http://127.0.0.1:1/storage/storage/v1/", "http://127.0.0.1:1/storage/"),
        ("compute", "https://compute-x.p.googleapis.com/compute/v1/", "https://compute-x.p.googleapis.com/"),
        ("storage", "http://127.0.0.1:1/storage", "http://127.0.0.1:1/storage/"),
        ("run", "http://127.0.0.1:1/run/", "http://127.0.0.1:1/run/"),
    ],
)
def test_the_root_of_an_api_is_without_the_version_that_gcloud_expects(api, given, root, monkeypatch):
    name = f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api.upper()}"
    monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(name, given)
    assert endpoint(api) == root


def test_googles_clock_is_that_of_its_last_response_and_an_invalid_one_changes_nothing():
    clock, eleven = GoogleClock(), datetime(2026, 11, 20, 11, tzinfo=UTC)
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=1), "before the first response: this machine's"
    for date in (format_datetime(eleven, usegmt=True), "nonsense", "", None):
        clock.see(date)
        assert eleven <= clock.now() < eleven + timedelta(minutes=1)
    clock.see(format_datetime(datetime.now(UTC), usegmt=True))
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(milliseconds=500), "the header has whole seconds"


@pytest.mark.parametrize("skew", WRONG_CLOCKS, ids=str)
@pytest.mark.parametrize("way", ["a script", "the program"])
def test_every_response_of_google_sets_its_clock(monkeypatch, skew, way):
    off_by(monkeypatch, skew)
    with open_world() as world:
        if way == "a script":
            world.api.get("storage", f"storage/v1/b?project={PROJECT}")
        else:
            google_calls.call_now("storage", f"storage/v1/b?project={PROJECT}", project=PROJECT, limit_s=60)
    assert abs(GOOGLE_CLOCK.now() - datetime.now(UTC)) < timedelta(seconds=5)


def test_a_call_of_a_hook_needs_no_thread_of_the_loop():
    """The engine's registrations can hold each of them until the hook has ended."""
    free = threading.Event()

    async def hook(loop_threads):
        asyncio.get_running_loop().set_default_executor(loop_threads)
        held = asyncio.get_running_loop().run_in_executor(None, free.wait, 60)
        with open_world():
            await google_calls.call("storage", f"storage/v1/b?project={PROJECT}", project=PROJECT, limit_s=60)
        free.set()
        return await held

    with ThreadPoolExecutor(max_workers=1) as loop_threads:
        assert asyncio.run(hook(loop_threads)), "the call ended while the only thread waited"


@pytest.mark.parametrize(("piece_s", "pieces"), [(0, 1025), (100, 4)])
def test_a_response_without_an_end_is_one_sentence(piece_s, pieces):
    read = []

    def endless(size):
        while True:
            read.append(size)
            yield b" " * size

    answer = Mock(url="https://run.googleapis.com/v2/x?key=1", iter_content=endless)
    said = r"^https://run\.googleapis\.com/v2/x sent [\d,]+ bytes without an end\. At most 64 MiB in 300 s are read\. Check"
    with pytest.raises(NotJsonError, match=said):
        google_session._body_of(answer, lambda: len(read) * piece_s)
    assert len(read) == pieces
