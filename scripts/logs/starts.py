"""Find the newest start of a stack's server in Cloud Logging."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cloud import google_api
from contracts.masking import LineMask
from engine import state as states
from scripts.logs.place import server_log
from scripts.logs.reading import PrintedLine, newest_first

RETENTION: Final = timedelta(days=30)
"""Default retention of Cloud Logging's bucket `_Default` (Quotas and limits, 2026-11)."""
MOST_LINES: Final = 50_000
"""Lines that are searched: a start is before all lines that its server wrote since."""
_SERVER: Final = frozenset({"server", "stdout", "stderr"})
_BANNER_LINES: Final = 20
"""Lines before a first line that can have another, such as vLLM's banner with its version."""


def newest_start(stack: str, is_first: Callable[[str], bool]) -> Sequence[PrintedLine]:
    """Return the server's lines since its newest start, oldest first; empty if none is found.

    `is_first` recognizes the first lines of a start. Raises ScriptError if the logs cannot be read.
    """
    log = server_log(states.read(stack))
    lines = newest_first(google_api.connect(log.project), log, datetime.now(UTC) - RETENTION, LineMask(()))
    return since_start((line for line in lines if line.source in _SERVER), is_first)


def since_start(newest: Iterable[PrintedLine], is_first: Callable[[str], bool]) -> Sequence[PrintedLine]:
    """Return the lines of the newest start, oldest first, from lines with the newest first."""
    found: deque[PrintedLine] = deque()
    before = 0
    for number, line in enumerate(newest):
        first = is_first(line.text)
        if before:
            before += 1
        elif first:
            before = 1
        if first or not before:
            found.appendleft(line)
        if before > _BANNER_LINES or number >= MOST_LINES:
            break
    return tuple(found) if before else ()
