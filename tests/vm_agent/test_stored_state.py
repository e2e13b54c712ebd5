"""The agent's state after a start: one entry that cannot be read does not cost the others."""

import errno
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gemma_serving.contracts.serving_document import parse_document
from gemma_serving.vm_agent import stored_state
from gemma_serving.vm_agent.cloud import MetadataClient
from gemma_serving.vm_agent.publishing import PhasePublisher
from gemma_serving.vm_agent.stored_state import (
    Assignment,
    DocumentTrial,
    FailedChange,
    GoodDocument,
    Probation,
    StoredState,
)
from tests.vm_agent.machine import IMAGE, Machine, document

GOOD = GoodDocument(document(8000), IMAGE, "40", '{"VLLM_API_KEY": "projects/p/secrets/s/versions/2"}')
READY = GoodDocument(document(8001), IMAGE)
PROBATION = Probation(READY, 3)
FAILED = FailedChange("abc", "limits", "why")
TRIAL = DocumentTrial("def", "limits", 2)
FETCHED = {IMAGE: "image", "/mnt/weights": "weights"}
BEGAN = "2026-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class Entries:
    """What a test sees of the state after it was read."""

    good: GoodDocument | None = GOOD
    probation: Probation | None = PROBATION
    failed: FailedChange | None = FAILED
    trial: DocumentTrial | None = TRIAL
    fetched: tuple[str, ...] = tuple(FETCHED)
    pause_began_at: str = BEGAN


def stored(folder: Path) -> dict[str, Any]:
    """Write a state with all entries. Return its content."""
    state = StoredState(folder)
    state.good, state.probation, state.failed, state.trial = GOOD, PROBATION, FAILED, TRIAL
    state.fetched, state.pause_began_at = dict(FETCHED), BEGAN
    state.write()
    return json.loads((folder / "state.json").read_text())


def read(folder: Path, content: object) -> tuple[Entries, StoredState]:
    """Return the state that an agent reads from this content."""
    (folder / "state.json").write_text(json.dumps(content))
    state = StoredState(folder)
    seen = Entries(state.good, state.probation, state.failed, state.trial, tuple(state.fetched), state.pause_began_at)
    return seen, state


def test_every_entry_is_read_again(tmp_path: Path):
    assert read(tmp_path, stored(tmp_path))[0] == Entries()


def test_an_unreadable_ready_document_leaves_the_roll_back_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    content = stored(tmp_path)
    content["ready"]["text"] = '{"schema": 2}'
    seen, state = read(tmp_path, content)
    assert seen == Entries(probation=None)
    assert state.back == GOOD
    said = capsys.readouterr().err
    assert "`ready`" in said
    assert "`good`" not in said


WITHOUT_PATH = document(8000, weights={"mode": "bucket", "uri": "gs://bucket/folder", "path": 5})
BAD: list[tuple[str, object, Entries]] = [
    ("good", {**vars(GOOD), "text": "{"}, Entries(good=None)),
    ("good", {**vars(GOOD), "text": 5}, Entries(good=None)),
    ("good", {**vars(GOOD), "image": None}, Entries(good=None)),
    ("good", {**vars(GOOD), "drain_s": "soon"}, Entries(good=None)),
    ("good", {**vars(GOOD), "newest": "[]"}, Entries(good=None)),
    ("good", {**vars(GOOD), "newest": '{"A": 1}'}, Entries(good=None)),
    ("good", {**vars(GOOD), "unknown": "x"}, Entries(good=None)),
    ("good", {"text": GOOD.text}, Entries(good=None)),
    ("good", "text", Entries(good=None)),
    ("good", {**vars(GOOD), "text": WITHOUT_PATH}, Entries(good=None)),
    ("ready", [], Entries(probation=None)),
    ("ready", {**vars(READY), "text": "{}"}, Entries(probation=None)),
    ("starts", "many", Entries(probation=Probation(READY, 1))),
    ("starts", -1, Entries(probation=Probation(READY, 1))),
    ("failed", {"text_hash": "abc"}, Entries(failed=None)),
    ("failed", {**vars(FAILED), "detail": None}, Entries(failed=None)),
    ("failed", 1, Entries(failed=None)),
    ("trial", {**vars(TRIAL), "starts": "2"}, Entries(trial=None)),
    ("trial", {**vars(TRIAL), "limits": 7}, Entries(trial=None)),
    ("trial", False, Entries(trial=None)),
    ("fetched", [IMAGE], Entries(fetched=())),
    ("fetched", {IMAGE: "image", "/": "folder"}, Entries(fetched=())),
    ("fetched", None, Entries(fetched=())),
    ("pause_began_at", 12, Entries(pause_began_at="")),
    ("paused_for", None, Entries()),
]


