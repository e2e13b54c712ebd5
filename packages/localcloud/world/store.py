"""Store of resources: in memory, written through to one SQLite file of the state folder, so they survive a killed process."""

import json
import sqlite3
from pathlib import Path
from typing import cast

from localcloud.json_values import JsonObject, copied


class ResourceStore:
    """Documents by kind (such as `run.services`) and full resource name."""

    def __init__(self, path: Path | None) -> None:
        """Open the file; None keeps everything in memory."""
        self._database = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=OFF")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS resources (kind TEXT, name TEXT, document TEXT, PRIMARY KEY (kind, name))"
        )
        self._kinds: dict[str, dict[str, JsonObject]] = {}
        for kind, name, document in self._database.execute("SELECT kind, name, document FROM resources"):
            self._kinds.setdefault(kind, {})[name] = json.loads(document)

    def get(self, kind: str, name: str) -> JsonObject | None:
        """Return a copy of a document, or None."""
        found = self._kinds.get(kind, {}).get(name)
        return None if found is None else copied(found)

    def has(self, kind: str, name: str) -> bool:
        """Return whether a document exists."""
        return name in self._kinds.get(kind, {})

    def put(self, kind: str, name: str, document: JsonObject) -> JsonObject:
        """Store a copy of the document and return the document."""
        text = json.dumps(document)
        self._kinds.setdefault(kind, {})[name] = json.loads(text)
        self._database.execute("INSERT OR REPLACE INTO resources VALUES (?, ?, ?)", (kind, name, text))
        return document

    def delete(self, kind: str, name: str) -> bool:
        """Delete a document. Return False if it did not exist."""
        if self._kinds.get(kind, {}).pop(name, None) is None:
            return False
        self._database.execute("DELETE FROM resources WHERE kind = ? AND name = ?", (kind, name))
        return True

    def under(self, kind: str, prefix: str = "") -> list[tuple[str, JsonObject]]:
        """Return copies of the documents whose names start with `prefix`, sorted by name."""
        found = self._kinds.get(kind, {})
        return [(name, copied(found[name])) for name in sorted(found) if name.startswith(prefix)]

    def count_up(self, counter: str) -> int:
        """Return the next number of a counter; the first is 1."""
        document = self.get("counters", counter) or {"value": 0}
        value = cast("int", document["value"]) + 1
        self.put("counters", counter, {"value": value})
        return value

    def close(self) -> None:
        """Close the file."""
        self._database.close()
