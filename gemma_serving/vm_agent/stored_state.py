"""State that survives the agent and a reboot: documents, a pause, and fetched files."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from gemma_serving.contracts.guest_attributes import FAILED, PAUSE_BEGAN_KEY, PAUSE_ENDED_KEY, READY, RESTORING
from gemma_serving.contracts.serving_document import API_KEY_VARIABLE, ServingDocument, document_hash, parse_document
from gemma_serving.vm_agent.base import STATE_FOLDER, STATE_FOLDER_VARIABLE, environment_variable, log
from gemma_serving.vm_agent.clock import CLOCK, AgentClock
from gemma_serving.vm_agent.publishing import PhasePublisher, utc_now

STATE_FILE = "state.json"
IMAGE_KIND = "image"
WEIGHTS_KIND = "weights"
UNKNOWN_PAUSE = "unknown"
"""Value of `paused_for` if the file does not tell whether guest attributes have a pause. It differs from each hash."""
Value = TypeVar("Value")


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
class DocumentTrial:
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
class StoredState:
    """One small file on the boot disk, without secrets, and its content in memory, so a full disk has no effect before a restart."""

    folder: Path = field(default_factory=lambda: Path(environment_variable(STATE_FOLDER_VARIABLE, STATE_FOLDER)))
    retry_s: float = 60.0
    clock: AgentClock = CLOCK
    good: "GoodDocument | None" = None
    """Last document that passed its probation. The first document of a machine needs none."""
    probation: "Probation | None" = None
    failed: "FailedChange | None" = None
    trial: "DocumentTrial | None" = None
    pause_began_at: str = ""
    paused_for: str = ""
    """Hash of the document whose pause ended, empty if the guest attributes have no pause, or UNKNOWN_PAUSE."""
    fetched: "dict[str, str]" = field(default_factory=dict[str, str])
    """Images and weights folders that the agent fetched to the disk, each with its kind."""
    _written: str = ""
    _unwritten_until: float = 0.0

    def __post_init__(self) -> None:
        """Read the file. One that is not a JSON object is treated as absent, with a line in the log."""
        try:
            self._written = self._path.read_text(encoding="utf-8")
            content = json_object(json.loads(self._written))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError) as error:
            log(f"{self._path} cannot be read ({error}) and is treated as absent.")
            return
        self._take(content)

    @property
    def _path(self) -> Path:
        return self.folder / STATE_FILE

    def _take(self, content: "Mapping[str, Any]") -> None:
        """Take over each entry on its own. The log names an entry that cannot be read, and the others are kept.

        "Absent" is the safe reading of the documents and of `fetched`:
        - `good`, `ready`: the agent rolls back only to a document that served. Without `good`, `ready` is the only target.
          Without `ready`, its running server is adopted and starts a new probation.
        - `starts`: one start, so a document on probation gets at most its full number of starts again.
        - `failed`, `trial`: the requested document is tried once more, within a trial's limits, and rolled back again.
        - `fetched`: nothing is deleted that the agent may not have fetched. It stays on the disk.
        It is not the safe reading of a pause: guest attributes may still have one. It is unknown, and unpublished next.
        """
        self.good = self._entry(content, "good", optional_document, None)
        ready = self._entry(content, "ready", optional_document, None)
        starts = self._entry(content, "starts", count, 1)
        self.probation = Probation(ready, max(starts, 1)) if ready else None
        self.failed = self._entry(content, "failed", optional_failed_change, None)
        self.trial = self._entry(content, "trial", optional_trial, None)
        self.fetched = self._entry(content, "fetched", fetched_kinds, {})
        began_at = self._entry(content, "pause_began_at", text_value, UNKNOWN_PAUSE)
        paused_for = self._entry(content, "paused_for", text_value, UNKNOWN_PAUSE)
        self.pause_began_at = "" if began_at == UNKNOWN_PAUSE else began_at
        self.paused_for = UNKNOWN_PAUSE if began_at == UNKNOWN_PAUSE and not paused_for else paused_for

    def _entry(
        self, content: "Mapping[str, Any]", name: str, read: "Callable[[Any], Value]", otherwise: Value
    ) -> Value:
        """Return an entry of the file, or `otherwise` and a line in the log if it is missing or cannot be read."""
        try:
            return read(content[name])
        except KeyError as error:
            reason = f"{error} is missing"
        except (ValueError, TypeError, AttributeError) as error:
            reason = str(error)
        log(f"Warning: {self._path}: the entry `{name}` cannot be read ({reason}). The other entries are kept.")
        return otherwise

    def _text(self) -> str:
        """Return the content of the file: one entry for each that `_take` reads."""
        probation = self.probation
        documents = {
            "good": self.good,
            "ready": probation.ready if probation else None,
            "failed": self.failed,
            "trial": self.trial,
        }
        stored: dict[str, object] = {name: asdict(one) if one else None for name, one in documents.items()}
        stored["starts"] = probation.starts if probation else 0
        stored["fetched"] = self.fetched
        stored["pause_began_at"] = self.pause_began_at
        stored["paused_for"] = self.paused_for
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
            self.trial = DocumentTrial(assignment.text_hash, limits, self.starts(assignment, limits) + 1)
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
        text = self._text()
        part = self.folder / f".{STATE_FILE}.part"
        if self._written == text or self.clock.now() < self._unwritten_until:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)  # a reader finds the old or the new file, each complete
            self._sync_folder()
            self._written, self._unwritten_until = text, 0.0
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            self._unwritten_until = self.clock.now() + self.retry_s
            log(
                f"{self._path} cannot be written ({error}). If this agent restarts, the TPU VM will use an older version."
            )

    def _sync_folder(self) -> None:
        """Flush the new name to the disk, so a power failure does not restore the older one."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def fetched_by(document: ServingDocument) -> "dict[str, str]":
    """Return what the agent fetches for a document, each with its kind: the image, and the folders of weights, drafters and adapters."""
    return {document.image: IMAGE_KIND, **{copy.path: WEIGHTS_KIND for copy in document.copies}}


