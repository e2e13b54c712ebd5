"""What outlives the agent and a reboot: the good document, those on probation and on trial, the one that failed, a pause, what was fetched."""

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
CONTAINER_FILE = "container.json"
IMAGE_KIND = "image"
WEIGHTS_KIND = "weights"


@dataclass(frozen=True)
class GoodDocument:
    """A document to go back to. `image` is the reference that was pulled, which the machine still has."""

    text: str
    image: str
    drain_s: str = "0"
    """Seconds for which its server drains by itself."""
    newest: str = ""
    """JSON object: the secret versions that took the place of the text's own, by the names of their variables; empty if none did."""

    @property
    def text_hash(self) -> str:
        """Return the document's hash."""
        return document_hash(self.text)

    @property
    def document(self) -> ServingDocument:
        """Return the document with the image that was pulled and its newest secrets. Raises DocumentError: an agent that knew more keys kept it."""
        parsed = parse_document(self.text)
        newest = cast("dict[str, str]", json.loads(self.newest or "{}"))
        return replace(parsed, image=self.image, secret_environment={**parsed.secret_environment, **newest})

    def with_secrets(self, versions: "Mapping[str, str]") -> "GoodDocument":
        """Return the document with newer versions of its secrets, so that a secret that was rotated stays rotated on the way back."""
        own = self.document.secret_environment
        newest = {name: versions.get(name, version) for name, version in own.items()}
        return self if newest == own else replace(self, newest=json.dumps(newest, sort_keys=True))


@dataclass(frozen=True)
class Probation:
    """A document whose server became ready, and has not served for long enough to be the one to go back to."""

    ready: GoodDocument
    starts: int = 1
    """How often its server was started, with the start that became ready. Each further start follows a server or a machine that ended."""


@dataclass(frozen=True)
class FailedChange:
    """A document that was given up, with the limits under which it failed. `detail` says why, without secrets."""

    text_hash: str
    limits: str
    detail: str


@dataclass(frozen=True)
class Trial:
    """A document that was never ready, with its limits, and how often its server was started."""

    text_hash: str
    limits: str
    starts: int = 0


@dataclass(frozen=True)
class ContainerHistory:
    """What the machine has learnt about the server's container.

    `is_proven` once a confined server was ready. `reason` is why the next one is privileged, empty if none is: with `is_certain` for every
    document of this machine, else for the one of `text_hash` only.
    """

    is_proven: bool = False
    reason: str = ""
    text_hash: str = ""
    is_certain: bool = False

    def reason_for(self, text_hash: str) -> str:
        """Return why a document's container is privileged; empty if it is not."""
        return self.reason if self.is_certain or text_hash == self.text_hash else ""

    def values(self) -> "dict[str, str]":
        """Return the file's content; nothing if nothing is known."""
        if self == ContainerHistory():
            return {}
        flags = {"proven": self.is_proven, "certain": self.is_certain}
        return {"reason": self.reason, "text_hash": self.text_hash, **{k: "yes" for k, v in flags.items() if v}}


