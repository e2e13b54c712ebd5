"""Typed client of the Cloud TPU API v2alpha1, limited to the calls and fields that the provider uses.

Names, paths and fields follow Google's discovery document `tpu.v2alpha1`, revision 20261001.
Its states are the terms of the provider. `capacity_api` defines the interface of other backends.
"""

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, ClassVar

from gcp_tpu_provider import durations
from gcp_tpu_provider.errors import CannotWaitError, GoogleError
from gcp_tpu_provider.json_parts import object_of, objects_of, text_of
from gcp_tpu_provider.transport import TpuTransport, find, pages

ACTIVE = "ACTIVE"
DELETING = "DELETING"
ABORTED = 10
"""google.rpc.Code of an operation that conflicts with another client's."""
DEAD = frozenset({"FAILED", "SUSPENDING", "SUSPENDED"})
"""A queued resource in these states never serves again. Its id is taken until it is deleted."""
GONE = DEAD | {DELETING}
"""The same, and while it is deleted."""
ACCEPTED_OR_LATER = frozenset({"ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", ACTIVE})
TRIED_WITHOUT_FORCE = frozenset({"ACCEPTED", "WAITING_FOR_RESOURCES", "SUSPENDED", "FAILED"})
"""States in which the first deletion has no `force`, so it cannot delete capacity that was just granted.

The discovery document does not list WAITING_FOR_RESOURCES among the states deleted without force, but a public log does.
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
    "updated-at",
)
READY_PHASE = "ready"
FAILED_PHASE = "failed"
RESTORING_PHASE = "restoring"
WAITING_PHASES = frozenset(
    {"waiting for the hub", "waiting for the registry", "waiting for storage", "waiting for docker"}
)
"""The TPU VM tries again automatically until its run expires."""
NOT_PUBLISHED = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST})
"""Google's statuses for guest attributes of a machine that is not up or has published nothing."""
DEAD_NODE = frozenset({"PREEMPTED", "TERMINATED", "DELETING", "HIDDEN"})
PROVISIONING_MODELS = {
    "flex-start": "FLEX_START",
    "spot": "SPOT",
    "standard": "STANDARD",
    "reservation": "RESERVATION_BOUND",
}


def own_model(google_model: str) -> str:
    """Return the provisioning model with Google's name, such as `spot`. A request without one is `standard`."""
    return next((ours for ours, google in PROVISIONING_MODELS.items() if google == google_model), "standard")


GUEST_ATTRIBUTES_POLICY = "compute.disableGuestAttributesAccess"


