"""Staging reads a checkpoint of the hub in ranges, without a file on the disk, and checks every byte."""

import random
import threading

import pytest
from huggingface_hub.utils import _http

from gemma_serving.cloud.staging.sources import hub
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.staged_weights import MANIFEST
from tests.cloud.test_staging_from_local_hub import at_hub
from tests.small_hub import SmallHub

LARGE = random.Random(7).randbytes(12_345)  # noqa: S311 - planted bytes, no secret
FILES = {"config.json": b"{}", "model.safetensors": LARGE, "README.md": b"not read", "empty.txt": b""}


@pytest.fixture
def world(staging_world, monkeypatch):
    small = SmallHub(models={"org/model": FILES})
    monkeypatch.setattr("localcloud.server.hub.HubApi", lambda **_: small)
    at_hub(monkeypatch, staging_world.cloud.base_url + "/hub")
    yield staging_world, small
    # Reads that were under way when a copy failed: the hub's client of the next test is theirs, and what they meet ends its requests.
    for thread in threading.enumerate():
        if thread.name.startswith("ordered-"):
            thread.join(60)


def asked(small):
    """Each request for a file: whether it went to the storage, the file's name, and whether it had a token."""
    files = (one for one in small.asked if not one[1].startswith("api/"))
    return {(path.startswith("storage/"), path.rpartition("/")[2], bool(token)) for _, path, token, _ in files}


def of_storage(*statuses):
    """Let the storage answer its next requests with these statuses."""
    left = list(statuses)
    return lambda path: (left.pop(0), b"", {}) if left and path.startswith("storage/") else None


def test_the_token_goes_to_the_hub_and_not_to_its_storage(world):
    staging, small = world
    staging.stage(hub("org/model", None))
    assert {(stored, token) for stored, _, token in asked(small)} == {(False, True), (True, False)}


def test_bytes_that_the_hub_does_not_state_are_refused_and_mended_by_the_next_run(world):
    (staging, small), name = world, "model.safetensors"
    small.sent[name] = bytes([LARGE[0] ^ 1]) + LARGE[1:]
    with pytest.raises(
        ScriptError, match=rf"{name} of .* has SHA-256 .*, but .* was stated or read before. Run this again"
    ):
        staging.stage(hub("org/model", None))
    found = staging.target.objects("m/")
    assert (f"m/{name}" in found, f"m/{MANIFEST}" in found) == (False, False)
    small.sent.clear()
    staging.stage(hub("org/model", None))
    assert staging.content(f"m/{name}") == FILES[name]


def test_a_busy_storage_is_asked_again(world):
    staging, small = world
    small.meets = of_storage(503, 500, 503)
    staging.stage(hub("org/model", None))
    assert staging.content("m/model.safetensors") == LARGE


def test_a_client_that_another_thread_closed_is_opened_again(world, monkeypatch):
    """The hub's client closes the session that all threads share when one of them gets no connection."""
    staging, _ = world
    source, session, closed = hub("org/model", None), _http.get_session, []

    def closing():
        found = session()
        # None: another thread closed it in between, which the next test is about.
        if found is not None and len(closed) < 3:
            closed.append(found)
            found.close()
            _http.close_session()
        return found

    monkeypatch.setattr(_http, "get_session", closing)
    staging.stage(source)
    assert len(closed) >= 3
    assert staging.content("m/model.safetensors") == LARGE


def test_a_signed_link_that_expired_is_one_sentence(world):
    staging, small = world
    small.meets = of_storage(*[403] * 40)
    with pytest.raises(ScriptError) as caught:
        staging.stage(hub("org/model", None))
    assert str(caught.value) == (
        "The Hugging Face Hub rejected org/model with HTTP 403: a storage link expired, or the token has no read access; "
        "run this again to resume."
    )


def test_a_server_that_ignores_ranges_is_named(world):
    staging, small = world
    small.meets = lambda path: (200, LARGE, {}) if path.startswith("storage/") else None
    with pytest.raises(ScriptError, match=r"localhost returned 12345 bytes for bytes .* of model"):
        staging.stage(hub("org/model", None))


def test_a_second_run_reads_only_what_the_hub_states_no_sha256_for(world):
    staging, small = world
    staging.stage(hub("org/model", None))
    small.asked.clear()
    assert staging.stage(hub("org/model", None)).kept == 3
    assert {name for _, name, _ in asked(small)} == {"config.json"}
