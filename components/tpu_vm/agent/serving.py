"""The agent: follows the document, runs it, restarts what crashes."""

import threading
import time
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from components.tpu_vm.agent.base import DOCUMENT_KEY, ServingError, SupersededError, log, setting
from components.tpu_vm.agent.cloud import BROKEN, DIRECT, Metadata, read_secret
from components.tpu_vm.agent.containers import ContainerState, container_state, pull, remove_container, start_container
from components.tpu_vm.agent.document import Document, document_hash, parse_document
from components.tpu_vm.agent.phases import LogFollower, Publisher
from components.tpu_vm.agent.weights import WeightsCopy

KILLED_EXIT_CODE = 137  # 128 + SIGKILL


@dataclass
class Wanted:
    """The newest document. Set by the watching thread, read by the agent; of rapid changes the last one wins."""

    _text: str | None = None
    _version: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def set(self, text: str | None) -> None:
        """Take over a document; the same text again is no change."""
        with self._changed:
            if self._version and text == self._text:
                return
            self._text = text
            self._version += 1
            self._changed.notify_all()

    def latest(self) -> tuple[int, str | None]:
        """Return the newest version's number and text."""
        with self._changed:
            return self._version, self._text

    def wait_beyond(self, version: int, timeout_s: float) -> bool:
        """Wait until there is a newer version than this one; False when the time ran out."""
        with self._changed:
            return self._changed.wait_for(lambda: self._version > version, timeout_s)


def watch(metadata: Metadata, wanted: Wanted, *, pause_s: float = 2.0) -> NoReturn:
    """Follow the document for ever with waiting GETs."""
    etag: str | None = None
    while True:
        try:
            text, etag = metadata.attribute(DOCUMENT_KEY, etag=etag)
            wanted.set(text)
            if text is not None:
                continue
        except BROKEN as error:
            log(f"The metadata server did not answer: {error}")
        time.sleep(pause_s)


@dataclass
class Agent:
    """Runs the wanted document, one at a time, until a newer one arrives."""

    metadata: Metadata
    wanted: Wanted
    publisher: Publisher
    loopback: str = field(default_factory=lambda: setting("GEMMA_SERVING_LOOPBACK", "127.0.0.1"))
    restart_delays_s: tuple[float, ...] = (2, 10, 40, 120)
    """Pauses before the restarts of a server that ends; as many restarts as there are pauses."""
    steady_s: float = 600
    """After running for this long, a server gets all its restarts back."""
    health_lost_s: float = 120
    """A server that was ready and does not answer for this long is restarted."""
    health_poll_s: float = 2.0

    def run(self) -> NoReturn:
        """Serve for ever."""
        version = 0
        while True:
            if not self.wanted.wait_beyond(version, self.publisher.progress_s):
                self.publisher.repeat()
                continue
            version, text = self.wanted.latest()
            try:
                self.serve(version, text)
            except SupersededError:
                log("A newer document has arrived.")

    def serve(self, version: int, text: str | None) -> None:
        """Run one document until it is superseded (raises SupersededError) or has failed for good (returns)."""
        if text is None:
            self.publisher.tell("starting", "", f"waiting for the metadata key {DOCUMENT_KEY}")
            return
        text_hash = document_hash(text)
        self.publisher.tell("starting", text_hash)
        restarts = 0
        while True:
            began = time.monotonic()
            try:
                self._serve_once(version, parse_document(text))
            except ServingError as error:
                self.publisher.tell("failed", text_hash, "\n".join([*error.lines, str(error)]))
                if time.monotonic() - began > self.steady_s:
                    restarts = 0
                if not error.retry or restarts == len(self.restart_delays_s):
                    return
            delay_s = self.restart_delays_s[restarts]
            restarts += 1
            log(f"Restart {restarts} of {len(self.restart_delays_s)} in {delay_s:g} s.")
            if self.wanted.wait_beyond(version, delay_s):
                raise SupersededError
            self.publisher.tell("starting", text_hash, f"restart {restarts} of {len(self.restart_delays_s)}")

    def _serve_once(self, version: int, document: Document) -> NoReturn:
        """Prepare while the server of the document before still answers, swap, watch.

        Raises ServingError when the server ends.
        """
        state = container_state()
        if not (state and state.running and state.document_hash == document.text_hash):
            secrets = self._prepare(document, lambda: self.wanted.latest()[0] > version)
            if self.wanted.latest()[0] > version:
                raise SupersededError
            self.publisher.tell("loading", document.text_hash, "starting the server")
            remove_container()
            start_container(document, secrets)
        follower = LogFollower()
        follower.start()
        try:
            self._watch_server(version, document, follower)
        except ServingError as error:
            raise ServingError(str(error), follower.finish(last_words_s=2.0)) from None
        finally:
            follower.finish()

    def _prepare(self, document: Document, cancelled: Callable[[], bool]) -> dict[str, str]:
        def progress(phase: str) -> Callable[[str], None]:
            self.publisher.tell(phase, document.text_hash)
            return lambda detail: self.publisher.tell(phase, document.text_hash, detail)

        pull(self.metadata, document.image, progress=progress("pulling image"), cancelled=cancelled)
        if document.weights.mode == "bucket":
            WeightsCopy(self.metadata, document.weights, progress("fetching weights"), cancelled).run()
        secrets = {name: read_secret(self.metadata, secret) for name, secret in document.secret_env.items()}
        self.publisher.secrets |= set(secrets.values())
        return secrets

    def _watch_server(self, version: int, document: Document, follower: LogFollower) -> NoReturn:
        was_ready, lost_since, pause_s = False, 0.0, 0.1
        while True:
            problem = self._health(document.port)
            if problem:
                _require_running(container_state())
            if not problem:
                was_ready, lost_since = True, 0.0
                self.publisher.tell("ready", document.text_hash)
            elif was_ready:
                lost_since = lost_since or time.monotonic()
                self.publisher.tell("loading", document.text_hash, f"/health was lost: {problem}")
                if time.monotonic() - lost_since > self.health_lost_s:
                    remove_container()
                    raise ServingError(
                        f"The server was ready, then /health was lost for {self.health_lost_s:.0f} s: {problem}"
                    )
            else:
                self.publisher.tell(follower.phase, document.text_hash, follower.detail)
            pause_s = min(1.0, pause_s * 1.2) if problem else self.health_poll_s
            if self.wanted.wait_beyond(version, pause_s):
                raise SupersededError

    def _health(self, port: int) -> str:
        """Return an empty text when the server is healthy, else what is wrong."""
        try:
            with DIRECT.open(f"http://{self.loopback}:{port}/health", timeout=5):
                return ""
        except urllib.error.HTTPError as error:
            with error:
                return f"status {error.code}"
        except BROKEN as error:
            return str(getattr(error, "reason", error))


def _require_running(state: ContainerState | None) -> None:
    if state is None:
        raise ServingError("The server stopped: its container was removed.")
    if not state.running:
        killed = " (killed, most likely out of memory)" if state.exit_code == KILLED_EXIT_CODE else ""
        raise ServingError(f"The server stopped with exit code {state.exit_code}{killed}.")
