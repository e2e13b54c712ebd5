"""Audit log of every call: one JSON object per line, on disk before a call starts, and again after it ends."""

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from contracts.errors import ScriptError

Outcome = Literal["begun", "left", "done", "asked", "failed", "refused", "cancelled"]
SCHEMA_VERSION: Final = 4
_LONG_CHARACTERS: Final = 500
_MOST_CHARACTERS: Final = 4000
"""Limit for all arguments of one line."""
_PRIVATE: Final = frozenset({"prompt"})
"""Arguments with user text. Only their length and a hash are recorded."""
_OWNER_ONLY: Final = 0o600


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
    """Price of what the call started, in USD per hour."""
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFile:
    """The file, readable only by its owner, and no link, which could redirect the record."""

    path: Path

    def write(self, entry: AuditEntry) -> None:
        """Append a line and wait until it is on disk. Raises ScriptError: without a record, nothing may happen."""
        line = json.dumps(asdict(entry), ensure_ascii=False, default=str) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            with os.fdopen(os.open(self.path, flags, _OWNER_ONLY), "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # another server may write to it
                os.fchmod(file.fileno(), _OWNER_ONLY)
                file.write(line.encode(errors="backslashreplace"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            why = "it is a link" if error.errno == errno.ELOOP else error.strerror
            raise ScriptError(
                f"Cannot write the audit file {self.path} ({why}), so nothing was done. Free disk space or "
                "start the agent with --audit FILE."
            ) from None


def recorded(arguments: Mapping[str, object]) -> Mapping[str, object]:
    """Return arguments in audit form: user text as length and hash, and long values cut."""
    kept = {key: _digest(value) if key in _PRIVATE else value for key, value in arguments.items()}
    text = _text(kept)
    return kept if len(text) <= _MOST_CHARACTERS else {"begins": text[:_LONG_CHARACTERS], **_digest(arguments)}


def _digest(value: object) -> dict[str, object]:
    text = _text(value)
    found = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return {"characters": len(text), "sha256": found[:16]}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
