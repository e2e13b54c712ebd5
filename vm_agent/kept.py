"""State that survives the agent and a reboot: good, probation, trial and failed documents, a pause, and fetched files."""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import cast

from contracts.serving_document import API_KEY_VARIABLE, ServingDocument, document_hash, parse_document
from vm_agent.base import STATE_FOLDER, environment_variable, log

STATE_FOLDER_VARIABLE = "GEMMA_SERVING_STATE"
GOOD_FILE = "good.json"
PROBATION_FILE = "probation.json"
FAILED_FILE = "failed.json"
TRIAL_FILE = "trial.json"
PAUSE_FILE = "pause.json"
FETCHED_FILE = "fetched.json"
IMAGE_KIND = "image"
WEIGHTS_KIND = "weights"


@dataclass(frozen=True)
class GoodDocument:
    """A document to roll back to. `image` is the reference that was pulled, which the machine still has."""

    text: str
    image: str
    drain_s: str = "0"
    """Seconds for which its server drains on its own."""
    newest: str = ""
    """JSON object of the secret versions that replaced the text's versions, by variable name; empty if none did."""

    @property
    def text_hash(self) -> str:
        """Return the document's hash."""
        return document_hash(self.text)

    @property
    def document(self) -> ServingDocument:
        """Return the document with the pulled image and its newest secrets. Raises DocumentError if a newer agent with more keys stored it."""
        parsed = parse_document(self.text)
        newest = cast("dict[str, str]", json.loads(self.newest or "{}"))
        return replace(parsed, image=self.image, secret_environment={**parsed.secret_environment, **newest})

    def with_secrets(self, versions: "Mapping[str, str]") -> "GoodDocument":
        """Return the document with newer secret versions, so a rotated secret stays rotated after a rollback."""
        own = self.document.secret_environment
        newest = {name: versions.get(name, version) for name, version in own.items()}
        return self if newest == own else replace(self, newest=json.dumps(newest, sort_keys=True))


@dataclass(frozen=True)
class Probation:
    """A document whose server became ready, but has not served long enough to be the rollback target."""

    ready: GoodDocument
    starts: int = 1
    """Starts of its server, including the start that became ready. Each further start follows a stop of the server or the machine."""


@dataclass(frozen=True)
class FailedChange:
    """A document that was given up, with the name of the limits and the restart under which it failed. `detail` is the reason, without secrets."""

    text_hash: str
    limits: str
    detail: str


@dataclass(frozen=True)
class Trial:
    """A document that was never ready, with its limits and the number of server starts."""

    text_hash: str
    limits: str
    starts: int = 0