def require_readable(error: GoogleError, node: str) -> None:
    """Raise CannotWaitError if an organization policy hides the TPU VMs' guest attributes, because no wait can detect a ready server.

    Cloud TPU may return 400 for it, as for a machine that has published nothing yet. The constraint in the message distinguishes them.
    """
    if GUEST_ATTRIBUTES_POLICY not in error.message:
        return
    project = node.split("/")[1]
    raise CannotWaitError(
        f"Organization policy {GUEST_ATTRIBUTES_POLICY} hides the guest attributes of TPU VMs in project {project}. `pulumi up` cannot detect "
        "a ready server, and gcloud opens no tunnel. The capacity is kept and billed. Have an organization policy "
        f"administrator run `gcloud resource-manager org-policies disable-enforce {GUEST_ATTRIBUTES_POLICY} --project={project}`, "
        "then run `pulumi up`; or run `pulumi destroy`."
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
    """A node requested by a queued resource: its id, and its configuration as sent."""

    node_id: str
    config: Mapping[str, Any]

    @property
    def labels(self) -> Mapping[str, str]:
        """Requested labels."""
        return self.config.get("labels") or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedResourceInfo:
    """A queued resource as reported by Google. Durations are in seconds, `error` is Google's message, `create_time` is RFC 3339."""

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
        """Zone in the name."""
        return self.name.split("/")[3]

    @property
    def config(self) -> Mapping[str, Any]:
        """Configuration of the first node as sent, or an empty one."""
        return self.nodes[0].config if self.nodes else {}

    def node_names(self) -> tuple[str, ...]:
        """Return the full names of the nodes, existing or not. A Compute Engine instance is its own node."""
        if "/queuedResources/" not in self.name:
            return (self.name,)
        parent = self.name.rpartition("/queuedResources/")[0]
        return tuple(f"{parent}/nodes/{node.node_id}" for node in self.nodes)


@dataclass(frozen=True, slots=True)
class OwnCapacity:
    """Full name of a queued resource or instance that was read as this Pulumi resource's. Each deletion takes one; only `ResourceOperation.own` makes it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A TPU VM as reported by Google. `deadline` is the time of its deletion (RFC 3339), empty without a run limit."""

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
        """True if the node serves or can still start."""
        return self.state not in DEAD_NODE


@dataclass(frozen=True, slots=True)
class GuestReport:
    """A machine's report about its server: the values of `GUEST_ATTRIBUTE_KEYS`, empty if not published.

    `phase`, `document_hash` and `detail` describe the requested document. `serving_hash` is the hash of the document that is
    served. `pause_began_at` and `pause_ended_at` delimit the pause of the last change (RFC 3339). `container` is `confined`, or `privileged: `
    and the reason. `updated_at` is the time of the report (RFC 3339), which differs between reports that say the same.
    """

    phase: str
    document_hash: str
    detail: str
    serving_hash: str = ""
    pause_began_at: str = ""
    pause_ended_at: str = ""
    container: str = ""
    updated_at: str = field(default="", compare=False)

    def age(self, now: datetime) -> timedelta:
        """Return the time since the report was written; none without a time in it."""
        try:
            return now - datetime.fromisoformat(self.updated_at)
        except (TypeError, ValueError):  # no time, or one without its zone
            return timedelta()

    @classmethod
    def of(cls, published: Mapping[str, str]) -> "GuestReport | None":
        """Return the report in the guest attributes of one namespace, or None without any."""
        if not published:
            return None
        return cls(*(_plain(published.get(key, "")) for key in GUEST_ATTRIBUTE_KEYS))


def _plain(text: str) -> str:
    """Return text without terminal control codes, because every process on the TPU VM can write guest attributes."""
    return "".join(char if char in "\n\t" or char.isprintable() else f"\\u{ord(char):04x}" for char in text)


async def guest_report(answer: Coroutine[Any, Any, Mapping[str, Any]], node: str, namespace: str) -> GuestReport | None:
    """Return a TPU VM's latest report from Google's answer, or None if it has published nothing in the namespace."""
    try:
        raw = await answer
    except GoogleError as error:
        require_readable(error, node)
        if error.status in NOT_PUBLISHED:
            return None
        raise
    found: dict[str, str] = {}
    for worker in objects_of(raw, "guestAttributes") or (raw,):
        for item in objects_of(object_of(worker, "queryValue"), "items"):
            if item.get("namespace", namespace) == namespace:
                found.setdefault(text_of(item, "key"), text_of(item, "value"))
    return GuestReport.of(found)


@dataclass(frozen=True, slots=True)
class TpuApi:
    """API calls of the provider. Each raises GoogleError or NoAnswerError."""

    one_at_a_time: ClassVar[bool] = False
    vanished: ClassVar[str] = "Another user deleted the request."
    lost: ClassVar[str] = "Another user deleted it."

    transport: TpuTransport

    async def zones_to_search(self, project: str, identifier: str) -> tuple[str, ...]:  # noqa: ARG002 - the seam's
        """Return every zone that the API lists for the project."""
        found = await pages(self.transport, f"v2alpha1/projects/{project}/locations")
        zones = [text_of(item, "locationId") for page in found for item in objects_of(page, "locations")]
        return tuple(filter(None, zones))

    async def create_queued_resource(self, name: str, body: Mapping[str, Any], request_id: str) -> LongRunningOperation:
        """Request a queued resource with this full name. Repeating a request id has no further effect."""
        parent, _, identifier = name.rpartition("/queuedResources/")
        query = {"queuedResourceId": identifier, "requestId": request_id}
        path = f"v2alpha1/{parent}/queuedResources"
        return _operation(await self.transport.call("POST", path, query=query, body=body, creation=True))

    async def find_queued_resource(self, name: str) -> QueuedResourceInfo | None:
        """Return the queued resource, or None if none has this name."""
        raw = await find(self.transport, f"v2alpha1/{name}")
        return None if raw is None else _queued_resource(raw, name)

    async def delete_queued_resource(self, own: OwnCapacity, *, force: bool, request_id: str) -> LongRunningOperation:
        """Request the deletion. `force` deletes the nodes too."""
        query = {"requestId": request_id, **({"force": "true"} if force else {})}
        return _operation(await self.transport.call("DELETE", f"v2alpha1/{own.name}", query=query))

    async def find_node(self, name: str) -> NodeInfo | None:
        """Return the node, or None if none has this name."""
        raw = await find(self.transport, f"v2alpha1/{name}")
        return None if raw is None else _node(raw, name)

    async def patch_node(self, name: str, changes: Mapping[str, Any], mask: str) -> LongRunningOperation:
        """Change description, tags, labels, metadata or network_config.enable_external_ips."""
        return _operation(
            await self.transport.call("PATCH", f"v2alpha1/{name}", query={"updateMask": mask}, body=changes)
        )

    async def find_guest_report(self, node: str, namespace: str) -> GuestReport | None:
        """Return the TPU VM's latest report in a namespace of its guest attributes, or None if it has published nothing."""
        path, body = f"v2alpha1/{node}:getGuestAttributes", {"queryPath": f"{namespace}/"}
        return await guest_report(self.transport.call("POST", path, body=body), node, namespace)

    async def get_operation(self, name: str) -> LongRunningOperation:
        """Return an operation. Treat one that Google no longer has as done."""
        raw = await find(self.transport, f"v2alpha1/{name}")
        return LongRunningOperation(name=name, done=True, error="") if raw is None else _operation(raw)


def _operation(raw: Mapping[str, Any]) -> LongRunningOperation:
    error = object_of(raw, "error")
    text = f"{text_of(error, 'message')} (code {error.get('code', '?')})" if error else ""
    code = int(error.get("code") or 0)
    return LongRunningOperation(name=text_of(raw, "name"), done=bool(raw.get("done")), error=text, error_code=code)


def _queued_resource(raw: Mapping[str, Any], name: str) -> QueuedResourceInfo:
    state = object_of(raw, "state")
    return QueuedResourceInfo(
        name=name,  # as requested, because Google may return the project number
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
