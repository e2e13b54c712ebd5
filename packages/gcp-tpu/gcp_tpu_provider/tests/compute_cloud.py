"""Compute Engine in memory, behind the provider's transport. Instances follow scripts, and their operations can fail."""

import asyncio
import json
import re
from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import md5
from typing import Any, ClassVar

from gcp_tpu_provider.compute_request import REQUEST_KEY
from gcp_tpu_provider.errors import GoogleError
from gcp_tpu_provider.tests.cloud import FakeTpu, Queued, rfc3339, visible_at_s

INSTANCE = re.compile(r"compute/v1/(projects/[^/]+/zones/([^/]+))/instances(?:/([^/]+))?(?:/(\w+))?")
OPERATION = re.compile(r"compute/v1/projects/[^/]+/zones/[^/]+/operations/([^/]+)")
LIST = re.compile(r"compute/v1/projects/[^/]+/aggregated/instances")


def fingerprint(value: object) -> str:
    return md5(json.dumps(value or {}, sort_keys=True).encode(), usedforsecurity=False).hexdigest()


@dataclass
class FakeCompute(FakeTpu):
    """A step of a script is a status, `STATUS!CODE` if the insertion fails and the instance stays for a moment, or `!CODE` if it is gone."""

    service: ClassVar[str] = "compute"
    serving: ClassVar[str] = "RUNNING"
    quick: ClassVar[tuple[str, ...]] = ("PROVISIONING", "STAGING", "RUNNING")
    errors: dict[str, str] = field(default_factory=dict)
    """Operation -> the code of its error."""
    insertions: dict[str, str] = field(default_factory=dict)
    """Instance -> its insertion."""
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`requestId` -> the answer to its first call."""
    change_errors: deque[str] = field(default_factory=deque)
    """Codes of the errors of the next operations that change an instance."""
    busy: int = 0
    """How many deletions of an instance that is being inserted are refused, each time that one is asked for."""
    busy_changes: int = 0
    """How many changes of an instance are refused, because another operation on it is in progress."""
    rivals: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Zone -> the labels of another's instance that takes the name while our request is on its way."""
    slow_s: float = 0
    """How long the next operation that changes an instance takes, by the clock of the event loop."""
    ends_s: dict[str, float] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    """Names that a rival has taken."""
    operations: int = 0

    def handle(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        if LIST.fullmatch(path):
            return self.aggregated(query["filter"].partition("=")[2])
        operation = OPERATION.fullmatch(path)
        if operation:
            return self.operation(operation[1])
        match = INSTANCE.fullmatch(path)
        assert match, path
        parent, zone, identifier, verb = match.groups()
        name = f"{parent}/instances/{identifier or body.get('name')}"
        if method == "POST" and not identifier:
            return self.insert(name, zone, query, body)
        found = self.queued.get(name)
        if found is None or found.is_hidden():
            raise self.missing(name)
        if verb == "getGuestAttributes":
            return self.guest(name, query["queryPath"])
        if verb:
            return self.change(found, verb, query, body)
        return self.delete(found, query) if method == "DELETE" else self.look(found)

    @staticmethod
    def missing(name: str) -> GoogleError:
        return GoogleError(404, "Not Found", f"The resource '{name}' was not found", "notFound")

    def insert(self, name: str, zone: str, query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        if query["requestId"] in self.requests:
            return self.requests[query["requestId"]]
        if zone in self.refusals:
            raise self.refusals[zone]
        if name in self.queued:
            raise GoogleError(409, "Conflict", f"The resource '{name}' already exists", "alreadyExists")
        if zone in self.rivals:
            self.add_stranger(zone, body["name"], self.rivals.pop(zone))
            self.taken.append(name)
            answer = self.new_operation("insert")
            self.errors[answer["name"]] = "RESOURCE_ALREADY_EXISTS"
            return answer
        self.add(name, body, self.scripts.get(zone, self.quick))
        answer = self.new_operation("insert")
        self.insertions[name] = answer["name"]
        self.requests[query["requestId"]] = answer
        return answer

    def add(self, name: str, body: dict[str, Any], script: tuple[str, ...]) -> None:
        self.created += 1
        self.queued[name] = Queued(
            name,
            body,
            deque(script),
            created=rfc3339(self.clock + timedelta(seconds=self.created)),
            visible_at_s=visible_at_s(self.hidden_s),
        )
        self.queued[name].state = "PROVISIONING"

    def add_stranger(self, zone: str, identifier: str, labels: Mapping[str, str]) -> None:
        name = self.name(zone, identifier)
        self.add(name, {"name": identifier, "labels": dict(labels), "metadata": {"items": []}}, ("RUNNING",))

    def new_operation(self, what: str) -> dict[str, Any]:
        self.operations += 1
        return {"name": f"{what}-{self.operations}", "operationType": what, "status": "RUNNING"}

    def operation(self, name: str) -> dict[str, Any]:
        code = self.errors.get(name)
        inserting = {insertion: instance for instance, insertion in self.insertions.items()}
        instance = self.queued.get(inserting.get(name, ""))
        done = code is not None or instance is None or instance.state == "RUNNING"
        done = done and asyncio.get_running_loop().time() >= self.ends_s.get(name, 0)
        answer: dict[str, Any] = {"name": name, "status": "DONE" if done else "RUNNING"}
        return {**answer, "error": {"errors": [{"code": code, "message": f"It failed: {code}"}]}} if code else answer

    def guest(self, name: str, query_path: str) -> dict[str, Any]:
        if name not in self.guests:
            raise GoogleError(404, "Not Found", "the machine has published nothing", "notFound")
        told = self.guests[name]
        now = told.pop(0) if len(told) > 1 else told[0]
        namespace = query_path.rstrip("/")
        items = [{"namespace": namespace, "key": key, "value": value} for key, value in now.items()]
        return {"queryPath": query_path, "queryValue": {"items": items}}

    def look(self, found: Queued) -> dict[str, Any]:
        if found.state == "DELETING":
            found.steps.popleft()
            if not found.steps:
                self.drop(found)
                raise self.missing(found.name)
        elif found.steps:
            found.state, _, code = found.steps.popleft().partition("!")
            if code:
                self.errors[self.insertions.get(found.name, "")] = code
        if not found.state or self.is_past(found):
            self.drop(found)
            raise self.missing(found.name)
        return self.shown(found)

    def is_past(self, found: Queued) -> bool:
        """Whether its run has ended: then Compute Engine deletes it."""
        end = found.body.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp")
        return end is not None and self.clock >= datetime.fromisoformat(end)

    def drop(self, found: Queued) -> None:
        self.queued.pop(found.name, None)

    def shown(self, found: Queued) -> dict[str, Any]:
        body = found.body
        run_s = body.get("scheduling", {}).get("maxRunDuration", {}).get("seconds")
        if found.state == "RUNNING" and run_s and "resourceStatus" not in body:
            end = rfc3339(self.clock + timedelta(seconds=int(run_s)))
            body["resourceStatus"] = {"scheduling": {"terminationTimestamp": end}}
        return {
            **deepcopy({key: value for key, value in body.items() if key != "params"}),
            "status": "STOPPING" if found.state == "DELETING" else found.state,
            "creationTimestamp": found.created,
            "labelFingerprint": fingerprint(body.get("labels")),
            "metadata": {**deepcopy(body.get("metadata") or {}), "fingerprint": fingerprint(body.get("metadata"))},
            "tags": {**(body.get("tags") or {}), "fingerprint": fingerprint(body.get("tags"))},
        }

    def delete(self, found: Queued, query: dict[str, str]) -> dict[str, Any]:
        if found.state == "DELETING" or (self.busy and found.state in {"PROVISIONING", "STAGING"}):
            self.busy = max(0, self.busy - 1)
            raise GoogleError(400, "Bad Request", f"The resource '{found.name}' is not ready", "resourceNotReady")
        if found.body.get("deletionProtection"):
            raise GoogleError(
                400,
                "Bad Request",
                "Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion.'.",
                "invalidUsage",
            )
        found.state = "DELETING"
        found.steps = deque(["DELETING"] * self.delete_looks)
        return self.new_operation("delete")

    def change(self, found: Queued, verb: str, query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        if self.busy_changes:
            self.busy_changes -= 1
            raise GoogleError(400, "Bad Request", f"The resource '{found.name}' is not ready", "resourceNotReady")
        answer = self.new_operation(verb)
        what = {"setLabels": "labels", "setMetadata": "metadata", "setTags": "tags"}[verb]
        if body.get("labelFingerprint", body.get("fingerprint")) != fingerprint(found.body.get(what)):
            raise GoogleError(412, "Precondition Failed", "Supplied fingerprint does not match", "conditionNotMet")
        if self.change_errors:
            self.errors[answer["name"]] = self.change_errors.popleft()
            return answer
        self.ends_s[answer["name"]], self.slow_s = asyncio.get_running_loop().time() + self.slow_s, 0
        found.body[what] = body["labels"] if what == "labels" else {"items": body["items"]}
        return answer

    def aggregated(self, identifier: str) -> dict[str, Any]:
        scopes: dict[str, Any] = {"zones/us-central1-a": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}
        for name, item in self.queued.items():
            if name.endswith(f"/{identifier}") and not item.is_hidden():
                scope = scopes.setdefault(f"zones/{name.split('/')[3]}", {"instances": []})
                scope["instances"].append({"name": identifier})
        return {"items": scopes}

    # --- what tests ask ---

    def name(self, zone: str, identifier: str = "serve") -> str:
        return f"projects/my-project/zones/{zone}/instances/{identifier}"

    def metadata(self, name: str) -> dict[str, str]:
        items = self.queued[name].body["metadata"]["items"]
        return {item["key"]: item["value"] for item in items if item["key"] != REQUEST_KEY}