def json_object(raw: object) -> "dict[str, Any]":
    """Return a JSON object as it is. Raises TypeError for another value."""
    if not isinstance(raw, dict):
        raise TypeError(f"{type(raw).__name__} instead of an object")
    return cast("dict[str, Any]", raw)


def text_value(raw: object) -> str:
    """Return a text as it is. Raises TypeError for another value."""
    if not isinstance(raw, str):
        raise TypeError(f"{type(raw).__name__} instead of text")
    return raw


def count(raw: object) -> int:
    """Return a number of starts as it is. Raises TypeError for another value and ValueError for a negative number."""
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise TypeError(f"{type(raw).__name__} instead of a whole number")
    if raw < 0:
        raise ValueError(f"{raw} starts")
    return raw


def texts(raw: object) -> "dict[str, str]":
    """Return an object whose values are texts. Raises TypeError for another value."""
    return {name: text_value(value) for name, value in json_object(raw).items()}


def optional_document(raw: object) -> "GoodDocument | None":
    """Return a stored document that this agent can serve, or None. Raises ValueError and TypeError for another value."""
    if raw is None:
        return None
    stored = GoodDocument(**texts(raw))
    texts(json.loads(stored.newest or "{}"))
    float(stored.drain_s)
    parse_document(stored.text)
    return stored


def optional_failed_change(raw: object) -> "FailedChange | None":
    """Return a stored failed change, or None. Raises TypeError for another value."""
    return None if raw is None else FailedChange(**texts(raw))


def optional_trial(raw: object) -> "DocumentTrial | None":
    """Return a stored trial, or None. Raises KeyError, TypeError and ValueError for another value."""
    if raw is None:
        return None
    entries = json_object(raw)
    return DocumentTrial(text_value(entries["text_hash"]), text_value(entries["limits"]), count(entries["starts"]))


def fetched_kinds(raw: object) -> "dict[str, str]":
    """Return the stored images and folders of weights. Raises TypeError and ValueError for another value."""
    kinds = texts(raw)
    unknown = set(kinds.values()) - {IMAGE_KIND, WEIGHTS_KIND}
    if unknown:
        raise ValueError(f"unknown kinds {sorted(unknown)}")
    return kinds
