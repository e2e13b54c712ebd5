"""The supervisor of a container or a unit: what its records announce has happened."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localcloud.running.shims import supervise
from localcloud.running.shims.machine import read_json, write_json

HANDLED = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """Take back the handlers that a supervisor sets in this process."""
    before = [signal.getsignal(number) for number in HANDLED]
    yield
    for number, handler in zip(HANDLED, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("command", ["true", "/nowhere"])
@pytest.mark.parametrize("restart_s", [None, 60.0])
def test_a_record_that_is_removed_when_it_says_that_the_end_is_final_stays_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart_s: float | None, command: str
):
    """`docker run --rm` and `docker rm` remove it as soon as they have read it, whatever the supervisor does at that moment."""
    state = tmp_path / "one.json"
    announced: list[dict[str, Any]] = []

    def read_and_lose(path: Path) -> dict[str, Any] | None:
        document = read_json(path)
        if document is not None and document.get("finishedAt") and not document.get("restarting"):
            announced.append(document)
            path.unlink()
        return document

    write_json(state, {"running": True})
    monkeypatch.setattr(supervise, "read_json", read_and_lose)
    supervisor = supervise._Supervisor(
        state, tmp_path / "log", restart_s=restart_s, grace_s=5, pause="", environment={"PATH": "/usr/bin:/bin"}
    )
    if restart_s is not None:
        supervisor._stopping.set()  # as `docker stop` does
    code = supervisor.run([command])
    read_and_lose(state)
    assert [(document["running"], document["exitCode"]) for document in announced] == [(False, code)]
    assert not state.exists()
