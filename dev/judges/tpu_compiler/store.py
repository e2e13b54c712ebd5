"""Stored answers: one JSON file each in the user's cache folder, named by a hash of everything that the answer depends on."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from dev.judges.tpu_compiler.answer import CompileAnswer, Event, NotUnderstoodError, answer_of, event_line, read_event
from dev.judges.tpu_compiler.question import CompileQuestion

_ROOM: Final = Path(__file__).parent


def key_of(question: CompileQuestion, lock: Path) -> str:
    """Return the SHA-256 of the wheels, the sources of the child process and the question."""
    sources = [_ROOM / "replaced.py", *sorted((_ROOM / "server").rglob("*.py"))]
    material = {
        "lock": _digest(lock.read_bytes()),
        "sources": {path.relative_to(_ROOM).as_posix(): _digest(path.read_bytes()) for path in sources},
        "question": question.material(),
    }
    return _digest(json.dumps(material, sort_keys=True).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def stored_answer(folder: Path, key: str) -> CompileAnswer | None:
    """Return the answer of a key; None without one. A file that cannot be read is not there."""
    try:
        lines = (folder / f"{key}.jsonl").read_text(encoding="utf-8").splitlines()
        answer = answer_of([read_event(line) for line in lines])
    except (OSError, UnicodeDecodeError, NotUnderstoodError):
        return None
    return None if answer.reason else answer


def store_answer(folder: Path, key: str, events: Sequence[Event]) -> None:
    """Store the events of a complete answer. A folder that cannot be written stores nothing."""
    if answer_of(events).reason:
        return
    part = folder / f"{key}.part"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text("".join(f"{event_line(event)}\n" for event in events), encoding="utf-8")
        part.replace(folder / f"{key}.jsonl")
