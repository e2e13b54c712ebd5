"""Audit log of every call: one JSON object per line, written before a call starts and after it finishes.

A large file is renamed to PATH.1 and a new one started, but only if the existing PATH.1 has no line of the last 24 hours. So the two
files always cover that period, which the spending is counted from.
"""

import errno
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, cast

from contracts.errors import ScriptError
from contracts.fields import as_mapping, as_sequence

Outcome = Literal["begun", "left", "done", "asked", "failed", "refused", "cancelled", "counted"]
"""A `counted` line belongs to no call: from then on, a stack costs `usd_per_hour`, see `counts`."""
COUNTED: Final[Outcome] = "counted"
SCHEMA_VERSION: Final = 2
LARGE_BYTES: Final = 10_000_000
KEPT_S: Final = 24 * 3600
"""Minimum retention of a line."""
_LONG_CHARACTERS: Final = 500
_MOST_CHARACTERS: Final = 4000
"""Limit for all arguments of one line."""
_PRIVATE: Final = frozenset({"prompt"})
"""Arguments with user text. Only their length and a hash are recorded."""
_OWNER_ONLY: Final = 0o600
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
"""Without O_NONBLOCK, opening a named pipe waits for a reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One line. Arguments and details are without secrets."""

    call: str
    """Id of the call; its lines share it."""
    tool: str
    arguments: Mapping[str, object]
    outcome: Outcome
    detail: str = ""
    plan_id: str | None = None
    stack: str | None = None
    """The counted stack."""
    usd_per_hour: float | None = None
    """Price of what the call started, in USD per hour."""
    spent_usd: float | None = None
    """Cost of the agent's deployments in the last 24 hours."""
    client: str = ""
    """The client's name for itself, unverified."""
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    elapsed_s: float = 0.0
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFile:
    """The file, readable only by its owner. It must not be a link, because a link could redirect the record."""

    path: Path
    large_bytes: int = LARGE_BYTES

    def write(self, entry: AuditEntry) -> None:
        """Append a line and wait until it is on disk. Raises ScriptError: without a record, nothing may happen."""
        line = json.dumps(asdict(entry), ensure_ascii=False, default=str) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._opened() as descriptor:
                _append(descriptor, line.encode(errors="backslashreplace"))
        except OSError as error:
            why = "it is a link" if error.errno == errno.ELOOP else error.strerror
            raise ScriptError(
                f"Cannot write the audit file {self.path} ({why}), so nothing was done. Free disk space or "
                "start the agent with --audit FILE."
            ) from None

    @contextmanager
    def _opened(self) -> Generator[int]:
        """Open the file for one line, with a lock against other servers. Start a new one if it is large."""
        while True:
            descriptor = os.open(self.path, _FLAGS, _OWNER_ONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode) and not self._is_current(found):
                    continue  # another server has started a new file in the meantime
                if found.st_size >= self.large_bytes and self._is_old():
                    self.path.rename(self.older)
                    continue
                yield descriptor
                return
            finally:
                os.close(descriptor)

    @property
    def older(self) -> Path:
        """The previous file."""
        return self.path.with_name(f"{self.path.name}.1")

    def _is_current(self, found: os.stat_result) -> bool:
        try:
            return os.path.samestat(found, self.path.lstat())
        except FileNotFoundError:
            return False

    def _is_old(self) -> bool:
        """Return whether the previous file has no line that must be kept. Its modification time is that of its last line."""
        try:
            return time.time() - self.older.lstat().st_mtime > KEPT_S
        except FileNotFoundError:
            return True


def recorded(arguments: Mapping[str, object], *, again: bool = False) -> Mapping[str, object]:
    """Return arguments in audit form: user text as length and hash, and long values cut.

    `again` is for the second line of a call, because long values are stored only once.
    """
    kept = {key: _digest(value) if key in _PRIVATE else _short(value, again=again) for key, value in arguments.items()}
    text = json.dumps(kept, ensure_ascii=False, default=str)
    return kept if len(text) <= _MOST_CHARACTERS else {"all": _digest(arguments)}


def _short(value: object, *, again: bool) -> object:
    if isinstance(value, str):
        if len(value) <= _LONG_CHARACTERS:
            return value
        return _digest(value) if again else {"begins": value[:_LONG_CHARACTERS], **_digest(value)}
    if isinstance(value, Mapping):
        return {key: _short(item, again=again) for key, item in as_mapping(cast("object", value)).items()}
    if isinstance(value, list):
        return [_short(item, again=again) for item in as_sequence(cast("object", value))]
    return value


def _digest(value: object) -> dict[str, object]:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    found = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return {"characters": len(text), "sha256": found[:16]}


def _append(descriptor: int, line: bytes) -> None:
    """Write a whole line at the end of the file. A truncated line, for example from a full disk, stays on its own."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if stat.S_IMODE(found.st_mode) != _OWNER_ONLY:
        os.fchmod(descriptor, _OWNER_ONLY)
    if found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n":
        line = b"\n" + line
    while line:
        line = line[os.write(descriptor, line) :]
    os.fsync(descriptor)


def seconds_since(start_s: float) -> float:
    """Return the seconds since a reading of the monotonic clock, rounded for a record."""
    return round(time.monotonic() - start_s, 3)
