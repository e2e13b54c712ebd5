"""Cloud Logging's entries: stored when written, listed some seconds later.

An entry is a LogEntry of logging.v2. The limit keeps the newest entries; Google keeps the entries of the bucket `_Default` for 30 days.
"""

import secrets
from bisect import insort
from collections.abc import Callable
from datetime import UTC, datetime

from localcloud.json_values import JsonObject
from localcloud.world.store import ResourceStore
from localcloud.world.timeline import Timeline

_KIND = "logging.entries"
_MAX_ENTRIES = 5000
_VISIBLE = "_visible_s"


class LogEntries:
    """The log entries of all projects."""

    def __init__(self, store: ResourceStore, timeline: Timeline, *, lag_s: Callable[[], float]) -> None:
        """Continue with the store's entries. `lag_s`: simulated seconds from the writing of an entry until it can be listed."""
        self._store = store
        self._timeline = timeline
        self._lag_s = lag_s
        self._names = [name for name, _ in store.under(_KIND)]

    def write(self, entry: JsonObject) -> None:
        """Store an entry. The service sets missing fields: timestamp, receiveTimestamp, insertId."""
        now = self._timeline.stamp()
        complete: JsonObject = {
            "insertId": secrets.token_hex(8),
            "timestamp": now,
            **{key: value for key, value in entry.items() if value or key not in {"timestamp", "insertId"}},
            "receiveTimestamp": now,
            _VISIBLE: self._timeline.simulated_s() + self._lag_s(),
        }
        name = f"{_micros(complete['timestamp']):020}-{self._store.count_up(_KIND):012}"
        self._store.put(_KIND, name, complete)
        insort(self._names, name)
        while len(self._names) > _MAX_ENTRIES:
            self._store.delete(_KIND, self._names.pop(0))

    def listed(self) -> list[tuple[str, JsonObject]]:
        """Return the entries that can be listed now as (key, entry), oldest first. Keys sort like the entries.

        Of a project's entries with the same timestamp and insertId, only the first is listed (logging.v2, LogEntry.insertId).
        """
        now_s = self._timeline.simulated_s()
        found: dict[tuple[str, str, str], tuple[str, JsonObject]] = {}
        for name, entry in self._store.under(_KIND):
            if entry.get(_VISIBLE, 0.0) <= now_s:
                identity = (entry["logName"].partition("/logs/")[0], entry["timestamp"], entry["insertId"])
                found.setdefault(identity, (name, {key: value for key, value in entry.items() if key != _VISIBLE}))
        return list(found.values())


def _micros(timestamp: str) -> int:
    """Return the microseconds of an RFC 3339 time since 1970, or 0 if the text is not a time."""
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return 0
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0, round(moment.timestamp() * 1e6))
