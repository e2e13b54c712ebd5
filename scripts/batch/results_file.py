"""Responses of a batch, in the output format of OpenAI's batch API, one line per answered request.

A line is written and synchronized when its response arrives, so a kill loses no stored response. An incomplete last line is repaired.
A second file, `OUTPUT.batch.json`, has the SHA-256 of the requests, so that responses to other requests are never mixed in. A request
without a line has no response yet.
"""

import fcntl
import io
import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final
from uuid import uuid4

from contracts.errors import CommandRefusedError, ScriptError
from contracts.fields import as_mapping, json_object
from scripts.batch.requests_file import BatchFile

_SCHEMA: Final = 1
_OTHER_FILE: Final = "Choose another --output file."


@dataclass(slots=True, kw_only=True)
class ResultsFile:
    """The file of responses, locked for this run."""

    path: Path
    file: io.FileIO
    statuses: dict[str, int] = field(default_factory=dict[str, int])
    """HTTP status of each stored response, by `custom_id`."""

    def append(self, custom_id: str, status: int, request_id: str, body: object) -> None:
        """Store a response. It is on disk when this returns. Raises ScriptError if the disk refuses it."""
        response = {"status_code": status, "request_id": request_id, "body": body}
        found = {"id": f"batch_req_{uuid4().hex}", "custom_id": custom_id, "response": response, "error": None}
        try:
            data = json.dumps(found, separators=(",", ":")).encode() + b"\n"
            while data:  # a write can end early on a disk that is nearly full
                data = data[os.write(self.file.fileno(), data) :]
            os.fsync(self.file.fileno())
        except OSError as error:
            raise ScriptError(
                f"Cannot write {self.path}: {error.strerror}. Its {len(self.statuses):,} responses are kept. Make room and run again."
            ) from None
        self.statuses[custom_id] = status

    @property
    def refused(self) -> int:
        """Stored responses whose status is not 200."""
        return sum(status != HTTPStatus.OK for status in self.statuses.values())


@contextmanager
def open_results(path: Path, batch: BatchFile) -> Generator[ResultsFile]:
    """Open a file of responses for one run, and read and repair what an earlier run stored.

    Raises CommandRefusedError if another run writes it, if it belongs to other requests or may do so, or if it is damaged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.samefile(batch.path):
            raise CommandRefusedError(f"--output {path} is the file of requests. {_OTHER_FILE}")
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise CommandRefusedError(f"Cannot write --output {path}: {error.strerror}.") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CommandRefusedError(f"Another run writes --output {path}. Wait for it, or stop it.") from None
        _require_same_requests(path, batch)
        statuses = _repaired(path, {line.custom_id for line in batch.lines})
        yield ResultsFile(path=path, file=file, statuses=statuses)


def _require_same_requests(path: Path, batch: BatchFile) -> None:
    """Compare the requests with those of an earlier run, or record them if no response is stored yet."""
    note = path.with_name(f"{path.name}.batch.json")
    if path.stat().st_size == 0:
        _write_durably(note, {"schema_version": _SCHEMA, "input_sha256": batch.sha256, "requests": len(batch.lines)})
        return
    try:
        found: Mapping[str, object] = as_mapping(json.loads(note.read_bytes()))
    except FileNotFoundError:
        raise CommandRefusedError(
            f"{path} has content, but {note.name}, which names its requests, is missing. {_OTHER_FILE}"
        ) from None
    except (OSError, ValueError):
        found = {}
    if found.get("schema_version") != _SCHEMA or not isinstance(found.get("input_sha256"), str):
        raise CommandRefusedError(f"Cannot read {note}, which names the requests of {path}. {_OTHER_FILE}")
    if found["input_sha256"] != batch.sha256:
        raise CommandRefusedError(
            f"{path} has the responses to other requests than {batch.path}, or {batch.path} has changed. {_OTHER_FILE}"
        )


def _write_durably(path: Path, content: Mapping[str, object]) -> None:
    draft = path.with_name(f"{path.name}.new")
    with draft.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _repaired(path: Path, known: set[str]) -> dict[str, int]:
    """Return the status of each stored response. Complete or remove a last line whose write was interrupted."""
    statuses: dict[str, int] = {}
    offset = 0
    with path.open("r+b") as file:
        for number, raw in enumerate(file, start=1):
            is_whole = raw.endswith(b"\n")
            result = _result(raw)
            if result is None and not is_whole:
                file.truncate(offset)
                break
            if result is None or result[0] not in known or result[0] in statuses:
                raise CommandRefusedError(
                    f"{path}, line {number} is not a response to one of the requests, or is the second one. Remove that line, or choose another --output file."
                )
            statuses[result[0]] = result[1]
            offset += len(raw)
            if not is_whole:
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
                break
    return statuses


def _result(raw: bytes) -> tuple[str, int] | None:
    """Return the `custom_id` and the status of a line; None if it is not a response."""
    found = json_object(raw)
    custom_id, status = found.get("custom_id"), as_mapping(found.get("response")).get("status_code")
    return (custom_id, status) if isinstance(custom_id, str) and isinstance(status, int) else None
