"""Find the newest start of a stack's server in Cloud Logging."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
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


def newest_start(stack: str, first_line: Callable[[str], str]) -> Sequence[PrintedLine]:
    """Return the server's lines since its newest start, oldest first; empty if none is found.

    `first_line` returns the kind of a line that is among the first of a start, and an empty text for any other line.
    Raises ScriptError if the logs cannot be read.
    """
    log = server_log(states.read(stack))
    lines = newest_first(google_api.connect(log.project), log, datetime.now(UTC) - RETENTION, LineMask(()))
    return since_start((line for line in lines if line.source in _SERVER), first_line)


def since_start(newest: Iterable[PrintedLine], first_line: Callable[[str], str]) -> Sequence[PrintedLine]:
    """Return the lines of the newest start, oldest first, from lines with the newest first."""
    found: deque[PrintedLine] = deque()
    kinds: set[str] = set()
    before = 0
    for line in islice(newest, MOST_LINES):
        kind = first_line(line.text)
        if kind in kinds or before > _BANNER_LINES:
            break
        if kind or not kinds:
            found.appendleft(line)
        before += bool(kinds)
        kinds |= {kind} - {""}
    return tuple(found) if kinds else ()
