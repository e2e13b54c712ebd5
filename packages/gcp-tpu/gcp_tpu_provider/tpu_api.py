"""Typed client of the Cloud TPU API v2alpha1, for the calls and fields that the provider uses.

Names, paths and fields follow Google's discovery document `tpu.v2alpha1`, revision 20261001.
Its states are the vocabulary of the provider; `capacity_api` says what other backends have to offer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

from gcp_tpu_provider import durations
from gcp_tpu_provider.errors import CannotWaitError, GoogleError
from gcp_tpu_provider.json_parts import object_of, objects_of, text_of
from gcp_tpu_provider.transport import TpuTransport

ACTIVE = "ACTIVE"
DELETING = "DELETING"
DEAD = frozenset({"FAILED", "SUSPENDING", "SUSPENDED"})
"""A queued resource in these states never serves again. Its id stays taken until it is deleted."""
ACCEPTED_OR_LATER = frozenset({"ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", ACTIVE})
TRIED_WITHOUT_FORCE = frozenset({"ACCEPTED", "WAITING_FOR_RESOURCES", "SUSPENDED", "FAILED"})
"""States in which the first deletion has no `force`, so that it cannot delete capacity that came a moment before.

The discovery document does not list WAITING_FOR_RESOURCES among the states that are deleted without force; a public log does.
"""
SERVING_HASH_KEY = "serving-hash"
GUEST_ATTRIBUTE_KEYS = (
    "phase",
    "document-hash",
    "detail",
    SERVING_HASH_KEY,
    "pause-began-at",
    "pause-ended-at",
    "container",
)
AGENT_VERSION_KEY = "agent-version"
READY_PHASE = "ready"
FAILED_PHASE = "failed"
RESTORING_PHASE = "restoring"
ENDING_PHASE = "ending"
NOT_PUBLISHED = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST})
"""Google's answers for guest attributes of a machine that is not up or has published nothing."""
DEAD_NODE = frozenset({"PREEMPTED", "TERMINATED", "DELETING", "HIDDEN"})
PROVISIONING_MODELS = {
    "flex-start": "FLEX_START",
    "spot": "SPOT",
    "standard": "STANDARD",
    "reservation": "RESERVATION_BOUND",
}
GUEST_ATTRIBUTES_POLICY = "compute.disableGuestAttributesAccess"