@dataclass
class KeptState:
    """Small files on the boot disk, without secrets: a document names its secrets but never contains them.

    Memory holds the intended content, so a full disk has no effect until the agent restarts.
    """

    folder: Path = field(default_factory=lambda: Path(environment_variable(STATE_FOLDER_VARIABLE, STATE_FOLDER)))
    retry_s: float = 60.0
    """Interval between attempts to write a file after a failure."""
    good: "GoodDocument | None" = None
    """Last document that passed its probation. The first document of a machine needs none."""
    probation: "Probation | None" = None
    failed: "FailedChange | None" = None
    trial: "Trial | None" = None
    pause_began_at: str = ""
    paused_for: str = ""
    """Hash of the document whose pause ended, or empty if the guest attributes have none."""
    fetched: "dict[str, str]" = field(default_factory=dict[str, str])
    """Images and weights folders that the agent fetched to the disk, each with its kind."""
    _written: "dict[str, dict[str, str]]" = field(default_factory=dict[str, dict[str, str]])
    _unwritten_until: "dict[str, float]" = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        """Read the files. An unreadable file is treated as absent."""
        good, probation = self._read(GOOD_FILE), self._read(PROBATION_FILE)
        failed, trial, pause = (self._read(name) for name in (FAILED_FILE, TRIAL_FILE, PAUSE_FILE))
        self.fetched = self._read(FETCHED_FILE)
        self.good, ready = self._known(good), self._known(probation)
        # The same document in both files: power was lost between the writes, and its probation is over.
        is_other = ready is not None and self.good is not None and ready.text_hash != self.good.text_hash
        if ready is not None and is_other and probation.get("starts", "").isdecimal():
            self.probation = Probation(ready, int(probation["starts"]))
        if {"text_hash", "limits", "detail"} <= set(failed):
            self.failed = FailedChange(failed["text_hash"], failed["limits"], failed["detail"])
        if {"text_hash", "limits"} <= set(trial) and trial.get("starts", "").isdecimal():
            self.trial = Trial(trial["text_hash"], trial["limits"], int(trial["starts"]))
        self.pause_began_at, self.paused_for = pause.get("began_at", ""), pause.get("paused_for", "")

    def _known(self, values: "dict[str, str]") -> "GoodDocument | None":
        """Return the document in a file, or None if there is none or this agent cannot read it."""
        if not {"text", "image"} <= set(values):
            return None
        found = GoodDocument(values["text"], values["image"], values.get("drain_s", "0"), values.get("newest", ""))
        try:
            self.fetched |= fetched_by(found.document)  # an earlier agent kept no list
        except ValueError as error:
            log(f"A stored document is ignored: {error}")
            return None
        return found

    @property
    def back(self) -> "GoodDocument | None":
        """Return the rollback target: the document that served last, even during its probation."""
        return self.probation.ready if self.probation else self.good

    def documents(self) -> "tuple[GoodDocument, ...]":
        """Return the documents to roll back to, nearest first."""
        return tuple(one for one in (self.probation and self.probation.ready, self.good) if one is not None)

    def find(self, text_hash: str) -> "GoodDocument | None":
        """Return the rollback document with this hash."""
        return next((one for one in self.documents() if one.text_hash == text_hash), None)

    def keep_ready(self, ready: GoodDocument) -> None:
        """Store the document of a server that became ready, on probation if another good document exists. Forget earlier failures."""
        probation = self.probation
        if self.good is None or self.good.text_hash == ready.text_hash:
            self.good, self.probation = ready, None
        elif probation is None or probation.ready.text_hash != ready.text_hash:
            self.probation = Probation(ready)
        else:
            self.probation = replace(probation, ready=ready)
        self.failed, self.trial = None, None
        self.write()

    def pass_probation(self) -> None:
        """Store the document on probation as the last known good one."""
        if self.probation is not None:
            self.good, self.probation = self.probation.ready, None
            self.write()

    def end_probation(self, text_hash: str) -> None:
        """Forget that this document was ready because its server stopped too often."""
        if self.probation is not None and self.probation.ready.text_hash == text_hash:
            self.probation = None
            self.write()

    def keep_failed(self, failed: FailedChange) -> None:
        """Store the document that was given up."""
        self.failed, self.trial = failed, None
        self.write()

    def has_other_api_key(self, version: str) -> bool:
        """Return whether a rollback document has another version of the API key."""
        versions = {one.document.secret_environment.get(API_KEY_VARIABLE) for one in self.documents()}
        return bool(versions - {None, version})

    def rotate_api_key(self, version: str) -> None:
        """Set this version of the API key in the rollback documents that have a key."""

        def rotated(one: GoodDocument) -> GoodDocument:
            return one.with_secrets({API_KEY_VARIABLE: version})

        if self.probation is not None:
            self.probation = replace(self.probation, ready=rotated(self.probation.ready))
        self.good = self.good and rotated(self.good)
        self.write()

    def starts_of(self, text_hash: str, limits: str) -> int:
        """Return the number of server starts of a document on trial, including starts by earlier agents."""
        trial = self.trial
        return trial.starts if trial and (trial.text_hash, trial.limits) == (text_hash, limits) else 0

    def keep_start(self, text_hash: str, limits: str, secrets: "Mapping[str, str]") -> None:
        """Count a start of a document on trial or probation before it happens, because it may stop the agent or the machine.

        From then on, the rollback documents have its secret versions, which are newer.
        """
        probation = self.probation
        if probation is not None and probation.ready.text_hash == text_hash:
            self.probation = replace(probation, starts=probation.starts + 1)
        else:
            self.trial = Trial(text_hash, limits, self.starts_of(text_hash, limits) + 1)
            if probation is not None:
                self.probation = replace(probation, ready=probation.ready.with_secrets(secrets))
            self.good = self.good and self.good.with_secrets(secrets)
        self.write()

    def forget_trial(self) -> None:
        """Forget the starts of a document because a newer one has arrived."""
        self.trial = None
        self.write()

    def keep_pause(self, began_at: str, paused_for: str = "") -> None:
        """Store the start time of a pause. An empty text means that the pause is over; `paused_for` is then its document."""
        self.pause_began_at, self.paused_for = began_at, paused_for
        self.write()

    def note_fetched(self, document: ServingDocument) -> None:
        """Store that the agent fetches the document's image and weights to the disk."""
        self.fetched |= fetched_by(document)
        self.write()

    def write(self) -> None:
        """Write the values that differ from the files. Repeated calls also write values that failed before."""
        self._store(GOOD_FILE, asdict(self.good) if self.good else {})
        probation = self.probation
        self._store(PROBATION_FILE, {**asdict(probation.ready), "starts": str(probation.starts)} if probation else {})
        self._store(FAILED_FILE, asdict(self.failed) if self.failed else {})
        trial = self.trial
        self._store(TRIAL_FILE, {**asdict(trial), "starts": str(trial.starts)} if trial else {})
        pause = {"began_at": self.pause_began_at, "paused_for": self.paused_for}
        self._store(PAUSE_FILE, {key: value for key, value in pause.items() if value})
        self._store(FETCHED_FILE, dict(self.fetched))

    def _read(self, name: str) -> "dict[str, str]":
        path = self.folder / name
        try:
            found: object = json.loads(path.read_text(encoding="utf-8"))
            values = cast("dict[object, object]", found) if isinstance(found, dict) else {}
        except FileNotFoundError:
            values: dict[object, object] = {}
        except (OSError, ValueError) as error:
            log(f"{path} cannot be read ({error}) and is treated as absent.")
            return {}
        self._written[name] = {str(key): str(value) for key, value in values.items()}
        return self._written[name].copy()

    def _store(self, name: str, values: "dict[str, str]") -> None:
        """Write a file, or delete it if there is nothing to store. A failure is logged, and retried by a call after `retry_s`."""
        if self._written.get(name) == values or time.monotonic() < self._unwritten_until.get(name, 0.0):
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
                part.replace(path)  # a reader finds the old or the new file, each complete
            else:
                path.unlink(missing_ok=True)
            self._sync_folder()
            self._written[name] = values
            self._unwritten_until.pop(name, None)
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            self._unwritten_until[name] = time.monotonic() + self.retry_s
            log(f"{path} cannot be written ({error}). If this agent restarts, the machine will use an older version.")

    def _sync_folder(self) -> None:
        """Flush the new names to the disk, so a power failure does not restore the older ones."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def fetched_by(document: ServingDocument) -> "dict[str, str]":
    """Return the files that the agent fetches for a document: the image, and the folders of weights, drafters and adapters from a bucket."""
    return {document.image: IMAGE_KIND, **{copy.path: WEIGHTS_KIND for copy in document.copies}}


def limits_name(text: "str | None", restart: "str | None" = None) -> str:
    """Return a short name of the limits' text that changes with the text and with a restart."""
    named = (text or "") if restart is None else f"{text or ''}\n{restart}"
    return hashlib.sha256(named.encode()).hexdigest()[:12]