@dataclass
class KeptState:
    """Small files on the boot disk, without secrets: a document names its secrets and never holds them.

    Memory holds what the files should hold, so that a full disk costs nothing until the agent starts again.
    """

    folder: Path = field(default_factory=lambda: Path(environment_variable(STATE_FOLDER_VARIABLE, STATE_FOLDER)))
    retry_s: float = 60.0
    """Interval between two attempts to write what could not be written."""
    good: "GoodDocument | None" = None
    """The last document that passed its probation; the first document of a machine needs none."""
    probation: "Probation | None" = None
    failed: "FailedChange | None" = None
    trial: "Trial | None" = None
    pause_began_at: str = ""
    paused_for: str = ""
    """Hash of the document whose pause ended; empty if the guest attributes hold none."""
    fetched: "dict[str, str]" = field(default_factory=dict[str, str])
    """Images and folders of weights that the agent has brought to the disk, each with its kind."""
    container: ContainerHistory = field(default_factory=ContainerHistory)
    _written: "dict[str, dict[str, str]]" = field(default_factory=dict[str, dict[str, str]])
    _unwritten_until: "dict[str, float]" = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        """Read the files. One that cannot be read counts as absent."""
        good, probation = self._read(GOOD_FILE), self._read(PROBATION_FILE)
        failed, trial, pause = (self._read(name) for name in (FAILED_FILE, TRIAL_FILE, PAUSE_FILE))
        self.fetched = self._read(FETCHED_FILE)
        self.good, ready = self._known(good), self._known(probation)
        # The same document in both files: the power went between them, and its probation is over.
        is_other = ready is not None and self.good is not None and ready.text_hash != self.good.text_hash
        if ready is not None and is_other and probation.get("starts", "").isdecimal():
            self.probation = Probation(ready, int(probation["starts"]))
        if {"text_hash", "limits", "detail"} <= set(failed):
            self.failed = FailedChange(failed["text_hash"], failed["limits"], failed["detail"])
        if {"text_hash", "limits"} <= set(trial) and trial.get("starts", "").isdecimal():
            self.trial = Trial(trial["text_hash"], trial["limits"], int(trial["starts"]))
        self.pause_began_at, self.paused_for = pause.get("began_at", ""), pause.get("paused_for", "")
        known = self._read(CONTAINER_FILE)
        proven, certain = known.get("proven") == "yes", known.get("certain") == "yes"
        self.container = ContainerHistory(proven, known.get("reason", ""), known.get("text_hash", ""), certain)

    def _known(self, values: "dict[str, str]") -> "GoodDocument | None":
        """Return a document from its file; None if there is none. One that this agent cannot read is none to go back to."""
        if not {"text", "image"} <= set(values):
            return None
        found = GoodDocument(values["text"], values["image"], values.get("drain_s", "0"), values.get("newest", ""))
        try:
            self.fetched |= fetched_by(found.document)  # an earlier agent kept no list
        except ValueError as error:
            log(f"A kept document counts as absent: {error}")
            return None
        return found

    @property
    def back(self) -> "GoodDocument | None":
        """Return the document to go back to: the one that served last, also if its probation has not ended."""
        return self.probation.ready if self.probation else self.good

    def documents(self) -> "tuple[GoodDocument, ...]":
        """Return the documents to go back to, the nearest first."""
        return tuple(one for one in (self.probation and self.probation.ready, self.good) if one is not None)

    def find(self, text_hash: str) -> "GoodDocument | None":
        """Return the document to go back to that has this hash."""
        return next((one for one in self.documents() if one.text_hash == text_hash), None)

    def keep_ready(self, ready: GoodDocument) -> None:
        """Keep the document of a server that became ready: on probation while there is another good one. Forget what failed before it."""
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
        """Keep the document on probation as the good one."""
        if self.probation is not None:
            self.good, self.probation = self.probation.ready, None
            self.write()

    def end_probation(self, text_hash: str) -> None:
        """Forget that this document was ready: its server ended too often."""
        if self.probation is not None and self.probation.ready.text_hash == text_hash:
            self.probation = None
            self.write()

    def keep_failed(self, failed: FailedChange) -> None:
        """Keep the document that was given up."""
        self.failed, self.trial = failed, None
        self.write()

    def has_other_api_key(self, version: str) -> bool:
        """Return whether a document to go back to has another version of the API key."""
        versions = {one.document.secret_environment.get(API_KEY_VARIABLE) for one in self.documents()}
        return bool(versions - {None, version})

    def rotate_api_key(self, version: str) -> None:
        """Give the documents to go back to this version of the API key, if they have a key."""

        def rotated(one: GoodDocument) -> GoodDocument:
            return one.with_secrets({API_KEY_VARIABLE: version})

        if self.probation is not None:
            self.probation = replace(self.probation, ready=rotated(self.probation.ready))
        self.good = self.good and rotated(self.good)
        self.write()

    def starts_of(self, text_hash: str, limits: str) -> int:
        """Return how often the server of a document on trial was started, also by agents before this one."""
        trial = self.trial
        return trial.starts if trial and (trial.text_hash, trial.limits) == (text_hash, limits) else 0

    def keep_start(self, text_hash: str, limits: str, secrets: "Mapping[str, str]") -> None:
        """Count a start of a document on trial or on probation, before it: the start may end the agent or the machine.

        From then on the documents to go back to have its secret versions, which are newer than theirs.
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
        """Forget how often a document was started: a newer one has come."""
        self.trial = None
        self.write()

    def keep_pause(self, began_at: str, paused_for: str = "") -> None:
        """Keep when a pause began. An empty text means that it has ended; `paused_for` is then the document whose pause it was."""
        self.pause_began_at, self.paused_for = began_at, paused_for
        self.write()

    def keep_fallback(self, reason: str, text_hash: str, *, is_certain: bool) -> None:
        """Keep that the machine's next server is privileged, before it starts: the start may end the agent or the machine."""
        self.container = ContainerHistory(self.container.is_proven, reason, text_hash, is_certain)
        self.write()

    def keep_container_ready(self, text_hash: str, *, is_confined: bool) -> None:
        """Keep what a server that is ready proves: confined containers work here, or only privileged ones do."""
        if is_confined:
            self.container = ContainerHistory(is_proven=True)
        elif self.container.reason_for(text_hash):
            self.container = replace(self.container, is_certain=True)
        self.write()

    def note_fetched(self, document: ServingDocument) -> None:
        """Keep that the agent brings the document's image and weights to the disk."""
        self.fetched |= fetched_by(document)
        self.write()

    def write(self) -> None:
        """Write what differs from the files. Called often, it also writes what could not be written before."""
        self._store(GOOD_FILE, asdict(self.good) if self.good else {})
        probation = self.probation
        self._store(PROBATION_FILE, {**asdict(probation.ready), "starts": str(probation.starts)} if probation else {})
        self._store(FAILED_FILE, asdict(self.failed) if self.failed else {})
        trial = self.trial
        self._store(TRIAL_FILE, {**asdict(trial), "starts": str(trial.starts)} if trial else {})
        pause = {"began_at": self.pause_began_at, "paused_for": self.paused_for}
        self._store(PAUSE_FILE, {key: value for key, value in pause.items() if value})
        self._store(FETCHED_FILE, dict(self.fetched))
        self._store(CONTAINER_FILE, self.container.values())

    def _read(self, name: str) -> "dict[str, str]":
        path = self.folder / name
        try:
            found: object = json.loads(path.read_text(encoding="utf-8"))
            values = cast("dict[object, object]", found) if isinstance(found, dict) else {}
        except FileNotFoundError:
            values: dict[object, object] = {}
        except (OSError, ValueError) as error:
            log(f"{path} cannot be read ({error}) and counts as absent.")
            return {}
        self._written[name] = {str(key): str(value) for key, value in values.items()}
        return self._written[name].copy()

    def _store(self, name: str, values: "dict[str, str]") -> None:
        """Write a file, or delete it if there is nothing to keep. A failure is logged, and the next call tries again after `retry_s`."""
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
                part.replace(path)  # a reader finds the old file or the new one, whole
            else:
                path.unlink(missing_ok=True)
            self._sync_folder()
            self._written[name] = values
            self._unwritten_until.pop(name, None)
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            self._unwritten_until[name] = time.monotonic() + self.retry_s
            log(
                f"{path} cannot be written ({error}). After a restart of this agent the machine would know an older one."
            )

    def _sync_folder(self) -> None:
        """Bring the new names to the disk: a loss of power must not bring the older ones back."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def fetched_by(document: ServingDocument) -> "dict[str, str]":
    """Return what the agent brings to the disk for a document: the image, and the folder of weights from a bucket."""
    weights = {document.weights.path: WEIGHTS_KIND} if document.weights is not None else {}
    return {document.image: IMAGE_KIND, **weights}


def limits_name(text: "str | None") -> str:
    """Return a short name of the limits' text, so that a change of them is noticed."""
    return hashlib.sha256((text or "").encode()).hexdigest()[:12]
