"""Read lines from Cloud Logging, once or while they come."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from cloud.google_api import GoogleApi, GoogleListError
from contracts.errors import ScriptError
from contracts.machine_log import SOURCE_LABEL
from contracts.masking import masked
from scripts.logs.place import ServerLog
from stacks.hooks.container_logs import lines_of, why_unread

PERIOD_S: Final = 2.0
"""Interval between two reads while lines are followed. Cloud Logging allows 60 reads a minute for a project (Quotas and limits, 2026-11)."""
OVERLAP: Final = timedelta(seconds=60)
"""How far each read goes back: an entry can become visible after a later one."""
_PAGE: Final = 1000

Mask = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedLine:
    """One line of the server, its agent or Cloud Run."""

    moment: datetime
    source: str
    """`server`, `agent`, `stdout`, `stderr` or `system` (Cloud Run's own)."""
    where: str
    """The revision or the machine; empty if the entry does not say."""
    text: str
    """The line, without secrets."""

    def to_json(self) -> dict[str, str]:
        """Return the line as `--json` prints it; the time is RFC 3339 in UTC."""
        moment = self.moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {"time": moment, "source": self.source, "where": self.where, "text": self.text}


def newest(api: GoogleApi, log: ServerLog, since: datetime, count: int, mask: Mask) -> Sequence[PrintedLine]:
    """Return the newest `count` lines since a time, the oldest first. Raises ScriptError if the log cannot be read."""
    found: list[PrintedLine] = []
    for entry in _entries(api, log, since, order="timestamp desc", limit=count):
        found[:0] = _log_lines(entry, str)
        if len(found) >= count:
            break
    # In their order: a mask can remember what the line before began.
    return [replace(line, text=mask(line.text)) for line in found][-count:]


def follow(
    api: GoogleApi,
    log: ServerLog,
    since: datetime,
    mask: Mask,
    *,
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[PrintedLine | None]:
    """Yield the lines since a time as they come, each once, and None after each read. A read that fails is told and tried again.

    Raises ScriptError if the first read fails.
    """
    seen: dict[tuple[str, str], datetime] = {}
    begun, first = since, True
    while True:
        try:
            for entry in _entries(api, log, begun, order="timestamp asc", limit=None):
                key = (str(entry.get("timestamp")), str(entry.get("insertId")))
                if key not in seen:
                    seen[key] = _moment(entry)
                    yield from _log_lines(entry, mask)
        except ScriptError as error:
            if first:
                raise
            say(f"{error} Trying again.")
        if seen:
            begun = max(since, max(seen.values()) - OVERLAP)
            seen = {key: moment for key, moment in seen.items() if moment >= begun}
        first = False
        yield None
        pause(PERIOD_S)


def _entries(
    api: GoogleApi, log: ServerLog, since: datetime, *, order: str, limit: int | None
) -> Iterator[Mapping[str, object]]:
    """Yield entries. Raises ScriptError with what to do if Google refuses."""
    body: dict[str, object] = {
        "resourceNames": [f"projects/{log.project}"],
        "filter": log.filter(since),
        "orderBy": order,
        "pageSize": min(_PAGE, limit or _PAGE),
    }
    try:
        while True:
            page = api.post("logging", "v2/entries:list", body)
            yield from cast("Sequence[Mapping[str, object]]", page.get("entries") or ())
            token = page.get("nextPageToken")
            if not token:
                return
            body["pageToken"] = token
    except GoogleListError as error:
        said = f"{masked(str(error)).rstrip('.')}."
        why = why_unread(log.project, status=error.status, reason=error.reason, said=said)
        raise ScriptError(f"The log of stack {log.stack} cannot be read: {why}") from None


def _log_lines(entry: Mapping[str, object], mask: Mask) -> Sequence[PrintedLine]:
    """Return the lines of an entry: several for a traceback that Cloud Logging keeps together, none for a record of a request."""
    labels = cast("Mapping[str, str]", entry.get("labels") or {})
    resource = cast("Mapping[str, Mapping[str, str]]", entry.get("resource") or {})
    place = resource.get("labels") or {}
    where = place.get("revision_name") or place.get("node_id") or ""
    return [
        PrintedLine(
            moment=_moment(entry), source=labels.get(SOURCE_LABEL) or line.source, where=where, text=mask(line.text)
        )
        for line in lines_of(entry)
    ]


def _moment(entry: Mapping[str, object]) -> datetime:
    return datetime.fromisoformat(str(entry.get("timestamp"))).astimezone(UTC)
