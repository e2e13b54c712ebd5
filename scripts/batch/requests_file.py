"""Requests of a batch, in the input format of OpenAI's batch API (platform.openai.com/docs/guides/batch).

Each line is `{"custom_id": ..., "method": "POST", "url": ..., "body": {...}}`. The whole file is checked before the first request is sent.
Only the positions of the requests are kept in memory, because a body may contain images.
"""

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from contracts.errors import CommandRefusedError, ScriptError
from contracts.fields import as_mapping, json_object

PATHS: Final = ("/v1/chat/completions", "/v1/completions")
"""Endpoints of a server that generates text. Such a server has no `/v1/embeddings`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """Position of one request."""

    number: int
    """Line in the file, from 1."""
    custom_id: str
    path: str
    """Endpoint, such as `/v1/chat/completions`."""
    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFile:
    """A checked file of requests, open for reading."""

    path: Path
    sha256: str
    lines: Sequence[BatchLine]
    models: Mapping[str, int]
    """Requested models, each with its first line."""
    source: BinaryIO

    def body(self, line: BatchLine) -> object:
        """Return the body of a request. Raises ScriptError if the file has changed since it was checked."""
        self.source.seek(line.offset)
        found: Mapping[str, object] = {}
        with suppress(OSError):
            found = json_object(self.source.read(line.size))
        if found.get("custom_id") != line.custom_id:
            raise ScriptError(f"{self.path} changed during the run, at line {line.number}. Restore it and run again.")
        return found["body"]


class _LineError(ValueError):
    """A line is not a request. The message is a clause about it."""


@contextmanager
def open_requests(path: Path) -> Generator[BatchFile]:
    """Check a file of requests, and keep it open. Raises CommandRefusedError for the first invalid line."""
    try:
        source = path.open("rb")
    except OSError as error:
        raise CommandRefusedError(f"Cannot read {path}: {error.strerror}.") from None
    with source:
        yield _checked(path, source)


def _checked(path: Path, source: BinaryIO) -> BatchFile:
    digest, offset = hashlib.sha256(), 0
    lines: list[BatchLine] = []
    known: dict[str, int] = {}
    models: dict[str, int] = {}
    faults: list[str] = []
    for number, raw in enumerate(source, start=1):
        digest.update(raw)
        if raw.strip():
            try:
                line, model = _parsed(raw, number, offset, known)
            except _LineError as error:
                faults.append(f"{path}, line {number}: {error}.")
            else:
                lines.append(line)
                known[line.custom_id] = number
                if model is not None:
                    models.setdefault(model, number)
        offset += len(raw)
    if faults:
        more = len(faults) - 1
        others = "" if not more else " 1 more line is invalid." if more == 1 else f" {more:,} more lines are invalid."
        raise CommandRefusedError(f"{faults[0]}{others} Nothing was sent.")
    if not lines:
        raise CommandRefusedError(f"{path} has no requests.")
    return BatchFile(path=path, sha256=digest.hexdigest(), lines=lines, models=models, source=source)


def _parsed(raw: bytes, number: int, offset: int, known: Mapping[str, int]) -> tuple[BatchLine, str | None]:
    """Return a request and its model, if it names one. Raises _LineError."""
    try:
        found: object = json.loads(raw)
    except ValueError as error:
        raise _LineError(f"not JSON ({error})") from None
    request = as_mapping(found)
    if request is not found:
        raise _LineError("not a JSON object")
    custom_id, method, path = (request.get(key) for key in ("custom_id", "method", "url"))
    if not isinstance(custom_id, str) or not custom_id:
        raise _LineError("`custom_id` must be a text that is not empty")
    if custom_id in known:
        raise _LineError(f"`custom_id` {custom_id!r} is also the one of line {known[custom_id]}")
    if method != "POST":
        raise _LineError(f"`method` is {method!r}; it must be 'POST'")
    if path not in PATHS:
        raise _LineError(f"`url` is {path!r}; it must be {' or '.join(PATHS)}")
    body = request.get("body")
    parts = as_mapping(body)
    if parts is not body:
        raise _LineError("`body` must be a JSON object")
    if parts.get("stream"):
        raise _LineError("`body.stream` is true; a batch stores whole responses, so remove it")
    model = parts.get("model")
    if model is not None and not isinstance(model, str):
        raise _LineError("`body.model` must be a text")
    return BatchLine(number=number, custom_id=custom_id, path=str(path), offset=offset, size=len(raw)), model
