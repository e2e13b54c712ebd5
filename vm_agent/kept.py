"""What outlives the agent and a reboot: the last good document, the one that failed, and the beginning of a pause."""

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from contracts.serving_document import document_hash
from vm_agent.base import STATE_FOLDER, environment_variable, log

STATE_FOLDER_VARIABLE = "GEMMA_SERVING_STATE"
GOOD_FILE = "good.json"
FAILED_FILE = "failed.json"
PAUSE_FILE = "pause.json"


@dataclass(frozen=True)
class GoodDocument:
    """The last document whose server became ready. `image` is the reference that was pulled, which the machine still has."""

    text: str
    image: str
    drain_s: str = "0"
    """Seconds for which its server drains by itself."""

    @property
    def text_hash(self) -> str:
        """Return the document's hash."""
        return document_hash(self.text)


@dataclass(frozen=True)
class FailedChange:
    """A document that was given up, with the limits under which it failed. `detail` says why, without secrets."""

    text_hash: str
    limits: str
    detail: str


@dataclass
class KeptState:
    """Small files on the boot disk, without secrets: a document names its secrets and never holds them.

    Memory holds what the files should hold, so that a full disk costs nothing until the agent starts again.
    """

    folder: Path = field(default_factory=lambda: Path(environment_variable(STATE_FOLDER_VARIABLE, STATE_FOLDER)))
    retry_s: float = 60.0
    """Interval between two attempts to write what could not be written."""
    good: "GoodDocument | None" = None
    failed: "FailedChange | None" = None
    pause_began_at: str = ""
    _unwritten_until: "dict[str, float]" = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        """Read the files. One that cannot be read counts as absent."""
        good, failed, pause = self._read(GOOD_FILE), self._read(FAILED_FILE), self._read(PAUSE_FILE)
        if {"text", "image"} <= set(good):
            self.good = GoodDocument(good["text"], good["image"], good.get("drain_s", "0"))
        if {"text_hash", "limits", "detail"} <= set(failed):
            self.failed = FailedChange(failed["text_hash"], failed["limits"], failed["detail"])
        self.pause_began_at = pause.get("began_at", "")

    def keep_good(self, good: GoodDocument) -> None:
        """Keep the document of a server that became ready, and forget what failed before it."""
        self.good, self.failed = good, None
        self.write()

    def keep_failed(self, failed: FailedChange) -> None:
        """Keep the document that was given up."""
        self.failed = failed
        self.write()

    def keep_pause(self, began_at: str) -> None:
        """Keep when a pause began; an empty text means that it has ended."""
        self.pause_began_at = began_at
        self.write()

    def write(self) -> None:
        """Write what differs from the files. Called often, it also writes what could not be written before."""
        self._store(GOOD_FILE, asdict(self.good) if self.good else {})
        self._store(FAILED_FILE, asdict(self.failed) if self.failed else {})
        self._store(PAUSE_FILE, {"began_at": self.pause_began_at} if self.pause_began_at else {})

    def _read(self, name: str) -> "dict[str, str]":
        path = self.folder / name
        try:
            found: object = json.loads(path.read_text(encoding="utf-8"))
            values = cast("dict[object, object]", found) if isinstance(found, dict) else {}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log(f"{path} cannot be read ({error}) and counts as absent.")
            return {}
        return {str(key): str(value) for key, value in values.items()}

    def _store(self, name: str, values: "dict[str, str]") -> None:
        """Write a file, or delete it if there is nothing to keep. A failure is logged, and the next call tries again after `retry_s`."""
        if self._read(name) == values or time.monotonic() < self._unwritten_until.get(name, 0.0):
            return
        path = self.folder / name
        part = path.with_name(f".{name}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if values:
                with part.open("w", encoding="utf-8") as file:
                    json.dump(values, file)
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(path)  # a reader finds the old file or the new one, whole
            else:
                path.unlink(missing_ok=True)
            self._unwritten_until.pop(name, None)
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            self._unwritten_until[name] = time.monotonic() + self.retry_s
            log(
                f"{path} cannot be written ({error}). After a restart of this agent the machine would know an older one."
            )


def limits_name(text: "str | None") -> str:
    """Return a short name of the limits' text, so that a change of them is noticed."""
    return hashlib.sha256((text or "").encode()).hexdigest()[:12]
