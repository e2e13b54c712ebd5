"""Writer of the server's log to Cloud Logging, which keeps it after the machine is deleted."""

import json
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import NoReturn

from gemma_serving.contracts.machine_log import (
    AGENT_SOURCE,
    MACHINE_RESOURCE,
    SERVER_SOURCE,
    SOURCE_LABEL,
    account_parts,
    machine_log_name,
)
from gemma_serving.contracts.masking import LineMask
from gemma_serving.vm_agent.base import ServingError, log
from gemma_serving.vm_agent.clock import CLOCK, AgentClock
from gemma_serving.vm_agent.cloud import CONNECTION_ERRORS, MetadataClient, endpoint, google
from gemma_serving.vm_agent.publishing import PhasePublisher

ENTRIES_PER_WRITE = 500
WAITING_ENTRIES = 20_000
"""Entries kept while Cloud Logging does not respond. The oldest are dropped when full."""
LINE_LIMIT = 16 * 1024
"""Maximum characters kept of a line. Cloud Logging accepts 256 KB per entry."""


@dataclass
class LogShipper:
    """Writer of lines to Cloud Logging, in order. A failure never affects the server."""

    metadata: MetadataClient
    publisher: PhasePublisher
    period_s: float = 1.0
    patience_s: float = 15.0
    clock: AgentClock = CLOCK
    _entries: "deque[dict[str, object]]" = field(
        default_factory=lambda: deque[dict[str, object]](maxlen=WAITING_ENTRIES)
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _run: str = field(default_factory=lambda: secrets.token_hex(4))
    _count: int = 0
    _last: datetime = field(default_factory=lambda: datetime.fromtimestamp(0, timezone.utc))
    _problem: str = ""
    _server_mask: LineMask = field(init=False)
    """For successive lines, because a private key can span several."""

    def __post_init__(self) -> None:
        self._server_mask = LineMask(self.publisher.secrets)

    def server_line(self, line: str) -> None:
        """Add a line of the server's container."""
        self._add(SERVER_SOURCE, line, self._server_mask)

    def agent_line(self, line: str) -> None:
        """Add a line of the agent."""
        self._add(AGENT_SOURCE, line, self.publisher.mask)

    def _add(self, source: str, line: str, mask: Callable[[str], str]) -> None:
        if not line.strip():
            return
        text = mask(line)[:LINE_LIMIT]
        with self._lock:
            # Entries are sorted by time, so no two may have the same.
            self._last = max(datetime.now(timezone.utc), self._last + timedelta(microseconds=1))
            self._count += 1
            self._entries.append(
                {
                    "textPayload": text,
                    "timestamp": self._last.isoformat(timespec="microseconds").replace("+00:00", "Z"),
                    "insertId": f"{self._run}{self._count:010}",
                    "labels": {SOURCE_LABEL: source},
                }
            )

    def run(self) -> NoReturn:
        """Write added lines forever."""
        while True:
            self.clock.sleep(self.period_s if self.write() else self.patience_s)

    def write(self) -> bool:
        """Write added lines. After a failure keep them and return False; the journal gets each reason once."""
        while True:
            with self._lock:
                batch = [self._entries[at] for at in range(min(ENTRIES_PER_WRITE, len(self._entries)))]
            if not batch:
                return True
            problem = self._written(batch)
            if problem:
                if problem != self._problem:
                    log(f"Cannot write the log to Cloud Logging: {problem}")
                self._problem = problem
                return False
            self._problem = ""
            written = {str(entry["insertId"]) for entry in batch}
            with self._lock:
                while self._entries and self._entries[0]["insertId"] in written:
                    self._entries.popleft()

    def _written(self, entries: Sequence["dict[str, object]"]) -> str:
        """Write entries and return the error, or an empty string."""
        try:
            email = self.metadata.account()
            parts = account_parts(email)
            if parts is None:
                return f"{email} is not a project's service account."
            project, account = parts
            labels = {
                "project_id": project,
                "location": self.metadata.zone(),
                "namespace": account,
                "node_id": self.metadata.instance_name(),
            }
            body = {
                "logName": machine_log_name(project),
                "resource": {"type": MACHINE_RESOURCE, "labels": labels},
                "entries": list(entries),
                "partialSuccess": True,
            }
            google(self.metadata, f"{endpoint('logging')}v2/entries:write", verb="POST", body=json.dumps(body).encode())
        except (ServingError, *CONNECTION_ERRORS) as error:
            return str(error)
        return ""
