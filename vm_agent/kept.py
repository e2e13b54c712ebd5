"""State that survives the agent and a reboot: documents, a pause, and fetched files."""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from contracts.guest_attributes import FAILED, PAUSE_BEGAN_KEY, PAUSE_ENDED_KEY, READY, RESTORING
from contracts.serving_document import API_KEY_VARIABLE, ServingDocument, document_hash, parse_document
from vm_agent.base import STATE_FOLDER, STATE_FOLDER_VARIABLE, environment_variable, log
from vm_agent.publishing import PhasePublisher, utc_now

STATE_FILE = "state.json"
IMAGE_KIND = "image"
WEIGHTS_KIND = "weights"


@dataclass
class AgentPacing:
    """Number and duration of the agent's attempts."""

    restart_delays_s: tuple[float, ...] = (2, 10, 40, 120)
    """Delays before each restart of a server. After the last one the document has failed."""
    waiting_delay_s: float = 300
    """Delay before each further attempt, until the run expires, if the cause is transient."""
    docker_poll_s: float = 2.0
    """Interval between calls of a docker that does not respond."""
    prepare_delays_s: tuple[float, ...] = (2, 10)
    """Delays for a changed document that cannot be prepared, while the old server serves."""
    trial_delays_s: tuple[float, ...] = (2,)
    """Delays for a changed document whose server stops before it was ready. Nothing serves then."""
    probation_delays_s: tuple[float, ...] = (2, 10, 40)
    """Delays for a document on probation. The fourth stop of its server is the last one."""
    probation_requests: float = 100
    """Completed requests that end a probation: several times one run of the smoke checks, whose prompts are short, so
    users' prompts are among them. The first long prompt usually crashes a bad server that became ready."""
    probation_s: float = 1800
    """Time after which one request is sufficient to end it. A judgement: long compared with the 52 s of pauses of four stops."""
    denied_budget_s: float = 600
    """Time during which a denied permission is not a failed attempt. A grant can take seven minutes or more (Google)."""
    denied_delay_s: float = 15
    steady_s: float = 600
    """Ready time after which the restart delays of a server start over."""
    health_lost_s: float = 120
    """Time without a response of /health after which a server that was ready is restarted."""
    health_poll_s: float = 2.0

    def waiting_delay_of_s(self, attempt: int) -> float:
        """Return the delay before an attempt, counted from 1, whose cause is transient."""
        return (*self.restart_delays_s, self.waiting_delay_s)[min(attempt - 1, len(self.restart_delays_s))]


@dataclass(frozen=True)
class GoodDocument:
    """A document to roll back to. `image` is the reference that was pulled."""

    text: str
    image: str
    drain_s: str = "0"
    newest: str = ""
    """JSON object of the secret versions that replaced the text's, by variable; or empty."""

    @property
    def text_hash(self) -> str:
        """Return the document's hash."""
        return document_hash(self.text)

    @property
    def document(self) -> ServingDocument:
        """Return the document with the pulled image and its newest secrets. Raises DocumentError."""
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
    """Starts of its server, including the start that became ready."""


@dataclass(frozen=True)
class FailedChange:
    """An abandoned document, under these limits and restart. `detail` is the reason, without secrets."""

    text_hash: str
    limits: str
    detail: str


@dataclass(frozen=True)
class Trial:
    """A document that was never ready, with its limits and the number of server starts."""

    text_hash: str
    limits: str
    starts: int = 0


@dataclass(frozen=True)
class Assignment:
    """A document to serve, with its version number and the hash of its text.

    `failed` is the failed change that the last known good document replaces, or None if this is the requested document.
    """

    version: int
    text_hash: str
    document: ServingDocument
    text: str
    failed: "FailedChange | None" = None

    @property
    def asked_hash(self) -> str:
        """Hash of the requested document."""
        return self.failed.text_hash if self.failed else self.text_hash

    def publish(self, publisher: PhasePublisher, phase: str, detail: str = "") -> None:
        """Publish a phase. After a failed change, it describes the failed document."""
        failed = self.failed
        if failed is None:
            publisher.publish(phase, self.text_hash, detail)
        else:
            publisher.publish(FAILED if phase == READY else RESTORING, failed.text_hash, failed.detail)