@pytest.mark.parametrize(("name", "value", "expected"), BAD)
def test_one_bad_entry_is_absent_named_and_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: object, expected: Entries
):
    content = {**stored(tmp_path), name: value}
    seen, state = read(tmp_path, content)
    assert seen == expected
    said = [line for line in capsys.readouterr().err.splitlines() if "cannot be read" in line]
    assert len(said) == 1, said
    assert f"`{name}`" in said[0]
    state.write()
    again = StoredState(tmp_path)
    assert (again.good, again.probation, again.failed) == (expected.good, expected.probation, expected.failed)
    assert "cannot be read" not in capsys.readouterr().err, "the next agent reads what this one wrote"


@pytest.mark.parametrize(
    "name", ["good", "ready", "starts", "failed", "trial", "fetched", "pause_began_at", "paused_for"]
)
def test_an_entry_that_is_missing_does_not_cost_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
):
    content = stored(tmp_path)
    del content[name]
    seen, _ = read(tmp_path, content)
    expected = {row: entries for row, _value, entries in BAD}
    assert seen == expected[name]
    assert f"`{name}`" in capsys.readouterr().err


def test_an_entry_of_a_newer_agent_is_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    seen, _ = read(tmp_path, {**stored(tmp_path), "of_a_newer_agent": {"a": 1}})
    assert seen == Entries()
    assert "cannot be read" not in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe"])
def test_a_file_that_is_no_json_object_is_absent_is_told_once_and_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
):
    stored(tmp_path)
    (tmp_path / "state.json").write_bytes(content)
    state = StoredState(tmp_path)
    assert (state.back, state.failed, state.trial, state.fetched) == (None, None, None, {})
    for _ in range(3):
        state.write()
    assert capsys.readouterr().err.count("cannot be read") == 1
    assert json.loads((tmp_path / "state.json").read_text())["good"] is None


def test_a_document_that_is_ready_ends_the_failed_change(tmp_path: Path):
    StoredState(tmp_path).keep_failed(FAILED)
    StoredState(tmp_path).keep_ready(GOOD)
    assert StoredState(tmp_path).failed is None


def test_a_full_disk_leaves_the_older_file_whole_and_memory_knows_the_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    state = StoredState(tmp_path, retry_s=0.0)
    state.keep_ready(GOOD)
    newer = GoodDocument(document(8000), IMAGE, "40")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(stored_state.os, "fsync", full)
        state.keep_ready(newer)
    assert "No space left on device" in capsys.readouterr().err
    assert state.good == newer
    assert StoredState(tmp_path).good == GOOD
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"], "no half-written file is left"
    state.write()
    assert StoredState(tmp_path).good == newer


def test_the_new_name_is_brought_to_the_disk_after_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[str] = []

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(stored_state.os, "fsync", note)
    StoredState(tmp_path / "state").keep_failed(FAILED)
    assert synced == [".state.json.part", "state"]


def test_starts_count_for_one_document_with_one_set_of_limits(tmp_path: Path):
    StoredState(tmp_path).keep_ready(GOOD)
    tried, other = (Assignment(1, text_hash, parse_document(document(8000)), "") for text_hash in ("abc", "def"))
    StoredState(tmp_path).keep_start(tried, "one")
    StoredState(tmp_path).keep_start(tried, "one")
    state = StoredState(tmp_path)
    assert [state.starts(*of) for of in ((tried, "one"), (tried, "two"), (other, "one"))] == [2, 0, 0]
    state.forget_trial()
    assert StoredState(tmp_path).starts(tried, "one") == 0


@pytest.mark.parametrize("name", ["pause_began_at", "paused_for"])
def test_a_pause_that_is_unknown_is_unpublished(machine: Machine, tmp_path: Path, name: str):
    content = {**stored(tmp_path), "pause_began_at": "", "paused_for": "", name: None}
    _, state = read(tmp_path, content)
    publisher = PhasePublisher(MetadataClient())
    publisher.set_fact("pause-began-at", BEGAN)
    assert machine.guest()["pause-began-at"] == BEGAN
    state.forget_pause(publisher, "abc")
    assert machine.guest()["pause-began-at"] == ""
