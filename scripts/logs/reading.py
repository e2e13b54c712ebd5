"""Read log lines from Cloud Logging, once or continuously."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final

from gemma_serving.cloud import google_api
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError
from gemma_serving.cloud.secret_values import read_secret
from gemma_serving.cloud.server_logs import (
    Entry,
    LogQuery,
    Mask,
    ServerLine,
    entries,
    lines_of,
    moment_of,
    why_unread,
)
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.guest_attributes import FAILED
from gemma_serving.contracts.masking import LineMask, masked
from gemma_serving.contracts.server_errors import server_error
from gemma_serving.contracts.stack_facts import CloudFacts, StackFacts
from gemma_serving.contracts.three_answers import Present
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.logs.place import ServerLog, known_cause, server_log

if TYPE_CHECKING:
    from gemma_serving.stacks.hooks.failure_hints import Cause

PERIOD_S: Final = 2.0
"""Polling interval in seconds. Cloud Logging allows 60 reads per minute and project (2026-11)."""
OVERLAP: Final = timedelta(seconds=60)
"""An entry can become visible after a later one."""
_PAGE: Final = 1000
_LONGEST_START: Final = timedelta(hours=1)
"""Longest time from the first log line of a revision to its failure: Cloud Run's longest startup probe, with a margin."""
SERVES: Final = "Application startup complete"
"""vLLM's last line of a start (uvicorn, lifespan/on.py)."""
PHASE_LINE: Final = re.compile(r"Document (?P<document>\S+): (?P<phase>[a-z ]+)\.(?: (?P<reason>.*))?", re.DOTALL)
"""Line of the agent about a phase (`vm_agent.publishing`)."""


def newest_lines(api: GoogleApi, log: ServerLog, since: datetime, count: int, mask: Mask) -> Sequence[ServerLine]:
    """Return the newest `count` lines since a time, oldest first. Raises ScriptError."""
    query = LogQuery(project=log.project, filter=log.filter(since), page_size=min(_PAGE, count))
    found: list[ServerLine] = []
    for entry in _read(api, log, query):
        found[:0] = lines_of(entry)
        if len(found) >= count:
            break
    # In order, because a mask can depend on the previous line.
    return [line.masked(mask) for line in found][-count:]


def oldest_lines(api: GoogleApi, log: ServerLog, since: datetime) -> Sequence[ServerLine]:
    """Return the lines of the first _PAGE entries since a time, oldest first. Raises ScriptError."""
    first = islice(_read(api, log, _oldest_first(log, since)), _PAGE)
    return [line.masked(masked) for entry in first for line in lines_of(entry)]


def _oldest_first(log: ServerLog, since: datetime) -> LogQuery:
    return LogQuery(project=log.project, filter=log.filter(since), order="timestamp asc", page_size=_PAGE)


def newest_cause(log: ServerLog, lines: Sequence[ServerLine]) -> "Cause | None":
    """Return the cause in the logs of the newest revision or node that has one.

    A fixed failure must not hide the next start's, whose logs start later.
    """
    places: dict[str, list[ServerLine]] = {}
    for line in lines:
        places.setdefault(line.where, []).append(line)
    causes = (
        known_cause(log, [line.text for line in found], reason=_published_reason(found))
        for found in reversed(places.values())
    )
    return next((cause for cause in causes if cause is not None), None)


def with_known_cause(state: StackState, facts: StackFacts) -> StackFacts:
    """Return the facts with the cause from the log of a service that did not start, instead of Google's message."""
    cloud = facts.cloud
    if cloud is None or cloud.state != "FAILED" or cloud.stored is None:
        return facts
    cause = failed_service_cause(state, cloud)
    if cause is None:
        return facts
    return replace(facts, server=Present(replace(cloud, phase_detail=cause.hint or cause.line)))


def failed_service_cause(state: StackState, cloud: CloudFacts) -> "Cause | None":
    """Return the cause in the log of a service's newest revision, like `known_cause`; None if the log cannot be read."""
    try:
        log = server_log(state)
        mask = LineMask(api_keys(log))
        since = datetime.fromisoformat(cloud.state_since or "") - _LONGEST_START
        lines = newest_lines(google_api.connect(log.project), log, since, _PAGE, mask)
    except (ScriptError, ValueError):
        return None
    texts = [line.text for line in lines if line.where == cloud.stored]
    return known_cause(log, texts, reason=server_error(texts)[0])


def api_keys(log: ServerLog) -> tuple[str, ...]:
    """Return the API key of the server, which must be masked; empty without one. Raises ScriptError."""
    return (read_secret(log.api_key_secret, project=log.project),) if log.api_key_secret else ()


def _published_reason(lines: Sequence[ServerLine]) -> str:
    """Return the reason of the newest phase in the agent's lines if it is `failed`, otherwise an empty string."""
    phases = (PHASE_LINE.fullmatch(line.text) for line in reversed(lines) if line.source == "agent")
    newest = next((phase for phase in phases if phase is not None), None)
    if newest is None or newest["phase"] != FAILED:
        return ""
    return newest["reason"] or ""


def follow(
    api: GoogleApi,
    log: ServerLog,
    since: datetime,
    mask: Mask,
    *,
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[ServerLine | None]:
    """Yield new lines since a time, each once, then None after each read.

    Reports and retries a failed read. Raises ScriptError if the first one fails.
    """
    seen: dict[tuple[str, str], datetime] = {}
    start, first = since, True
    while True:
        try:
            for entry in _read(api, log, _oldest_first(log, start)):
                key = (str(entry.get("timestamp")), str(entry.get("insertId")))
                if key not in seen:
                    seen[key] = moment_of(entry)
                    yield from (line.masked(mask) for line in lines_of(entry))
        except ScriptError as error:
            if first:
                raise
            say(f"{error} Retrying.")
        if seen:
            start = max(since, max(seen.values()) - OVERLAP)
            seen = {key: moment for key, moment in seen.items() if moment >= start}
        first = False
        yield None
        pause(PERIOD_S)


def _read(api: GoogleApi, log: ServerLog, query: LogQuery) -> Iterator[Entry]:
    """Yield entries. Raises ScriptError with the fix if Google rejects the call."""
    try:
        yield from entries(api, query)
    except GoogleListError as error:
        said = f"{str(error).rstrip('.')}."
        why = why_unread(log.project, status=error.status, reason=error.reason, said=said)
        raise ScriptError(f"Cannot read the logs of stack {log.stack}: {why}") from None
