"""The engine's event log: progress of an update and its messages."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from contracts.fields import as_mapping
from engine.deployment import type_in

VARIABLES: Final = {"PULUMI_DEBUG_COMMANDS": "true"}
"""Required for the engine's option --event-log."""

_COLOR: Final = re.compile(r"<\{%[^%]*%\}>")
_PROVIDERS: Final = "pulumi:providers:"
"""Types of providers: a preview does not count them as steps."""
_MODULE: Final = re.compile(r"/[^:/]*:")
"""Part of a type: `gcp:cloudrunv2/service:Service` is shown as `gcp:cloudrunv2:Service`."""
_DOES: Final[Mapping[str, tuple[str, str]]] = {
    "create": ("creating", "created"),
    "update": ("updating", "updated"),
    "delete": ("deleting", "deleted"),
    "replace": ("replacing", "replaced"),
    "create-replacement": ("creating the new", "created the new"),
    "delete-replaced": ("deleting the old", "deleted the old"),
    "import": ("importing", "imported"),
    "read": ("reading", "read"),
}
"""Operations that are steps of a plan, with their texts at the start and at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgress:
    """One message of the engine."""

    done: float
    """Finished steps. The value grows with each message, as the protocol requires, and stays below the plan's steps until the engine exits."""
    text: str
    step: str | None = None
    """The newest unfinished step."""


@dataclass(slots=True, kw_only=True)
class EventLog:
    """Reads the file of `--event-log` as it grows."""

    path: Path
    plain: Callable[[str], str]
    """Returns a text as its reader may see it: without secrets and escapes, and not too long."""
    steps: int = 0
    """Number of the plan's steps."""
    _at: int = 0
    _rest: bytes = b""
    _begun: int = 0
    _ended: int = 0
    _said: int = 0
    """Messages since a step finished."""
    _open: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """Started steps, with their numbers."""

    def fresh(self) -> Iterator[EngineProgress]:
        """Yield the messages since the previous call."""
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
                yield EngineProgress(done=self._done(), text=self.plain(text), step=self._step())

    def _done(self) -> float:
        self._said += 1
        done, part = min(self._ended, max(0, self.steps - 1)), self._said / (self._said + 1)
        return done + part

    def _step(self) -> str | None:
        return self.plain(next(reversed(self._open.values()))) if self._open else None

    def _text(self, event: Mapping[str, object]) -> str:
        if "resourcePreEvent" in event:
            return self._begins(*_step(event["resourcePreEvent"]))
        if "resOutputsEvent" in event:
            return self._ends(*_step(event["resOutputsEvent"]), failed=False)
        if "resOpFailedEvent" in event:
            return self._ends(*_step(event["resOpFailedEvent"]), failed=True)
        if "diagnosticEvent" in event:
            said = as_mapping(event["diagnosticEvent"])
            if said.get("severity") == "debug":
                return ""
            name = str(said.get("urn") or "").rpartition("::")[2]
            return f"{name}: {_plain(str(said.get('message') or ''))}".removeprefix(": ")
        return ""

    def _begins(self, op: str, urn: str) -> str:
        if type_in(urn).startswith(_PROVIDERS):
            return ""
        if op not in _DOES:
            return f"refreshing {_resource(urn)}" if op == "refresh" else ""
        self._begun += 1
        text = f"{self._number()}: {_DOES[op][0]} {_resource(urn)}"
        self._open[op, urn] = text
        return text

    def _ends(self, op: str, urn: str, *, failed: bool) -> str:
        begun = self._open.pop((op, urn), "")
        if type_in(urn).startswith(_PROVIDERS):
            return f"{op} of {_resource(urn)} failed" if failed else ""
        if op not in _DOES:
            return f"{op} of {_resource(urn)} failed" if failed else ""
        if not failed:
            self._said = 0 if self._ended + 1 < self.steps else self._said
            self._ended += 1
        number = begun.partition(":")[0] or self._number()
        return f"{number}: {f'{op} of ' if failed else f'{_DOES[op][1]} '}{_resource(urn)}{' failed' if failed else ''}"

    def _number(self) -> str:
        return f"{self._begun} of {max(self.steps, self._begun)}"


def _parsed(line: bytes) -> Mapping[str, object]:
    try:
        return as_mapping(cast("object", json.loads(line)))
    except ValueError:
        return as_mapping(None)


def _step(event: object) -> tuple[str, str]:
    metadata = as_mapping(as_mapping(event).get("metadata"))
    return str(metadata.get("op") or ""), str(metadata.get("urn") or "")


def _resource(urn: str) -> str:
    """Return the type and the name of a resource, such as `gcp:cloudrunv2:Service vllm`."""
    return f"{_MODULE.sub(':', type_in(urn))} {urn.rpartition('::')[2]}".strip()


def _plain(text: str) -> str:
    """Return a message on one line, without the engine's color codes (`<{%reset%}>`)."""
    return " ".join(_COLOR.sub("", text).split())