def require_readable(error: GoogleError, node: str) -> None:
    """Raise CannotWaitError if an organization policy hides what machines publish: no wait ever sees that the server is ready.

    Cloud TPU may answer 400 for it, as for a machine that has published nothing yet. The words of the constraint tell the two apart.
    """
    if GUEST_ATTRIBUTES_POLICY not in error.message:
        return
    project = node.split("/")[1]
    raise CannotWaitError(
        f"Organization policy {GUEST_ATTRIBUTES_POLICY} hides what the machine of project {project} reports: no `pulumi up` can see "
        "whether the server is ready, and gcloud opens no tunnel. The capacity is kept and costs money. Ask an organization policy "
        f"administrator to run `gcloud resource-manager org-policies disable-enforce {GUEST_ATTRIBUTES_POLICY} --project={project}`, "
        "then run `pulumi up` again; or run `pulumi destroy`."
    ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRunningOperation:
    """An operation of the API. `error` is empty unless it failed; `error_code` is then a google.rpc.Code."""

    name: str
    done: bool
    error: str
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """A node that a queued resource requests: its id, and its configuration as it was sent."""

    node_id: str
    config: Mapping[str, Any]

    @property
    def labels(self) -> Mapping[str, str]:
        """The requested labels."""
        return self.config.get("labels") or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedResourceInfo:
    """A queued resource as Google reports it. Durations in seconds, `error` is Google's message, `create_time` is RFC 3339."""

    name: str
    state: str
    state_initiator: str
    error: str
    create_time: str
    provisioning_model: str
    reservation_name: str
    max_run_duration_s: int | None
    valid_until_duration_s: int | None
    nodes: tuple[NodeRequest, ...]

    @property
    def zone(self) -> str:
        """The zone in the name."""
        return self.name.split("/")[3]

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of the first node as it was sent, or an empty one."""
        return self.nodes[0].config if self.nodes else {}

    def node_names(self) -> tuple[str, ...]:
        """Return the full names of the nodes, whether they exist yet or not. An instance of Compute Engine is its own node."""
        if "/queuedResources/" not in self.name:
            return (self.name,)
        parent = self.name.rpartition("/queuedResources/")[0]
        return tuple(f"{parent}/nodes/{node.node_id}" for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A TPU VM as Google reports it. `deadline`: when Google deletes it (RFC 3339); empty if it has no run limit."""

    name: str
    state: str
    health: str
    description: str
    labels: Mapping[str, str]
    tags: tuple[str, ...]
    metadata: Mapping[str, str]
    enable_external_ips: bool
    ips: tuple[str, ...]
    external_ips: tuple[str, ...]
    deadline: str

    @property
    def alive(self) -> bool:
        """Whether the node serves or can still start to."""
        return self.state not in DEAD_NODE


@dataclass(frozen=True, slots=True)
class GuestReport:
    """What a machine published about its server: the values of `GUEST_ATTRIBUTE_KEYS`, empty if it did not publish one, and its agent's version.

    `phase`, `document_hash` and `detail` are about the document that was asked for. `serving_hash` is that of the document whose server
    answers. `pause_began_at` and `pause_ended_at` are the limits of the last change's pause (RFC 3339). `container` is `confined`, or `privileged: `
    and the reason.
    """

    phase: str
    document_hash: str
    detail: str
    serving_hash: str = ""
    pause_began_at: str = ""
    pause_ended_at: str = ""
    container: str = ""
    agent_version: int = 0
    """Version of the agent; 0 if it states none, or 1 if it says what serves, as the first agents that could go back did."""

    @classmethod
    def of(cls, published: Mapping[str, str]) -> "GuestReport | None":
        """Return the report in the guest attributes of one namespace; None if there are none."""
        if not published:
            return None
        stated = published.get(AGENT_VERSION_KEY, "")
        version = int(stated) if stated.isdecimal() else int(SERVING_HASH_KEY in published)
        return cls(*(_plain(published.get(key, "")) for key in GUEST_ATTRIBUTE_KEYS), agent_version=version)


def _plain(text: str) -> str:
    """Return a text that cannot steer the terminal that shows it: every process on the machine can write guest attributes."""
    return "".join(char if char in "\n\t" or char.isprintable() else f"\\u{ord(char):04x}" for char in text)


@dataclass(frozen=True, slots=True)
class TpuApi:
    """The API calls of the provider. Each raises GoogleError or NoAnswerError."""

    vanished: ClassVar[str] = "Someone else deleted the request."
    lost: ClassVar[str] = "Someone else deleted it."

    transport: TpuTransport

    async def zones_to_search(self, project: str, identifier: str) -> tuple[str, ...]:  # noqa: ARG002 - the seam's
        """Return every zone that the API offers the project."""
        zones: list[str] = []
        token = ""
        while True:
            query = {"pageToken": token} if token else {}
            page = await self.transport.call("GET", f"v2alpha1/projects/{project}/locations", query=query)
            zones += [text_of(item, "locationId") for item in objects_of(page, "locations")]
            token = text_of(page, "nextPageToken")
            if not token:
                return tuple(zone for zone in zones if zone)

    async def quota_refusal(self, inputs: Mapping[str, Any], zone: str) -> str:  # noqa: ARG002 - the seam's
        """Return nothing: Cloud TPU refuses a request without quota itself."""
        return ""

    async def create_queued_resource(self, name: str, body: Mapping[str, Any], request_id: str) -> LongRunningOperation:
        """Request a queued resource of this full name. Sending the same request id again has no further effect."""
        parent, _, identifier = name.rpartition("/queuedResources/")
        query = {"queuedResourceId": identifier, "requestId": request_id}
        path = f"v2alpha1/{parent}/queuedResources"
        return _operation(await self.transport.call("POST", path, query=query, body=body, creation=True))

    async def find_queued_resource(self, name: str) -> QueuedResourceInfo | None:
        """Return the queued resource, or None if none has this name."""
        raw = await self._find(f"v2alpha1/{name}")
        return None if raw is None else _queued_resource(raw, name)

    async def delete_queued_resource(self, name: str, *, force: bool, request_id: str) -> LongRunningOperation:
        """Request the deletion. `force` deletes the nodes too."""
        query = {"requestId": request_id, **({"force": "true"} if force else {})}
        return _operation(await self.transport.call("DELETE", f"v2alpha1/{name}", query=query))

    async def find_node(self, name: str) -> NodeInfo | None:
        """Return the node, or None if none has this name."""
        raw = await self._find(f"v2alpha1/{name}")
        return None if raw is None else _node(raw, name)

    async def patch_node(self, name: str, changes: Mapping[str, Any], mask: str) -> LongRunningOperation:
        """Change description, tags, labels, metadata or network_config.enable_external_ips."""
        return _operation(
            await self.transport.call("PATCH", f"v2alpha1/{name}", query={"updateMask": mask}, body=changes)
        )

    async def find_guest_report(self, node: str, namespace: str) -> GuestReport | None:
        """Return what the machine last published in a namespace of its guest attributes, or None if it has published nothing."""
        path, body = f"v2alpha1/{node}:getGuestAttributes", {"queryPath": f"{namespace}/"}
        try:
            raw = await self.transport.call("POST", path, body=body)
        except GoogleError as error:
            require_readable(error, node)
            if error.status in NOT_PUBLISHED:
                return None
            raise
        found: dict[str, str] = {}
        for worker in objects_of(raw, "guestAttributes"):
            for item in objects_of(object_of(worker, "queryValue"), "items"):
                if item.get("namespace", namespace) == namespace:
                    found.setdefault(text_of(item, "key"), text_of(item, "value"))
        return GuestReport.of(found)

    async def get_operation(self, name: str) -> LongRunningOperation:
        """Return an operation. One that Google no longer has counts as done."""
        raw = await self._find(f"v2alpha1/{name}")
        return LongRunningOperation(name=name, done=True, error="") if raw is None else _operation(raw)

    async def _find(self, path: str) -> dict[str, Any] | None:
        try:
            return await self.transport.call("GET", path)
        except GoogleError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise


def _operation(raw: Mapping[str, Any]) -> LongRunningOperation:
    error = object_of(raw, "error")
    text = f"{text_of(error, 'message')} (code {error.get('code', '?')})" if error else ""
    code = int(error.get("code") or 0)
    return LongRunningOperation(name=text_of(raw, "name"), done=bool(raw.get("done")), error=text, error_code=code)


def _queued_resource(raw: Mapping[str, Any], name: str) -> QueuedResourceInfo:
    state = object_of(raw, "state")
    return QueuedResourceInfo(
        name=name,  # as requested: Google may answer with the project number
        state=text_of(state, "state") or "CREATING",
        state_initiator=text_of(state, "stateInitiator"),
        error=text_of(object_of(object_of(state, "failedData"), "error"), "message"),
        create_time=text_of(raw, "createTime"),
        provisioning_model=text_of(raw, "provisioningModel"),
        reservation_name=text_of(raw, "reservationName"),
        max_run_duration_s=durations.from_google(text_of(object_of(raw, "runDuration"), "maxRunDuration")),
        valid_until_duration_s=durations.from_google(text_of(object_of(raw, "queueingPolicy"), "validUntilDuration")),
        nodes=tuple(
            NodeRequest(node_id=text_of(item, "nodeId"), config=object_of(item, "node"))
            for item in objects_of(object_of(raw, "tpu"), "nodeSpec")
        ),
    )


def _node(raw: Mapping[str, Any], name: str) -> NodeInfo:
    endpoints = objects_of(raw, "networkEndpoints")
    external_ips = [text_of(object_of(point, "accessConfig"), "externalIp") for point in endpoints]
    return NodeInfo(
        name=name,
        state=text_of(raw, "state"),
        health=text_of(raw, "health"),
        description=text_of(raw, "description"),
        labels=object_of(raw, "labels"),
        tags=tuple(raw.get("tags") or ()),
        metadata=object_of(raw, "metadata"),
        enable_external_ips=bool(object_of(raw, "networkConfig").get("enableExternalIps")),
        ips=tuple(text_of(point, "ipAddress") for point in endpoints if point.get("ipAddress")),
        external_ips=tuple(ip for ip in external_ips if ip),
        deadline=text_of(object_of(raw, "schedulingConfig"), "terminationTimestamp"),
    )
