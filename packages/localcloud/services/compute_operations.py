"""Compute Engine's operations (global, regional and zonal), and the form of its links and lists."""

import asyncio
import secrets
import time

from localcloud.json_values import JsonObject
from localcloud.rest import filters
from localcloud.rest.call import Call, page
from localcloud.services.networks import NetworkPlace
from localcloud.services.service import ApiService, method, visible
from localcloud.world.cloud import random_id

_OPERATIONS = "compute.operations"
_WAIT_LIMIT_S = 120
_POLL_S = 0.01


def link_to(call: Call, name: str) -> str:
    """Return the URL of a full name in the version of the API that was called."""
    return f"https://www.googleapis.com/compute/{call.document.version}/{name}"


def list_answer(call: Call, kind: str, items: list[tuple[str, JsonObject]]) -> JsonObject:
    """Return a list response: the items that match the filter, in pages."""
    shown, following = chosen_page(call, items)
    answer: JsonObject = {
        "kind": kind,
        "id": call.http.path.split("/compute/", 1)[-1],
        "selfLink": link_to(call, call.http.path.split("/projects/", 1)[-1]),
    }
    if shown:
        answer["items"] = shown
    if following:
        answer["nextPageToken"] = following
    return answer


def chosen_page(call: Call, items: list[tuple[str, JsonObject]]) -> tuple[list[JsonObject], str | None]:
    """Return one page of the items that match the filter, and the token of the next page."""
    found = filters.chosen(items, call.query.get("filter"))
    return page(found, size=call.query.get("maxResults"), token=call.query.get("pageToken"), default=500, maximum=500)


def _in_each_scope(verb: str) -> tuple[str, ...]:
    return tuple(f"{scope}Operations.{verb}" for scope in ("global", "region", "zone"))


class ComputeOperations(ApiService):
    """Compute Engine's operations: `status` PENDING, RUNNING, DONE."""

    prefix = "compute"

    def new(self, call: Call, what: str, target: str, target_id: str, *, pending: bool = False) -> JsonObject:
        """Return a new operation. A pending one runs until `finish`; any other finishes after the scenario's `compute_s`."""
        short = f"operation-{time.time_ns() // 10**6}-{secrets.token_hex(8)}"
        name, now = self._name(call, short), self._cloud.timeline.stamp()
        due_s = self._cloud.timeline.simulated_s() + self._cloud.duration_s(self._cloud.scenario.operations.compute_s)
        document: JsonObject = {
            "id": random_id(),
            "name": short,
            "operationType": what,
            "targetId": target_id,
            "user": call.caller.email,
            "insertTime": now,
            "startTime": now,
            "_target": target,
            "_due_s": None if pending else due_s,
            **{f"_{scope}": call.path[scope] for scope in ("region", "zone") if scope in call.path},
        }
        if call.query.get("requestId"):
            document["clientOperationId"] = call.query["requestId"]
        self._store.put(_OPERATIONS, name, document)
        return self._shown(call, name, document)

    def again(self, call: Call, target: str) -> JsonObject | None:
        """Return the operation of an earlier call with the same `requestId` on this target."""
        given = call.query.get("requestId")
        for name, document in self._store.under(_OPERATIONS, self._name(call, "")) if given else ():
            if document.get("clientOperationId") == given and document["_target"] == target:
                return self._shown(call, name, document)
        return None

    def finish(self, name: str, *, code: str = "", message: str = "") -> None:
        """Finish a pending operation by its full name, with an error if a code is given. A finished operation stays unchanged."""
        document = self._store.get(_OPERATIONS, name)
        if document is None or document["_due_s"] is not None:
            return
        document["_due_s"] = self._cloud.timeline.simulated_s()
        if code:
            document["error"] = {"errors": [{"code": code, "message": message}]}
            document |= {"httpErrorStatusCode": 400, "httpErrorMessage": "BAD REQUEST"}
        self._store.put(_OPERATIONS, name, document)

    @method(*_in_each_scope("get"))
    def get(self, call: Call) -> JsonObject:
        """Return an operation."""
        name = self._name(call)
        return self._shown(call, name, self.stored(_OPERATIONS, name, f"The resource '{name}' was not found"))

    @method(*_in_each_scope("wait"))
    async def wait(self, call: Call) -> JsonObject:
        """Return an operation when it is done, or after two minutes."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _WAIT_LIMIT_S
        operation = self.get(call)
        while operation["status"] != "DONE" and loop.time() < end:
            await asyncio.sleep(_POLL_S)
            operation = self.get(call)
        return operation

    @method(*_in_each_scope("list"))
    def list_all(self, call: Call) -> JsonObject:
        """Return the operations of a scope."""
        stored = self._store.under(_OPERATIONS, self._name(call, short=""))
        found = [(name, self._shown(call, name, document)) for name, document in stored]
        return list_answer(call, "compute#operationList", found)

    def _name(self, call: Call, short: str | None = None) -> str:
        short = call.path["operation"] if short is None else short
        place = NetworkPlace(project=call.path["project"], region=call.path.get("region"), zone=call.path.get("zone"))
        return place.name("operations", short)

    def _shown(self, call: Call, name: str, document: JsonObject) -> JsonObject:
        due_s = document["_due_s"]
        done = due_s is not None and self._cloud.timeline.simulated_s() >= due_s
        shown: JsonObject = {
            "kind": "compute#operation",
            **visible(document),
            "status": "DONE" if done else "RUNNING",
            "progress": 100 if done else 0,
            "targetLink": link_to(call, document["_target"]),
            "selfLink": link_to(call, name),
        }
        for scope in ("region", "zone"):
            if f"_{scope}" in document:
                shown[scope] = link_to(call, f"projects/{call.path['project']}/{scope}s/{document[f'_{scope}']}")
        if done:
            shown["endTime"] = self._cloud.timeline.stamp()
        return shown
