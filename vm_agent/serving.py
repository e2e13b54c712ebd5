"""The agent: follows the document, serves it, restarts a server that ends."""

import threading
import time
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NoReturn

from contracts.guest_attributes import FAILED, FETCHING_WEIGHTS, LOADING, PULLING_IMAGE, READY, RETRYING, STARTING
from contracts.serving_document import (
    DOCUMENT_METADATA_KEY,
    DocumentError,
    ServingDocument,
    document_hash,
    parse_document,
)
from vm_agent.base import ServingError, SupersededError, environment_variable, log
from vm_agent.cloud import CONNECTION_ERRORS, DIRECT, MetadataClient, near_image, read_secret
from vm_agent.containers import (
    ContainerState,
    container_state,
    pull,
    remove_container,
    remove_other_models,
    start_container,
)
from vm_agent.publishing import LogFollower, PhasePublisher
from vm_agent.shipping import LogShipper
from vm_agent.weights import WeightsCopy

KILLED_EXIT_CODE = 137  # 128 + SIGKILL
USAGE_EXIT_CODE = 2  # Python's argparse: the command line is wrong, and stays wrong


@dataclass
class LatestDocument:
    """The newest text of the document. One thread sets it, the agent reads it. Of rapid changes only the last one counts."""

    _text: str | None = None
    _version: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def set(self, text: str | None) -> None:
        """Store a text; None means that the metadata key is absent. The same text again is no new version."""
        with self._changed:
            if self._version and text == self._text:
                return
            self._text = text
            self._version += 1
            self._changed.notify_all()

    def get(self) -> tuple[int, str | None]:
        """Return the newest version's number and text."""
        with self._changed:
            return self._version, self._text

    def is_newer_than(self, version: int) -> bool:
        """Whether there is a newer version than this one."""
        return self.wait_for_newer(version, 0)

    def wait_for_newer(self, version: int, timeout_s: float) -> bool:
        """Wait until there is a newer version than this one. Return False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._version > version, timeout_s)


def follow_document(metadata: MetadataClient, latest: LatestDocument, *, retry_s: float = 2.0) -> NoReturn:
    """Follow the document's metadata key for ever with waiting GETs."""
    etag: str | None = None
    while True:
        try:
            text, etag = metadata.attribute(DOCUMENT_METADATA_KEY, etag=etag)
            latest.set(text)
            if text is not None:
                continue
        except CONNECTION_ERRORS as error:
            log(f"The metadata server did not answer: {error}")
        time.sleep(retry_s)


@dataclass(frozen=True)
class Assignment:
    """One document to serve, with its version's number and the hash of its text."""

    version: int
    text_hash: str
    document: ServingDocument


