"""Publication of the server's phase, derived from its log, in guest attributes without secrets."""

import subprocess
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone

from gemma_serving.contracts.guest_attributes import (
    DETAIL_KEY,
    DETAIL_LIMIT_BYTES,
    DOCUMENT_HASH_KEY,
    LOADING,
    PHASE_KEY,
    RETRYING,
    STARTING,
    UPDATED_AT_KEY,
    WITH_REASON,
    reason_of,
)
from gemma_serving.contracts.log_phases import phase_in
from gemma_serving.contracts.masking import masked
from gemma_serving.vm_agent.base import CONTAINER, log
from gemma_serving.vm_agent.clock import CLOCK, AgentClock
from gemma_serving.vm_agent.cloud import CONNECTION_ERRORS, MetadataClient


def utc_now() -> str:
    """Return the time in the format of guest attributes: RFC 3339 in UTC, with milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class LogFollower:
    """Reader of the container's growing log. Keeps the last lines and derives the phase from them."""

    phase: str = LOADING
    detail: str = ""
    lines: deque[str] = field(default_factory=lambda: deque[str](maxlen=60))
    tell: "Callable[[str], None] | None" = None
    is_new: bool = True
    """False if an earlier agent followed it. Its lines are in Cloud Logging already."""
    clock: AgentClock = CLOCK
    _process: subprocess.Popen[str] | None = None
    _reader: threading.Thread | None = None

    def start(self) -> None:
        """Follow the log."""
        argv = ["docker", "logs", "-f", f"--tail={'all' if self.is_new else 0}", CONTAINER]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self._process = process
        self._reader = self.clock.start(self._read, process)

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self.add_line(line.rstrip())
            if self.tell is not None:
                self.tell(line.rstrip())

    def has_ended(self) -> bool:
        """Return whether docker no longer sends the log that was followed."""
        return self._process is not None and self._process.poll() is not None

    def follow_again(self) -> None:
        """Follow the log from now on."""
        self.is_new = False
        self.start()

    def add_line(self, line: str) -> None:
        """Record one line, and the phase that it shows."""
        self.lines.append(line)
        phase = phase_in(line, self.phase)
        if phase:
            self.phase = phase
            self.detail = line[-200:]

    def stop(self, *, wait_s: float = 0.0) -> tuple[str, ...]:
        """Stop and return the last lines. A container that just stopped may write for `wait_s`."""
        if self._process:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
            self._process.kill()
            self._process.wait()
        if self._reader:
            self._reader.join(5)
        return tuple(self.lines)


@dataclass
class PhasePublisher:
    """Writer of the phase to guest attributes. Removes secrets from every text."""

    metadata: MetadataClient
    heartbeat_s: float = 60.0
    """Interval between writes of an unchanged phase."""
    progress_s: float = 2.0
    """Minimum interval between two details of the same phase."""
    clock: AgentClock = CLOCK
    secrets: set[str] = field(default_factory=set[str], repr=False)
    tell: "Callable[[str], None] | None" = None
    """Called with each new phase, and with the reason of a failed attempt."""
    published: dict[str, str] = field(default_factory=dict[str, str])
    restarts: int = 0
    """Number of times that a server stopped, or did not start, and is started again."""
    _facts: dict[str, str] = field(default_factory=dict[str, str])
    _latest: tuple[str, str, str] = (STARTING, "", "")
    _logged: "tuple[str, str] | None" = None
    _published_at: float = float("-inf")
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def mask(self, text: str) -> str:
        """Return a text without known secrets and without tokens."""
        return masked(text, self.secrets)

    def remove_secrets(self, text: str) -> str:
        """Return the end of a text, at most DETAIL_LIMIT_BYTES, without known secrets and without tokens."""
        text = self.mask(text)
        return text.encode(errors="replace")[-DETAIL_LIMIT_BYTES:].decode(errors="ignore")

    def set_fact(self, key: str, value: str) -> None:
        """Publish a guest attribute. A failed write is repeated with the next phase."""
        with self._lock:
            self._facts[key] = value
            self._write(key, value)

    def publish(self, phase: str, text_hash: str, detail: str = "") -> None:
        """Publish a phase. A reader never sees a new hash with the phase of the previous document."""
        with self._lock:
            self._latest = (phase, text_hash, detail)
            detail = self.remove_secrets(detail)
            if self._logged != (phase, text_hash):
                self._logged = phase, text_hash
                self.restarts += phase == RETRYING
                reason = reason_of(detail) if phase in WITH_REASON else ""
                self._say(f"Document {text_hash[:12] or '(none)'}: {phase}.", reason)
            for key, value in self._facts.items():
                self._write(key, value)
            if self.published.get(DOCUMENT_HASH_KEY) != text_hash:
                for key, value in ((PHASE_KEY, STARTING), (DOCUMENT_HASH_KEY, text_hash)):
                    if not self._write(key, value):
                        return  # the next call starts with it
            is_new_phase = self.published.get(PHASE_KEY) != phase
            interval_s = self.heartbeat_s if self.published.get(DETAIL_KEY) == detail else self.progress_s
            if not is_new_phase and self.clock.now() - self._published_at < interval_s:
                return
            self._write(DETAIL_KEY, detail)
            self._write(PHASE_KEY, phase)
            self._write(UPDATED_AT_KEY, utc_now())
            self._published_at = self.clock.now()

    def report(self, text: str) -> None:
        """Write a line that is not a phase to the journal and to `tell`."""
        self._say(self.mask(text), "")

    def _say(self, line: str, reason: str) -> None:
        log(line)
        if self.tell is not None:
            self.tell(f"{line} {reason}".strip())

    def publish_again(self) -> None:
        """Publish the latest phase again: a heartbeat, or a detail that came too soon."""
        self.publish(*self._latest)

    def _write(self, key: str, value: str) -> bool:
        """Write a guest attribute if its value changed. Return False after a failure."""
        if self.published.get(key) == value:
            return True
        try:
            self.metadata.publish(key, value)
        except CONNECTION_ERRORS as error:
            log(f"Cannot write guest attribute {key}: {error}. Set the metadata enable-guest-attributes=TRUE.")
            return False
        self.published[key] = value
        return True
