"""The record of every call: one JSON object a line, written before a call begins and after it ended."""

import errno
import json
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from scripts.errors import ScriptError

Outcome = Literal["begun", "done", "asked", "failed", "refused", "cancelled"]
SCHEMA_VERSION: Final = 1
_OWNER_ONLY: Final = 0o600
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
"""Without O_NONBLOCK the open of a named pipe waits for a reader."""


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
    usd_per_hour: float | None = None
    """What the call made run, US dollars per hour."""
    spent_usd: float | None = None
    """What this server's deployments have cost so far."""
    client: str = ""
    """What the client calls itself; it is not proved."""
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    elapsed_s: float = 0.0
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFile:
    """The file. Only its owner can read it. It is a file, not a link: who can make a link could let the record vanish."""

    path: Path

    def write(self, entry: AuditEntry) -> None:
        """Append a line and wait until it is on the disk. Raises ScriptError: without a record nothing may happen."""
        line = json.dumps(asdict(entry), ensure_ascii=False, default=str) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, _FLAGS, _OWNER_ONLY)
            try:
                _append(descriptor, line.encode(errors="backslashreplace"))
            finally:
                os.close(descriptor)
        except OSError as error:
            why = "it is a link" if error.errno == errno.ELOOP else error.strerror
            raise ScriptError(
                f"The audit file {self.path} cannot be written ({why}), so nothing is done; free the disk, or "
                "start the agent with --audit FILE."
            ) from None


def _append(descriptor: int, line: bytes) -> None:
    """Write a whole line at the end of the file. A line that was cut off before, such as by a full disk, stays on its own."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
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
