"""Document's metadata key: its newest text and limits."""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from gemma_serving.contracts.rollout import ROLLOUT_METADATA_KEY, RolloutLimits, parse_rollout
from gemma_serving.contracts.serving_document import DOCUMENT_METADATA_KEY, RESTART_METADATA_KEY, RESTART_NONCE
from gemma_serving.vm_agent.base import log
from gemma_serving.vm_agent.clock import CLOCK, AgentClock
from gemma_serving.vm_agent.cloud import CONNECTION_ERRORS, MetadataClient


@dataclass
class LatestDocument:
    """Newest text of the document, with its limits and the last requested restart. Threads set it, the agent reads it.

    Only the last of several rapid changes counts.
    """

    clock: AgentClock = CLOCK
    _text: str | None = None
    _limits: str | None = None
    _restart: str | None = None
    _parsed: RolloutLimits = field(default_factory=RolloutLimits)
    _version: int = 0
    _given_up: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def set(self, text: str | None, limits: str | None = None, restart: str | None = None) -> None:
        """Store a text, or None if the metadata key is absent. The same text again is not a new version.

        `restart` counts only with the first text: an agent that starts again must know it before it adopts the server.
        """
        with self._changed:
            if self._restart is None and not self._version:
                self._restart = restart if restart and RESTART_NONCE.fullmatch(restart) else None
            if self._version and text == self._text:
                self.set_limits(limits)
                return
            self._text = text
            self._take_limits(limits)
            self._version += 1
            self._changed.notify_all()

    def set_limits(self, limits: str | None) -> None:
        """Store the limits of the document. If the current version was abandoned, it is retried."""
        with self._changed:
            if limits == self._limits:
                return
            self._take_limits(limits)
            if self._given_up == self._version:
                self._version += 1
                self._changed.notify_all()

    def set_restart(self, restart: str | None) -> None:
        """Store the requested restart. A new one starts a new version of the same text."""
        with self._changed:
            if restart is None or restart == self._restart:
                return
            if not RESTART_NONCE.fullmatch(restart):
                log(f"{RESTART_METADATA_KEY} is ignored: it must consist of letters, digits, `.`, `:` and `-`.")
                return
            self._restart = restart
            if self._version:
                self._version += 1
                self._changed.notify_all()

    def restart(self) -> str | None:
        """Return the last requested restart, or None if none was requested."""
        with self._changed:
            return self._restart

    def limits_name(self) -> str:
        """Return a name of limits and restart. Under another one a failed document is tried again."""
        with self._changed:
            text = self._limits or ""
            named = text if self._restart is None else f"{text}\n{self._restart}"
            return hashlib.sha256(named.encode()).hexdigest()[:12]

    def _take_limits(self, text: str | None) -> None:
        self._limits = text
        try:
            self._parsed = parse_rollout(text)
        except (ValueError, TypeError, AttributeError) as error:
            log(f"The limits of the change are ignored: {error}.")
            self._parsed = RolloutLimits()

    def give_up(self, version: int) -> None:
        """Record that this version is not retried."""
        with self._changed:
            self._given_up = version

    def get(self) -> tuple[int, str | None]:
        """Return the newest version's number and text."""
        with self._changed:
            return self._version, self._text

    def limits(self) -> RolloutLimits:
        """Return the limits, or the defaults if they cannot be read."""
        with self._changed:
            return self._parsed

    def is_newer_than(self, version: int) -> bool:
        """Return whether a newer version than this one exists."""
        with self._changed:
            return self._version > version

    def wait_for_newer(self, version: int, timeout_s: float) -> bool:
        """Wait until a newer version than this one exists. Return False after `timeout_s`."""
        return self.clock.wait_for(self._changed, lambda: self._version > version, timeout_s)


def follow_document(metadata: MetadataClient, latest: LatestDocument) -> NoReturn:
    """Follow the document's metadata key forever, and read its limits and the restart each time."""

    def tell(text: "str | None") -> None:
        keys = (ROLLOUT_METADATA_KEY, RESTART_METADATA_KEY)
        latest.set(text, *(None if text is None else metadata.attribute(key)[0] for key in keys))

    follow_key(metadata, DOCUMENT_METADATA_KEY, tell, retry_s=2.0)


def follow_key(
    metadata: MetadataClient, key: str, tell: Callable[[str | None], None], *, retry_s: float = 15.0
) -> NoReturn:
    """Follow a metadata key forever. A value is read again if `tell` could not read what belongs to it."""
    etag: str | None = None
    while True:
        try:
            text, new = metadata.attribute(key, etag=etag)
            tell(text)
            etag = new
            if text is not None:
                continue
        except CONNECTION_ERRORS as error:
            log(f"The metadata server did not respond: {error}")
        metadata.clock.sleep(retry_s)
