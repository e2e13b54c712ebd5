"""The engine's event log: progress of an update and its messages."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gemma_serving.contracts.fields import as_mapping, json_object
from gemma_serving.contracts.masking import masked
from gemma_serving.engine.exported_state import type_in

VARIABLES: Final = {"PULUMI_DEBUG_COMMANDS": "true"}
"""Required for the engine's option --event-log."""

_SECRET: Final = '"[secret]"'  # noqa: S105 - the same text for each secret
"""The log has this text instead of a secret."""
_COLOR: Final = re.compile(r"<\{%[^%]*%\}>")
_MODULE: Final = re.compile(r"/[^:/]*:")
"""Part of a type: `gcp:cloudrunv2/service:Service` is shown as `gcp:cloudrunv2:Service`."""
_BEGIN = "resourcePreEvent"
_DONE = "resOutputsEvent"
_FAILED = "resOpFailedEvent"
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


def is_stored(log: Path) -> bool:
    """Return whether the state has each property that the log of a whole preview shows.

    The engine compares outputs only when it writes the state (pulumi/pulumi, pkg/backend/snapshot.go, mustWrite, 3.256), so its preview counts a
    resource with other outputs as the same. A log has no dependencies, hooks and timeouts.
    """
    events = [json_object(line) for line in log.read_bytes().splitlines()] if log.is_file() else []
    steps = [as_mapping(as_mapping(event[_DONE]).get("metadata")) for event in events if _DONE in event]
    return any("summaryEvent" in event for event in events) and all(map(_is_stored, steps))


def _is_stored(step: Mapping[str, object]) -> bool:
    """Return whether a step writes nothing. A secret output of a program may differ."""
    new = as_mapping(step.get("new"))
    is_shown = bool(new.get("custom")) or _SECRET not in json.dumps(new)
    return step.get("op") == "same" and step.get("old") == new and is_shown


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgress:
    """One message or step of the engine."""

    done: float
    """Finished steps. Grows with each message, below the plan's steps."""
    text: str
    step: str | None = None
    is_lasting: bool = False
    """True for a message that is neither a step nor a provider's status."""


@dataclass(slots=True, kw_only=True)
class EventLog:
    """Reads the file of `--event-log` as it grows."""

    path: Path
    plain: Callable[[str], str]
    """Returns a text as its reader may see it: without escapes, and not too long."""
    steps: int = 0
    _at: int = 0
    _begun: int = 0
    _ended: int = 0
    _said: int = 0
    """Messages since a step finished."""
    _open: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    errors: list[str] | None = None
    """Collects whole errors for a caller that prints them at the end, each once, without colors and not through `plain`. None: errors are messages."""

    def fresh(self) -> Iterator[EngineProgress]:
        """Yield the messages since the previous call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                lines = file.readlines()
        except FileNotFoundError:
            return
        for line in lines:
            if not line.endswith(b"\n"):
                return  # the engine is writing it
            self._at += len(line)
            event = json_object(line)
            if text := self._text(event):
                self._said += 1
                done = min(self._ended, max(0, self.steps - 1)) + self._said / (self._said + 1)
                step = self.plain(next(reversed(self._open.values()))) if self._open else None
                is_lasting = "diagnosticEvent" in event and not as_mapping(event["diagnosticEvent"]).get("ephemeral")
                yield EngineProgress(done=done, text=self.plain(text), step=step, is_lasting=is_lasting)

    def _text(self, event: Mapping[str, object]) -> str:
        said = as_mapping(event.get("diagnosticEvent"))
        if said and said.get("severity") != "debug":
            name = str(said.get("urn") or "").rpartition("::")[2]
            whole = masked(_COLOR.sub("", str(said.get("message") or ""))).strip()
            if self.errors is not None and said.get("severity") == "error":
                if whole and whole not in self.errors:
                    self.errors.append(whole)
                return ""
            text = " ".join(whole.split())
            return f"{name}: {text}".removeprefix(": ")
        kind = next((kind for kind in (_BEGIN, _DONE, _FAILED) if kind in event), "")
        metadata = as_mapping(as_mapping(event.get(kind)).get("metadata"))
        op = str(metadata.get("op") or "")
        urn = str(metadata.get("urn") or "")
        return self._of_resource(kind, op, urn) if kind else ""

    def _of_resource(self, kind: str, op: str, urn: str) -> str:
        what = f"{_MODULE.sub(':', type_in(urn))} {urn.rpartition('::')[2]}".strip()
        is_provider = type_in(urn).startswith("pulumi:providers:")  # a preview does not count them as steps
        if op not in _DOES or is_provider:
            refreshes = kind == _BEGIN and op == "refresh" and not is_provider
            return f"{op} of {what} failed" if kind == _FAILED else f"refreshing {what}" if refreshes else ""
        if kind == _BEGIN:
            self._begun += 1
            self._open[op, urn] = f"{self._number()}: {_DOES[op][0]} {what}"
            return self._open[op, urn]
        number = self._open.pop((op, urn), self._number()).partition(":")[0]
        if kind == _FAILED:
            return f"{number}: {op} of {what} failed"
        self._said = 0 if self._ended + 1 < self.steps else self._said
        self._ended += 1
        return f"{number}: {_DOES[op][1]} {what}"

    def _number(self) -> str:
        return f"{self._begun} of {max(self.steps, self._begun)}"
