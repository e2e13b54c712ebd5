"""Folder of a run: `quality.json` has what was served, `answers.jsonl` one line per answer, each on disk before the next question is sent."""

import fcntl
import json
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from contracts.errors import CommandRefusedError
from contracts.fields import ContractError, from_json, to_json
from engine.atomic_file import KeptFileError, read_kept, replace_file
from engine.runner import project_folder
from scripts.quality.results import SCHEMA_VERSION, JudgedAnswer, QualityHeader, QualityResult

HEADER: Final = "quality.json"
ANSWERS: Final = "answers.jsonl"
FOLDER: Final = "results"
"""Folder of the results, ignored by git."""
_LOCK: Final = ".lock"
_SUFFIX: Final = "-quality"


def new_folder(name: str) -> Path:
    """Return the folder of a new run on a stack or a host."""
    safe = "".join(char if char.isalnum() or char in ".-" else "-" for char in name)
    return project_folder() / FOLDER / safe / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}{_SUFFIX}"


def read_result(folder: Path) -> QualityResult:
    """Return the run in a folder. Raises CommandRefusedError if there is none, or if it cannot be read."""
    try:
        header = read_kept(folder / HEADER, QualityHeader, SCHEMA_VERSION)
    except KeptFileError as error:
        raise CommandRefusedError(f"{folder / HEADER} {error}. Run scripts.quality again.") from None
    if header is None:
        raise CommandRefusedError(f"{folder} has no {HEADER}. Pass the folder of a run of scripts.quality, or a stack.")
    return QualityResult(folder=str(folder), header=header, answers=tuple(_answers(folder / ANSWERS)))


def _answers(path: Path) -> Sequence[JudgedAnswer]:
    """Return the answers, the later of two to one question. An incomplete last line is dropped."""
    if not path.exists():
        return []
    found: dict[str, JudgedAnswer] = {}
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            answer = from_json(JudgedAnswer, json.loads(line))
        except (ValueError, ContractError) as error:
            if number == len(lines):
                break  # the write was interrupted
            raise CommandRefusedError(f"{path}, line {number} is not an answer ({error}). Run again.") from None
        found[answer.id] = answer
    return list(found.values())


def newest(stack: str) -> QualityResult | None:
    """Return the newest run that represents a stack in the default folder; None without one."""
    return next((one for one in runs_of(stack) if one.represents_stack), None)


def runs_of(stack: str) -> Iterator[QualityResult]:
    """Yield the runs of a stack in the default folder, the newest first. Raises CommandRefusedError for one that cannot be read."""
    folders = sorted((project_folder() / FOLDER / stack).glob(f"*{_SUFFIX}"), reverse=True)
    return (read_result(folder) for folder in folders if (folder / HEADER).exists())


def named(word: str) -> QualityResult:
    """Return the run in a folder, or the newest of a stack. Raises CommandRefusedError if there is none."""
    if (Path(word) / HEADER).exists():
        return read_result(Path(word))
    found = newest(word)
    if found is None:
        raise CommandRefusedError(
            f"{word} is neither the folder of a run of scripts.quality nor a stack with a complete one of all kinds in {FOLDER}/."
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityStore:
    """The folder of a run that is open for writing."""

    folder: Path

    def start(self, header: QualityHeader, *, resume: bool) -> Sequence[JudgedAnswer]:
        """Write the header, and return the answers to keep. Raises CommandRefusedError if the folder belongs to another run."""
        kept: Sequence[JudgedAnswer] = ()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if (self.folder / HEADER).exists():
                kept = self._kept(header, resume=resume)
            lines = "".join(f"{_line(one)}\n" for one in kept)
            replace_file(self.folder / ANSWERS, lines)
            replace_file(self.folder / HEADER, f"{json.dumps(to_json(header), indent=1)}\n")
        except OSError as error:
            raise CommandRefusedError(f"Cannot write to --out {self.folder}: {error.strerror}.") from None
        return kept

    def change(self, header: QualityHeader) -> None:
        """Rewrite the header."""
        replace_file(self.folder / HEADER, f"{json.dumps(to_json(header), indent=1)}\n")

    def _kept(self, header: QualityHeader, *, resume: bool) -> Sequence[JudgedAnswer]:
        if not resume:
            raise CommandRefusedError(
                f"--out {self.folder} already has a run. Add --resume to continue it, or use another folder."
            )
        before = read_result(self.folder)
        for what, one, two in (
            ("set of questions", before.header.set_sha256, header.set_sha256),
            ("deployment", before.header.served, header.served),
            ("use of thinking", before.header.thinking, header.thinking),
        ):
            if one != two:
                raise CommandRefusedError(
                    f"--resume: the run in {self.folder} has another {what}. Use another folder for this one."
                )
        return [one for one in before.answers if one.verdict != "unknown"]

    def append(self, answer: JudgedAnswer) -> None:
        """Write one answer. It is on disk when this returns."""
        with (self.folder / ANSWERS).open("a", encoding="utf-8") as file:
            file.write(f"{_line(answer)}\n")
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def open_store(folder: Path) -> Generator[QualityStore]:
    """Open a folder for exclusive use by one run. Raises CommandRefusedError if another process writes there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("w", encoding="utf-8")
    except OSError as error:
        raise CommandRefusedError(f"Cannot write to --out {folder}: {error.strerror}.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CommandRefusedError(
                f"--out {folder} is in use by another run. Wait for it or use another folder."
            ) from None
        yield QualityStore(folder=folder)


def _line(answer: JudgedAnswer) -> str:
    return json.dumps(to_json(answer), ensure_ascii=False, separators=(",", ":"))