@dataclass
class KeptState:
    """One small file on the boot disk, without secrets, and its content in memory, so a full disk has no effect before a restart."""

    folder: Path = field(default_factory=lambda: Path(environment_variable(STATE_FOLDER_VARIABLE, STATE_FOLDER)))
    retry_s: float = 60.0
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
    _written: str = ""
    _unwritten_until: float = 0.0

    def __post_init__(self) -> None:
        """Read the file. An unreadable one is treated as absent."""
        path = self.folder / STATE_FILE
        try:
            self._written = path.read_text(encoding="utf-8")
            self._take(json.loads(self._written))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError) as error:
            log(f"{path} cannot be read ({error}) and is treated as absent.")

    def _take(self, stored: "dict[str, Any]") -> None:
        """Take over the stored state. Raises ValueError, TypeError and KeyError if this agent cannot read it."""
        good, ready = (raw and GoodDocument(**raw) for raw in (stored["good"], stored["ready"]))
        failed = stored["failed"] and FailedChange(**stored["failed"])
        trial = stored["trial"] and Trial(**stored["trial"])
        _ = [one.document for one in (good, ready) if one]
        self.good, self.probation = good, ready and Probation(ready, int(stored["starts"]))
        self.failed, self.trial, self.fetched = failed, trial, dict(stored["fetched"])
        self.pause_began_at, self.paused_for = str(stored["pause_began_at"]), str(stored["paused_for"])

    def _text(self) -> str:
        ready = self.probation.ready if self.probation else None
        documents = {"good": self.good, "ready": ready, "failed": self.failed, "trial": self.trial}
        stored: dict[str, object] = {name: asdict(one) if one else None for name, one in documents.items()}
        stored["starts"], stored["fetched"] = self.probation.starts if self.probation else 0, self.fetched
        stored["pause_began_at"], stored["paused_for"] = self.pause_began_at, self.paused_for
        return json.dumps(stored)

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

    def is_trial(self, assignment: Assignment) -> bool:
        """Return whether the document was never ready but another one was, so it can be rolled back."""
        return assignment.failed is None and self.back is not None and self.find(assignment.text_hash) is None

    def is_on_probation(self, assignment: Assignment) -> bool:
        """Return whether the document was ready, but is not yet the rollback target."""
        return self.probation is not None and self.probation.ready.text_hash == assignment.text_hash

    def starts(self, assignment: Assignment, limits: str) -> int:
        """Return the starts of a document on trial or probation, even by earlier agents."""
        if self.probation is not None and self.is_on_probation(assignment):
            return self.probation.starts
        trial = self.trial
        is_same = trial is not None and (trial.text_hash, trial.limits) == (assignment.text_hash, limits)
        return trial.starts if trial is not None and is_same and self.is_trial(assignment) else 0

    def keep_ready(self, ready: GoodDocument) -> None:
        """Store the document of a server that became ready, on probation if another good one exists."""
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
        """Store the abandoned document."""
        self.failed, self.trial = failed, None
        self.write()

    def has_other_api_key(self, version: str) -> bool:
        """Return whether a rollback document has another version of the API key."""
        versions = {one.document.secret_environment.get(API_KEY_VARIABLE) for one in self.documents()}
        return bool(versions - {None, version})

    def rotate_api_key(self, version: str) -> None:
        """Set this version of the API key in the rollback documents that have a key."""
        self._take_secrets({API_KEY_VARIABLE: version})
        self.write()

    def _take_secrets(self, versions: "Mapping[str, str]") -> None:
        if self.probation is not None:
            self.probation = replace(self.probation, ready=self.probation.ready.with_secrets(versions))
        self.good = self.good and self.good.with_secrets(versions)

    def keep_start(self, assignment: Assignment, limits: str) -> None:
        """Count a start of a document on trial or probation before it happens, because it may stop the machine.

        From then on, the rollback documents have its newer secret versions.
        """
        if self.probation is not None and self.is_on_probation(assignment):
            self.probation = replace(self.probation, starts=self.probation.starts + 1)
        else:
            self.trial = Trial(assignment.text_hash, limits, self.starts(assignment, limits) + 1)
            self._take_secrets(assignment.document.secret_environment)
        self.write()

    def forget_trial(self) -> None:
        """Forget the starts of a document because a newer one has arrived."""
        self.trial = None
        self.write()

    def begin_pause(self, publisher: PhasePublisher) -> None:
        """Store and publish that nothing serves from now on, unless a pause is in progress."""
        if not self.pause_began_at:
            self._keep_pause(publisher, utc_now(), "")

    def end_pause(self, publisher: PhasePublisher, asked_hash: str) -> None:
        """Store and publish the end of the pause of this document, if there was one."""
        if self.pause_began_at:
            self._keep_pause(publisher, self.pause_began_at, utc_now())
            self.pause_began_at, self.paused_for = "", asked_hash
            self.write()

    def forget_pause(self, publisher: PhasePublisher, text_hash: str) -> None:
        """Unpublish the pause of the previous change, unless it continues."""
        if not self.pause_began_at and self.paused_for not in {"", text_hash}:
            self._keep_pause(publisher, "", "")

    def _keep_pause(self, publisher: PhasePublisher, began_at: str, ended_at: str) -> None:
        self.pause_began_at, self.paused_for = began_at, ""
        self.write()
        publisher.set_fact(PAUSE_ENDED_KEY, ended_at)
        publisher.set_fact(PAUSE_BEGAN_KEY, began_at)

    def note_fetched(self, document: ServingDocument) -> None:
        """Store that the agent fetches the document's image and weights to the disk."""
        self.fetched |= fetched_by(document)
        self.write()

    def write(self) -> None:
        """Write the file if it differs. A failure is logged, and retried by a call after `retry_s`."""
        text, path, part = self._text(), self.folder / STATE_FILE, self.folder / f".{STATE_FILE}.part"
        if self._written == text or time.monotonic() < self._unwritten_until:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)  # a reader finds the old or the new file, each complete
            self._sync_folder()
            self._written, self._unwritten_until = text, 0.0
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            self._unwritten_until = time.monotonic() + self.retry_s
            log(f"{path} cannot be written ({error}). If this agent restarts, the machine will use an older version.")

    def _sync_folder(self) -> None:
        """Flush the new name to the disk, so a power failure does not restore the older one."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def fetched_by(document: ServingDocument) -> "dict[str, str]":
    """Return the fetched parts of a document: the image, and folders of weights."""
    return {document.image: IMAGE_KIND, **{copy.path: WEIGHTS_KIND for copy in document.copies}}
