"""The file of a recording: JSON lines, the first one about the file, each other one an exchange."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from localcloud.json_values import JsonObject, as_object

FORMAT = "localcloud-recording"
VERSION = 1
_MODE = 0o600


class RecordingError(Exception):
    """The file cannot be used; the message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A body whose content is not kept: its media type and its length in bytes."""

    type: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedExchange:
    """One request and its answer.

    `path` begins with the API's name, such as `/run/v2/projects/...`, without query. `status` 0: no answer came.
    `location` is path and query of an upload session, `range` the Content-Range of a part of it.
    """

    time: datetime
    duration_s: float
    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict[str, Any])
    request: Any = None
    request_content: Content | None = None
    status: int = 0
    response: Any = None
    response_content: Content | None = None
    location: str | None = None
    range: str | None = None

    def as_json(self) -> JsonObject:
        """Return the exchange as a line of the file has it; empty parts are left out."""
        line: JsonObject = {
            "time": self.time.isoformat(timespec="milliseconds"),
            "duration_s": round(self.duration_s, 4),
            "method": self.method,
            "path": self.path,
            "query": dict(self.query),
            "request": self.request,
            "status": self.status,
            "response": self.response,
        }
        for name, content in (("request_content", self.request_content), ("response_content", self.response_content)):
            if content is not None:
                line[name] = {"type": content.type, "bytes": content.bytes}
        for name, text in (("location", self.location), ("range", self.range)):
            if text is not None:
                line[name] = text
        return line


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A whole file. `speed`: simulated seconds in one real second of what answered; 1 for Google."""

    speed: float
    exchanges: tuple[RecordedExchange, ...]


class RecordingWriter:
    """Writes a file that only its owner can read. After each line the file is valid."""

    def __init__(self, path: Path, *, speed: float) -> None:
        """Create the file. Raises RecordingError if it exists or cannot be written."""
        self.path = path
        self._speed = speed
        try:
            self._stream = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "w", encoding="utf-8")
        except FileExistsError:
            raise RecordingError(f"The file {path} exists; give --out the name of a new file.") from None
        except OSError as error:
            raise RecordingError(f"The file {path} cannot be written ({error.strerror}); give --out another.") from None
        self._write(self._head(complete=False))

    def add(self, line: JsonObject) -> None:
        """Append one exchange."""
        self._write(json.dumps(line))

    def finish(self, lines: Iterable[JsonObject]) -> None:
        """Replace all exchanges of the file at once and close it."""
        self._stream.close()
        new = self.path.with_name(self.path.name + ".new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE), "w", encoding="utf-8") as stream:
            stream.writelines(
                f"{text}\n" for text in (self._head(complete=True), *(json.dumps(line) for line in lines))
            )
        new.replace(self.path)

    def _head(self, *, complete: bool) -> str:
        """Return the first line. `complete` False: values that became known late are not replaced in earlier lines yet."""
        return json.dumps({"format": FORMAT, "version": VERSION, "complete": complete, "speed": self._speed})

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def read(path: Path) -> Recording:
    """Return the recording of a file, its exchanges in the order in which they began. Raises RecordingError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise RecordingError(
            f"The file {path} cannot be read ({reason}); give a file of `localcloud record`."
        ) from None
    head = _object(path, 1, lines[0] if lines else "")
    if head.get("format") != FORMAT:
        raise RecordingError(f"The file {path} is not a recording; give a file of `localcloud record`.")
    if head.get("version") != VERSION:
        raise RecordingError(
            f"The file {path} has version {head.get('version')!r} of the format, this program reads version {VERSION}; "
            "use the version of this project that recorded it."
        )
    found = [_exchange(path, number, _object(path, number, text)) for number, text in enumerate(lines[1:], start=2)]
    return Recording(speed=float(head.get("speed", 1)), exchanges=tuple(sorted(found, key=lambda each: each.time)))


def _object(path: Path, number: int, text: str) -> JsonObject:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RecordingError(f"Line {number} of {path} is not a JSON object; record it again.")
    return cast("JsonObject", value)


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"time {text} without zone")
    return found


def _path(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/"):
        raise ValueError(f"path {value!r}")
    return value


def _exchange(path: Path, number: int, line: JsonObject) -> RecordedExchange:
    try:
        read_back = RecordedExchange(
            time=_time(line["time"]),
            duration_s=float(line["duration_s"]),
            method=str(line["method"]),
            path=_path(line["path"]),
            query=as_object(line["query"]),
            request=line["request"],
            status=int(line["status"]),
            response=line["response"],
            location=line.get("location"),
            range=line.get("range"),
        )
        contents = {
            name: Content(type=str(line[name]["type"]), bytes=int(line[name]["bytes"]))
            for name in ("request_content", "response_content")
            if name in line
        }
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"Line {number} of {path} is no exchange ({error!r}); record it again.") from None
    return replace(read_back, **contents)
