"""One lock of a stack's state: its holder, and whether a killed command left it."""

import math
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gemma_serving.contracts.processes import is_alive, seconds_of

FILE: Final = "file://"
"""Start of the place of a lock in a file backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackLock:
    """One lock: its file or URL, its holder, and when it was acquired (RFC 3339)."""

    place: str
    user: str
    host: str
    pid: int
    since: str

    @property
    def holder(self) -> str:
        """Holder of the lock, for display."""
        return f"{self.user}@{self.host} (process {self.pid})"

    def held(self, now: datetime | None = None) -> str:
        """Return how long and by whom, such as `locked for 12 min by ana@vm (process 86)`."""
        since_s = seconds_of(self.since)
        if math.isinf(since_s):
            return f"locked by {self.holder}"
        minutes = int((now or datetime.now(UTC)).timestamp() - since_s) // 60
        short = f"{minutes} min" if minutes > 0 else "less than 1 min"
        return f"locked for {short if minutes < 2 * 60 else f'{minutes // 60} h'} by {self.holder}"

    @property
    def is_dead(self) -> bool:
        """True if its process ran on this host and is gone. One on another host counts as alive."""
        return self.host == socket.gethostname() and not is_alive(self.pid, self.since)

    @property
    def is_left(self) -> bool:
        """True if a killed command left it: its process is gone and its file, read after that, is not. A command that ends deletes its lock first."""
        is_file = self.place.startswith(FILE)
        return self.is_dead and (not is_file or Path(self.place.removeprefix(FILE)).exists())