@dataclass
class Agent:
    """Serves the newest document, one at a time, until a newer one arrives."""

    metadata: MetadataClient
    latest: LatestDocument
    publisher: PhasePublisher
    shipper: "LogShipper | None" = None
    """Gets the server's lines; None keeps them on the machine."""
    loopback: str = field(default_factory=lambda: environment_variable("GEMMA_SERVING_LOOPBACK", "127.0.0.1"))
    restart_delays_s: tuple[float, ...] = (2, 10, 40, 120)
    """Delays before each restart of a server that ended. After the last one the document has failed."""
    denied_budget_s: float = 600
    """How long a refused permission does not count as a failed attempt. Google says that a grant can take seven minutes or more."""
    denied_delay_s: float = 15
    steady_s: float = 600
    """After running for this long, a server may be restarted from the first delay on again."""
    health_lost_s: float = 120
    """A server that was ready is restarted if /health does not answer for this long."""
    health_poll_s: float = 2.0
    _known_secrets: set[str] = field(default_factory=set[str])
    """Versions whose values the publisher masks."""

    def run(self) -> NoReturn:
        """Serve for ever."""
        version = 0
        while True:
            if not self.latest.wait_for_newer(version, self.publisher.progress_s):
                self.publisher.publish_again()
                continue
            version, text = self.latest.get()
            try:
                self.serve(version, text)
            except SupersededError:
                log("A newer document has arrived.")

    def serve(self, version: int, text: str | None) -> None:
        """Serve one document. Return if no further attempt can succeed.

        Raises:
            SupersededError: a newer document has arrived.
        """
        if text is None:
            self.publisher.publish(STARTING, "", f"waiting for the metadata key {DOCUMENT_METADATA_KEY}")
            return
        text_hash = document_hash(text)
        self.publisher.publish(STARTING, text_hash)
        try:
            document = parse_document(text)
        except DocumentError as error:
            self.publisher.publish(FAILED, text_hash, str(error))
            return
        near = replace(document, image=near_image(self.metadata, document.image))
        self._serve_with_restarts(Assignment(version, text_hash, near))

    def _serve_with_restarts(self, assignment: Assignment) -> None:
        restarts, limit, first = 0, len(self.restart_delays_s), time.monotonic()
        while True:
            began = time.monotonic()
            try:
                self._serve_once(assignment)
            except ServingError as error:
                problem = error
            if time.monotonic() - began > self.steady_s:
                restarts = 0
            waits_for_grant = problem.denied and time.monotonic() - first < self.denied_budget_s
            final = not problem.retry or (restarts == limit and not waits_for_grant)
            detail = "\n".join([*problem.log_lines, str(problem)])
            self.publisher.publish(FAILED if final else RETRYING, assignment.text_hash, detail)
            if final:
                return
            delay_s = self.denied_delay_s if waits_for_grant else self.restart_delays_s[restarts]
            restarts += 0 if waits_for_grant else 1
            attempt = "Attempt after a refused permission" if waits_for_grant else f"Restart {restarts} of {limit}"
            log(f"{attempt} in {delay_s:g} s.")
            if self.latest.wait_for_newer(assignment.version, delay_s):
                raise SupersededError
            self.publisher.publish(STARTING, assignment.text_hash, f"{attempt}: {problem}")

    def _serve_once(self, assignment: Assignment) -> NoReturn:
        """Prepare while the previous document's server still answers, then replace that server and watch the new one.

        Raises:
            ServingError: the server ended or cannot be started.
            SupersededError: a newer document has arrived.
        """
        state = container_state()
        is_new = not (state and state.running and state.text_hash == assignment.text_hash)
        if is_new:
            secrets = self._prepare(assignment, lambda: self.latest.is_newer_than(assignment.version))
            if self.latest.is_newer_than(assignment.version):
                raise SupersededError
            self.publisher.publish(LOADING, assignment.text_hash, "starting the server")
            remove_container()
            if state and state.text_hash != assignment.text_hash:
                remove_other_models(assignment.document)
            start_container(assignment.document, assignment.text_hash, secrets)
        follower = LogFollower()
        follower.start()
        shipped = self._shipped(assignment.document, is_new=is_new)
        try:
            self._watch_server(assignment, follower)
        except ServingError as error:
            raise ServingError(str(error), follower.stop(wait_s=2.0), retry=error.retry) from None
        finally:
            follower.stop()
            shipped.stop(wait_s=0.0 if self.latest.is_newer_than(assignment.version) else 2.0)

    def _shipped(self, document: ServingDocument, *, is_new: bool) -> LogFollower:
        """Follow the log for Cloud Logging. Lines that a server printed before this agent started were shipped by the one before it."""
        if self.shipper is None:
            return LogFollower()
        try:
            self._learn_secrets(document)
        except ServingError as error:
            log(f"The server's lines are not written to Cloud Logging: its secrets cannot be masked ({error}).")
            return LogFollower()
        follower = LogFollower(tell=self.shipper.server_line, tail="all" if is_new else "0")
        follower.start()
        return follower

    def _learn_secrets(self, document: ServingDocument) -> None:
        """Read the secrets of a server that an earlier agent started, so that no line shows them. Raises ServingError."""
        for version in set(document.secret_environment.values()) - self._known_secrets:
            self.publisher.secrets.add(read_secret(self.metadata, version))
            self._known_secrets.add(version)

    def _prepare(self, assignment: Assignment, cancelled: Callable[[], bool]) -> dict[str, str]:
        """Pull the image, copy the weights and return the secrets' values by the names of their variables."""
        document = assignment.document

        def progress(phase: str) -> Callable[[str], None]:
            self.publisher.publish(phase, assignment.text_hash)
            return lambda detail: self.publisher.publish(phase, assignment.text_hash, detail)

        pull(self.metadata, document.image, progress=progress(PULLING_IMAGE), cancelled=cancelled)
        if document.weights is not None:
            WeightsCopy(self.metadata, document.weights, progress(FETCHING_WEIGHTS), cancelled).run()
        secrets = {name: read_secret(self.metadata, secret) for name, secret in document.secret_environment.items()}
        self.publisher.secrets |= set(secrets.values())
        self._known_secrets |= set(document.secret_environment.values())
        return secrets

    def _watch_server(self, assignment: Assignment, follower: LogFollower) -> NoReturn:
        text_hash = assignment.text_hash
        was_ready, lost_since, poll_s = False, 0.0, 0.1
        while True:
            problem = self._health_problem(assignment.document.port)
            if problem:
                _require_running(container_state())
            if not problem:
                was_ready, lost_since = True, 0.0
                self.publisher.publish(READY, text_hash)
            elif was_ready:
                lost_since = lost_since or time.monotonic()
                self.publisher.publish(LOADING, text_hash, f"/health does not answer any more: {problem}")
                if time.monotonic() - lost_since > self.health_lost_s:
                    remove_container()
                    raise ServingError(
                        f"The server was ready, then /health did not answer for {self.health_lost_s:.0f} s: {problem}"
                    )
            else:
                self.publisher.publish(follower.phase, text_hash, follower.detail)
            poll_s = min(1.0, poll_s * 1.2) if problem else self.health_poll_s
            if self.latest.wait_for_newer(assignment.version, poll_s):
                raise SupersededError

    def _health_problem(self, port: int) -> str:
        """Return what is wrong with the server's /health, or an empty text if it answers."""
        try:
            with DIRECT.open(f"http://{self.loopback}:{port}/health", timeout=5):
                return ""
        except urllib.error.HTTPError as error:
            with error:
                return f"status {error.code}"
        except CONNECTION_ERRORS as error:
            return str(getattr(error, "reason", error))


def _require_running(state: ContainerState | None) -> None:
    """Raise ServingError if the server's container has ended."""
    if state is None:
        raise ServingError("The server stopped: its container was removed.")
    if not state.running:
        killed = " (killed, most likely out of memory)" if state.exit_code == KILLED_EXIT_CODE else ""
        raise ServingError(
            f"The server stopped with exit code {state.exit_code}{killed}.", retry=state.exit_code != USAGE_EXIT_CODE
        )
