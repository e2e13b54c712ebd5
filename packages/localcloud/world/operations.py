"""Long-running operations in google.longrunning's format. Compute Engine has its own kind, in `localcloud.services.compute`."""

import asyncio
import uuid
from typing import cast

from localcloud.json_values import JsonObject
from localcloud.rest.errors import CloudError
from localcloud.world.store import ResourceStore
from localcloud.world.timeline import Timeline

_EMPTY: JsonObject = {"@type": "type.googleapis.com/google.protobuf.Empty"}
_POLL_S = 0.01


class LongRunningOperations:
    """Operations by API and full name. A timed operation finishes after its duration; a pending one finishes with `finish`."""

    def __init__(self, store: ResourceStore, timeline: Timeline) -> None:
        self._store = store
        self._timeline = timeline

    def timed(
        self,
        api: str,
        parent: str,
        *,
        duration_s: float,
        response: JsonObject | None,
        metadata: JsonObject | None = None,
    ) -> JsonObject:
        """Store an operation that finishes after `duration_s` simulated seconds. Its effect is immediate; None means an empty response."""
        return self._open(
            api, parent, metadata, due_s=self._timeline.simulated_s() + duration_s, response=response or _EMPTY
        )

    def pending(self, api: str, parent: str, *, metadata: JsonObject | None = None) -> JsonObject:
        """Store an operation that `finish` completes."""
        return self._open(api, parent, metadata, due_s=None, response=None)

    def finish(
        self,
        api: str,
        name: str,
        *,
        response: JsonObject | None = None,
        error: JsonObject | None = None,
        metadata: JsonObject | None = None,
    ) -> None:
        """Finish an operation with a response or a google.rpc.Status."""
        record = self._store.get(_kind(api), name)
        if record is None or record["done"]:
            return
        record["done"] = True
        if metadata is not None:
            record["metadata"] = metadata
        if error is not None:
            record["error"] = error
        else:
            record["response"] = response or _EMPTY
        self._store.put(_kind(api), name, record)

    def get(self, api: str, name: str) -> JsonObject:
        """Return the operation as its API shows it. Raise 404 if it does not exist."""
        record = self._store.get(_kind(api), name)
        if record is None:
            raise CloudError.not_found(f"Requested entity was not found: operation '{name}'.")
        return self._view(record)

    def under(self, api: str, prefix: str) -> list[JsonObject]:
        """Return all operations under a parent, sorted by name."""
        return [self._view(record) for _, record in self._store.under(_kind(api), prefix)]

    async def wait(self, api: str, name: str, *, limit_s: float) -> JsonObject:
        """Return the operation when it is done, or in its current state after `limit_s` real seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + limit_s
        operation = self.get(api, name)
        while not operation.get("done") and loop.time() < end:
            await asyncio.sleep(_POLL_S)
            operation = self.get(api, name)
        return operation

    def _open(
        self, api: str, parent: str, metadata: JsonObject | None, *, due_s: float | None, response: JsonObject | None
    ) -> JsonObject:
        record: JsonObject = {
            "name": f"{parent}/operations/{uuid.uuid4()}" if parent else f"operations/{uuid.uuid4()}",
            "done": False,
            "due_s": due_s,
        }
        if metadata is not None:
            record["metadata"] = metadata
        if response is not None:
            record["response"] = response
        self._store.put(_kind(api), cast("str", record["name"]), record)
        return self._view(record)

    def _view(self, record: JsonObject) -> JsonObject:
        done = record["done"] or (record["due_s"] is not None and self._timeline.simulated_s() >= record["due_s"])
        shown: JsonObject = {"name": record["name"]}
        if "metadata" in record:
            shown["metadata"] = record["metadata"]
        if done:
            shown["done"] = True
            shown.update({key: record[key] for key in ("response", "error") if key in record})
        return shown


def _kind(api: str) -> str:
    return f"{api}.operations"
