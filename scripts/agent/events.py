"""The engine's event log: how far an update is, and what it says, without secrets."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from scripts.agent.programs import shortened
from scripts.pulumi.deployment import as_mapping

_MOST_CHARACTERS: Final = 300
_COLOUR: Final = re.compile(r"<\{%[^%]*%\}>")
_WORK: Final = frozenset(
    {"create", "update", "delete", "replace", "create-replacement", "delete-replaced", "read", "refresh"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgress:
    """One thing that the engine said."""

    done: int
    """Resources that are done."""
    text: str


@dataclass(slots=True, kw_only=True)
class EventLog:
    """Reads the file of `--event-log` as it grows."""

    path: Path
    secrets: tuple[str, ...] = ()
    _at: int = 0
    _rest: bytes = b""
    _done: int = field(default=0)

    def fresh(self) -> Iterator[EngineProgress]:
        """Yield what came since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
                self._at = file.tell()
        except FileNotFoundError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = self._text(_parsed(line))
            if text:
                yield EngineProgress(done=self._done, text=shortened(text, self.secrets, _MOST_CHARACTERS))

    def _text(self, event: Mapping[str, object]) -> str:
        if "resourcePreEvent" in event:
            op, name = _step(as_mapping(event["resourcePreEvent"]))
            return f"{op} {name}" if op in _WORK else ""
        if "resOutputsEvent" in event:
            op, name = _step(as_mapping(event["resOutputsEvent"]))
            self._done += 1
            return f"{op} {name}: done" if op in _WORK else ""
        if "resOpFailedEvent" in event:
            op, name = _step(as_mapping(event["resOpFailedEvent"]))
            return f"{op} {name}: failed"
        if "diagnosticEvent" in event:
            said = as_mapping(event["diagnosticEvent"])
            name = str(said.get("urn") or "").rpartition("::")[2]
            return f"{name}: {_plain(str(said.get('message') or ''))}".removeprefix(": ")
        return ""


def _parsed(line: bytes) -> Mapping[str, object]:
    try:
        return as_mapping(cast("object", json.loads(line)))
    except ValueError:
        return as_mapping(None)


def _step(event: Mapping[str, object]) -> tuple[str, str]:
    metadata = as_mapping(event.get("metadata"))
    return str(metadata.get("op") or ""), str(metadata.get("urn") or "").rpartition("::")[2]


def _plain(text: str) -> str:
    """Return a message without the engine's colour words (`<{%reset%}>`) on one line."""
    return " ".join(_COLOUR.sub("", text).split())
