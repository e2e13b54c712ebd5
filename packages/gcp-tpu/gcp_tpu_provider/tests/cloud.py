"""A Cloud TPU API in memory, behind the provider's transport. States follow scripts, faults are injected, and calls are recorded."""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gcp_tpu_provider.errors import GoogleError, NoAnswerError
from gcp_tpu_provider.tests.google_bodies import google_answer, google_request

LOCATIONS = re.compile(r"v2alpha1/projects/[^/]+/locations")
NAME = re.compile(
    r"v2alpha1/(projects/[^/]+/locations/([^/]+))/(queuedResources|nodes|operations)(?:/([^:/]+))?(?::(\w+))?"
)
QUICK = ("CREATING", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
WITHOUT_FORCE = ("ACCEPTED", "SUSPENDED", "FAILED")


def refusal(state: str) -> str:
    """Return Google's words for a deletion that needs force."""
    return f"DeleteQueuedResource is not supported when state is {state} (must be one of [{' '.join(WITHOUT_FORCE)}])"


def rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def visible_at_s(hidden_s: float) -> float:
    """Return the time of the event loop from which on something new is seen, or 0 if it is seen at once."""
    return asyncio.get_running_loop().time() + hidden_s if hidden_s else 0


Fault = str
"""lost: it happened, but the answer was lost. dropped: it did not happen, and there was no answer. unsent: no connection. 503: Google's.
limited: it happened, the answer was lost, and Google refused the next attempt."""


@dataclass
class Queued:
    """One queued resource. Each read takes the next step of its script."""

    name: str
    body: dict[str, Any]
    steps: deque[str]
    state: str = "CREATING"
    why: str = ""
    created: str = ""
    visible_at_s: float = 0
    """By the clock of the event loop."""

    def is_hidden(self) -> bool:
        return bool(self.visible_at_s) and asyncio.get_running_loop().time() < self.visible_at_s

    def step(self) -> None:
        if self.steps and self.state != "DELETING":
            self.state, _, self.why = self.steps.popleft().partition(":")


@dataclass
class FakeTpu:
    """`scripts` holds the states in order of each zone, or of a zone and a model as in "us-east5-a SPOT"; `refusals` holds the zones that
    refuse the request."""

    scripts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refusals: dict[str, GoogleError] = field(default_factory=dict)
    queued: dict[str, Queued] = field(default_factory=dict)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    guests: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    """Node name -> what its machine publishes: one entry per read, and the last one stays."""
    boots: Callable[[dict[str, Any]], list[dict[str, str]]] | None = None
    """Return what a machine with this metadata publishes. Called again when the metadata changes."""
    faults: deque[tuple[str, Fault]] = field(default_factory=deque)
    """The next call whose "METHOD path" contains the text gets the fault."""
    calls: list[str] = field(default_factory=list)
    zones: tuple[str, ...] = ("us-east5-a", "us-east5-b")
    """The zones that the API lists; every other zone works too."""
    hidden_s: float = 0
    """How long a queued resource that was just made cannot be seen: a commit that becomes visible late."""
    delete_looks: int = 1
    refuses_in_operation: bool = False
    """A deletion that needs force is refused by its operation, with code 9, instead of by the answer."""
    deletion_error: str = ""
    """Message of a deletion's operation, with code 13, that failed after Google had accepted it."""
    on_call: Callable[[str], None] | None = None
    clock: datetime = datetime(2026, 11, 20, 8, tzinfo=UTC)
    """Google's time. It does not advance until a test moves it."""
    created: int = 0
    requests: list[dict[str, str]] = field(default_factory=list)
    initiator: str = "SERVICE"
    """Who changed the state of a queued resource last, as Google reports it."""
    """Zone and provisioning model of each accepted request."""

    def now(self) -> datetime:
        return self.clock

    def pass_time(self, hours: float) -> None:
        self.clock += timedelta(hours=hours)

    async def close(self) -> None:
        return None

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        creation: bool = False,
    ) -> dict[str, Any]:
        await asyncio.sleep(0)
        what = f"{method} {path}" + ("?force" if (query or {}).get("force") else "")
        self.calls.append(what)
        if self.on_call:
            self.on_call(what)
        fault = self.faults.popleft()[1] if self.faults and self.faults[0][0] in what else ""
        if fault == "unsent":
            raise NoAnswerError(what, "connection refused", sent=False)
        if fault == "dropped":
            raise NoAnswerError(what, "timeout", sent=True)
        if fault == "503":
            raise GoogleError(503, "UNAVAILABLE", "try later")
        if path.endswith("/aggregated/instances"):
            return {"items": {}}  # no instance in any zone of Compute Engine
        google_request(method, f"tpu/{path}", body or {})
        answer = self.handle(method, path, dict(query or {}), deepcopy(dict(body or {})))
        google_answer(method, f"tpu/{path}", answer)
        if fault == "lost":
            raise NoAnswerError(what, "connection reset", sent=True)
        if fault == "limited":
            raise GoogleError(429, "RESOURCE_EXHAUSTED", "too many requests", may_have_acted=True)
        return deepcopy(answer)

    # --- the API ---

    def handle(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        if LOCATIONS.fullmatch(path) and method == "GET":
            return self.page(query)
        match = NAME.fullmatch(path)
        assert match, path
        parent, zone, kind, identifier, verb = match.groups()
        name = f"{parent}/{kind}/{identifier}"
        if kind == "operations":
            state = identifier.partition("refused-")[2]
            failed = {"code": 9, "message": refusal(state)} if state else {}
            if self.deletion_error and identifier.startswith("delete-"):
                failed = {"code": 13, "message": self.deletion_error}
            return {"name": name, "done": True, **({"error": failed} if failed else {})}
        if verb == "getGuestAttributes":
            return self.guest(name, body["queryPath"])
        if kind == "nodes":
            return self.node(method, name, query, body)
        if method == "POST":
            return self.create(parent, zone, query, body)
        found = self.queued.get(name)
        if found is not None and found.is_hidden():
            found = None
        if found is None:
            raise GoogleError(404, "NOT_FOUND", f"{name} was not found.")
        return self.delete(found, query) if method == "DELETE" else self.look(found)

    def page(self, query: dict[str, str]) -> dict[str, Any]:
        """Return one zone a page: lists of Google's have pages."""
        index = int(query.get("pageToken") or 0)
        more = {"nextPageToken": str(index + 1)} if index + 1 < len(self.zones) else {}
        return {"locations": [{"locationId": zone} for zone in self.zones[index : index + 1]], **more}

    def create(self, parent: str, zone: str, query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        if zone in self.refusals:
            raise self.refusals[zone]
        model = body.get("provisioningModel", "STANDARD")
        if "runDuration" in body and model != "FLEX_START":
            raise GoogleError(400, "INVALID_ARGUMENT", "run_duration is supported with FLEX_START only.")
        name = f"{parent}/queuedResources/{query['queuedResourceId']}"
        if name in self.queued:
            raise GoogleError(409, "ALREADY_EXISTS", f"{name} already exists.")
        self.created += 1
        self.requests.append({"zone": zone, "model": model})
        self.queued[name] = Queued(
            name,
            body,
            deque(self.scripts.get(f"{zone} {model}", self.scripts.get(zone, QUICK))),
            created=rfc3339(self.clock + timedelta(seconds=self.created)),
            visible_at_s=visible_at_s(self.hidden_s),
        )
        return {"name": f"{parent}/operations/create-{self.created}"}

    def add_stranger(self, zone: str, identifier: str, labels: Mapping[str, str]) -> None:
        """Add what another has made."""
        body = {"tpu": {"nodeSpec": [{"parent": "p", "nodeId": "n", "node": {"labels": dict(labels)}}]}}
        kept, self.refusals = self.refusals, {}
        self.create(f"projects/my-project/locations/{zone}", zone, {"queuedResourceId": identifier}, body)
        self.refusals = kept

    def look(self, found: Queued) -> dict[str, Any]:
        if found.state == "DELETING":
            found.steps.popleft()
            if not found.steps:
                self.drop(found)
                raise GoogleError(404, "NOT_FOUND", "gone")
        found.step()
        spec = found.body["tpu"]["nodeSpec"][0]
        node = f"{spec['parent']}/nodes/{spec['nodeId']}"
        if node in self.nodes and self.is_over(self.nodes[node]):
            found.state = "SUSPENDED"
            found.steps.clear()
        if found.state == "ACTIVE" and node not in self.nodes:
            self.boot(node, spec["node"], found.body)
        state: dict[str, Any] = {"state": found.state, "stateInitiator": self.initiator}
        if found.state == "FAILED":
            state["failedData"] = {"error": {"code": 8, "message": found.why or "no capacity"}}
        if found.state == "SUSPENDED":
            self.nodes.pop(node, None)
        return {**found.body, "name": found.name, "createTime": found.created, "state": state}

    def is_over(self, node: dict[str, Any]) -> bool:
        """Whether the run of a node has ended: then Google deletes it, and suspends its queued resource."""
        end = node["schedulingConfig"].get("terminationTimestamp")
        return end is not None and self.clock >= datetime.fromisoformat(end)

    def boot(self, name: str, spec: dict[str, Any], body: dict[str, Any]) -> None:
        run = str(body.get("runDuration", {}).get("maxRunDuration") or "")
        end = {"terminationTimestamp": rfc3339(self.clock + timedelta(seconds=float(run.rstrip("s"))))} if run else {}
        self.nodes[name] = {
            **deepcopy(spec),
            "name": name,
            "state": "READY",
            "networkEndpoints": [{"ipAddress": "10.0.0.2"}],
            "schedulingConfig": end,
        }
        if self.boots:
            self.guests[name] = self.boots(spec.get("metadata") or {})

    def drop(self, found: Queued) -> None:
        spec = found.body["tpu"]["nodeSpec"][0]
        self.nodes.pop(f"{spec['parent']}/nodes/{spec['nodeId']}", None)
        self.queued.pop(found.name, None)

    def delete(self, found: Queued, query: dict[str, str]) -> dict[str, Any]:
        if found.state not in WITHOUT_FORCE and query.get("force") != "true":
            if self.refuses_in_operation:
                return {"name": f"{found.name.rpartition('/queuedResources')[0]}/operations/refused-{found.state}"}
            raise GoogleError(400, "FAILED_PRECONDITION", refusal(found.state))
        found.state = "DELETING"
        found.steps = deque(["DELETING"] * self.delete_looks)
        return {"name": f"{found.name.rpartition('/queuedResources')[0]}/operations/delete-1"}

    def node(self, method: str, name: str, query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        node = self.nodes.get(name)
        if node is None or self.is_over(node):
            raise GoogleError(404, "NOT_FOUND", f"{name} was not found.")
        if method == "PATCH":
            for mask in query["updateMask"].split(","):
                if mask == "network_config.enable_external_ips":
                    node["networkConfig"]["enableExternalIps"] = body["networkConfig"]["enableExternalIps"]
                else:
                    node[mask] = body[mask]
            if self.boots:
                self.guests[name] = self.boots(node["metadata"])
            return {"name": f"{name.rpartition('/nodes')[0]}/operations/patch-1"}
        return node

    def guest(self, name: str, query_path: str) -> dict[str, Any]:
        if name not in self.guests:
            raise GoogleError(404, "NOT_FOUND", "the machine has published nothing")
        told = self.guests[name]
        now = told.pop(0) if len(told) > 1 else told[0]
        namespace = query_path.rstrip("/")
        items = [{"namespace": namespace, "key": key, "value": value} for key, value in now.items()]
        return {"guestAttributes": [{"queryPath": query_path, "queryValue": {"items": items}}]}

    # --- what tests ask ---

    def name(self, zone: str, identifier: str = "serve") -> str:
        return f"projects/my-project/locations/{zone}/queuedResources/{identifier}"

    def node_name(self, zone: str, identifier: str = "serve") -> str:
        return f"projects/my-project/locations/{zone}/nodes/{identifier}-node"

    def made(self, text: str) -> list[str]:
        return [call for call in self.calls if text in call]
