"""Stored answers: the key has everything that matters, and a broken file is not there."""

import json
from pathlib import Path

import pytest

from dev.judges.tests.tpu_compiler.judge import REFUSED, answered
from dev.judges.tests.tpu_compiler.questions import question
from dev.judges.tpu_compiler import store
from dev.judges.tpu_compiler.answer import answer_of, read_event
from dev.judges.tpu_compiler.store import key_of, store_answer, stored_answer

LOCK = Path(__file__).resolve().parents[4] / "requirements.txt"


def events(rows):
    return [read_event(json.dumps(row)) for row in rows]


@pytest.mark.parametrize(
    "change",
    [
        {"arguments": ("google/gemma-4-E2B-it", "--max-model-len=8192")},
        {"environment": {}},
        {"accelerator_type": "v6e-4"},
        {"devices": 4},
        {"usable_gib": 31.0},
        {"config": {"model_type": "gemma4", "hidden_size": 1}},
        {"drafter": "google/gemma-4-E2B-it-assistant"},
        {"drafter_config": {"model_type": "gemma4_assistant"}},
        {"programs": "all"},
    ],
    ids=str,
)
def test_each_part_of_the_question_changes_the_key(change):
    assert key_of(question(**change), LOCK) != key_of(question(), LOCK)


def test_the_wheels_and_the_childs_sources_change_the_key(monkeypatch, tmp_path):
    first = key_of(question(), LOCK)
    assert first == key_of(question(), LOCK)
    (tmp_path / "lock").write_text("vllm-tpu==0.33.0")
    assert first != key_of(question(), tmp_path / "lock")
    (tmp_path / "server").mkdir()
    (tmp_path / "replaced.py").write_text("")
    monkeypatch.setattr(store, "_ROOM", tmp_path)
    before = key_of(question(), LOCK)
    (tmp_path / "server" / "start.py").write_text("# changed")
    assert key_of(question(), LOCK) != before


def test_an_answer_is_stored_as_it_was(tmp_path):
    for name, rows in (("a", answered()), ("b", [REFUSED])):
        store_answer(tmp_path / "answers", name, events(rows))
        assert stored_answer(tmp_path / "answers", name) == answer_of(events(rows))
    assert stored_answer(tmp_path / "answers", "c") is None


def test_an_unfinished_answer_is_not_stored(tmp_path):
    store_answer(tmp_path, "a", events(answered()[:-1]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"event":"done"}\n', b'{"event":"later"}\n'])
def test_a_broken_file_is_not_there(tmp_path, content: bytes):
    store_answer(tmp_path, "a", events(answered()))
    next(tmp_path.iterdir()).write_bytes(content)
    assert stored_answer(tmp_path, "a") is None


def test_a_folder_that_cannot_be_written_stores_nothing(tmp_path):
    Path(tmp_path / "file").write_text("")
    store_answer(tmp_path / "file" / "answers", "a", events(answered()))
    assert stored_answer(tmp_path / "file" / "answers", "a") is None
