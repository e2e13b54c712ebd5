"""The resource's properties, once: schema, check and diff are all derived from this table."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Change: TypeAlias = Literal["replace", "live", "policy", "zones"]
"""What a change of an input means: a new queued resource; a patch of the running node; nothing in the cloud (it guides waiting only);
or, for the zones, a new queued resource only when the present zone is no longer among them."""

Schema: TypeAlias = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
BOOLEAN: Schema = {"type": "boolean"}
STRINGS: Schema = {"type": "array", "items": STRING}
STRING_MAP: Schema = {"type": "object", "additionalProperties": STRING}

DEFAULT_WAIT_PER_ZONE_S = 7200
"""Flex-start capacity can take two hours and more to come; the queue is left after this wait, not before."""
DEFAULT_READY_TIMEOUT_S = 3600
"""A first start with XLA compilation of a large mixture of experts takes about half an hour; twice that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a nested object."""

    name: str
    schema: Schema
    description: str
    required: bool = False
    default: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """One input (with what its change means) or, where `change` is None, one output."""

    name: str
    schema: Schema
    description: str
    change: Change | None = None
    required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()


def _ref(name: str) -> Schema:
    return {"type": "object", "$ref": f"#/types/gcp-tpu:index:{name}"}


TYPES: dict[str, tuple[Field, ...]] = {
    "ServiceAccount": (
        Field(name="email", schema=STRING, required=True, description="The account that the virtual machine runs as."),
        Field(
            name="scopes",
            schema=STRINGS,
            default=["https://www.googleapis.com/auth/cloud-platform"],
            description="OAuth scopes of its tokens; what it may do is decided by IAM, so the default is all of Cloud Platform.",
        ),
    ),
    "DataDisk": (
        Field(
            name="sourceDisk",
            schema=STRING,
            required=True,
            description="An existing disk: a name, looked up in the zone that is used, or projects/P/zones/Z/disks/D.",
        ),
        Field(name="mode", schema=STRING, default="read-write", description="`read-write` or `read-only`."),
    ),
    "Ready": (
        Field(
            name="guestAttributeNamespace",
            schema=STRING,
            required=True,
            description="Namespace in which the machine publishes `phase`, `document-hash` and `detail` as guest attributes.",
        ),
        Field(
            name="documentMetadataKey",
            schema=STRING,
            description="Metadata key whose value the machine runs. Ready then means: `document-hash` is the SHA-256 (hex) of that very value.",
        ),
        Field(
            name="timeoutS",
            schema=INTEGER,
            default=DEFAULT_READY_TIMEOUT_S,
            description="How long to wait for `ready` after the capacity came, in seconds.",
        ),
    ),
    "StateChange": (
        Field(name="at", schema=STRING, description="When the provider saw it, RFC 3339 in UTC."),
        Field(name="zone", schema=STRING, description="In which zone."),
        Field(name="state", schema=STRING, description="The state of the queued resource."),
    ),
}

INPUTS: tuple[Property, ...] = (
    Property(
        name="project",
        schema=STRING,
        change="replace",
        description="Project id; by default the provider's `project`, then GOOGLE_CLOUD_PROJECT, GOOGLE_PROJECT or CLOUDSDK_CORE_PROJECT.",
    ),
    Property(
        name="zones",
        schema=STRINGS,
        change="zones",
        description="Zones in the order in which they are tried, such as us-east5-a. Give this or `zone`. Taking out the zone that is used replaces.",
    ),
    Property(
        name="zone",
        schema=STRING,
        change="zones",
        description="The only zone to try; as an output, the zone that is used.",
    ),
    Property(
        name="queuedResourceId",
        schema=STRING,
        change="replace",
        description="Id of the queued resource; by default the resource's name and 7 hex digits that follow from its URN.",
    ),
    Property(
        name="nodeId",
        schema=STRING,
        change="replace",
        description="Id of the TPU node; by default the queued resource's with `-node` behind it.",
    ),
    Property(
        name="acceleratorType",
        schema=STRING,
        change="replace",
        required=True,
        description="Type and size of the slice, such as v6e-4.",
    ),
    Property(
        name="runtimeVersion",
        schema=STRING,
        change="replace",
        required=True,
        description="Image of the virtual machine, such as v2-alpha-tpuv6e.",
    ),
    Property(
        name="provisioningModel",
        schema=STRING,
        change="replace",
        required=True,
        choices=("flex-start", "spot", "standard", "reservation"),
        description="`flex-start` (cheap, queued, ends after maxRunDurationS), `spot` (may be taken away), `standard` (on demand) or `reservation`.",
    ),
    Property(
        name="reservationName",
        schema=STRING,
        change="replace",
        description="With `reservation`: its name, looked up in the zone that is used, or projects/P/locations/Z/reservations/R.",
    ),
    Property(
        name="maxRunDurationS",
        schema=INTEGER,
        change="replace",
        description="Seconds after which Google takes the nodes away; required for flex-start, at most 604800 (7 days).",
    ),
    Property(
        name="validUntilDurationS",
        schema=INTEGER,
        change="policy",
        description="Seconds after which Google drops the request if it was not fulfilled, even when nobody waits any more; counts for later requests.",
    ),
    Property(name="network", schema=STRING, change="replace", description="VPC network; by default `default`."),
    Property(
        name="subnetwork",
        schema=STRING,
        change="replace",
        description="Subnetwork in the region of the zone that is used.",
    ),
    Property(
        name="enableExternalIps",
        schema=BOOLEAN,
        change="live",
        default=False,
        description="Give the machine an external IP address. Without one, the subnetwork needs Private Google Access.",
    ),
    Property(
        name="serviceAccount",
        schema=_ref("ServiceAccount"),
        change="replace",
        description="Who the machine is; by default Compute Engine's default account.",
    ),
    Property(name="description", schema=STRING, change="live", description="At most 512 characters."),
    Property(
        name="labels",
        schema=STRING_MAP,
        change="live",
        description="Labels of the node. The provider adds one that ties it to this resource's URN; labels from elsewhere are left alone.",
    ),
    Property(name="tags", schema=STRINGS, change="live", description="Network tags of the node, the whole list."),
    Property(
        name="metadata",
        schema=STRING_MAP,
        change="live",
        description="Instance metadata, such as startup-script. Never secrets: every process on the machine can read it. "
        "Keys from elsewhere (gcloud adds ssh-keys) are left alone.",
    ),
    Property(
        name="dataDisks",
        schema={"type": "array", "items": _ref("DataDisk")},
        change="replace",
        description="Existing disks to attach.",
    ),
    Property(
        name="waitPerZoneS",
        schema=INTEGER,
        change="policy",
        default=DEFAULT_WAIT_PER_ZONE_S,
        description="How long to wait for capacity in one zone before it is given up for the next, in seconds.",
    ),
    Property(
        name="waitFor",
        schema=STRING,
        change="policy",
        choices=("accepted", "active", "ready"),
        description="Until when create and update wait: `accepted` (in the queue), `active` (capacity is there), `ready` (the machine says so). "
        "By default `ready` where `ready` is given, else `active`.",
    ),
    Property(name="ready", schema=_ref("Ready"), change="policy", description="How the machine says that it is ready."),
    Property(
        name="allowReplaceActive",
        schema=BOOLEAN,
        change="policy",
        default=False,
        description="Let a change replace this resource while it is ACTIVE, which gives up capacity that may take hours to get again.",
    ),
)

OUTPUTS: tuple[Property, ...] = (
    Property(name="name", schema=STRING, description="Full name, projects/P/locations/Z/queuedResources/ID."),
    Property(name="state", schema=STRING, description="State of the queued resource, such as ACTIVE."),
    Property(name="stateInitiator", schema=STRING, description="Who brought the state about, USER or SERVICE."),
    Property(name="stateMessage", schema=STRING, description="Why it FAILED, in Google's words."),
    Property(name="nodeName", schema=STRING, description="Full name of the node."),
    Property(name="nodeNames", schema=STRINGS, description="Full names of all nodes."),
    Property(
        name="nodeState",
        schema=STRING,
        description="State of the node, such as READY; MISSING when it should be there and is not.",
    ),
    Property(name="nodeIps", schema=STRINGS, description="Internal IP addresses."),
    Property(name="externalIps", schema=STRINGS, description="External IP addresses."),
    Property(name="createTime", schema=STRING, description="When the queued resource was created, RFC 3339."),
    Property(
        name="deadline",
        schema=STRING,
        description="When Google takes the nodes away, RFC 3339; absent when it does not.",
    ),
    Property(
        name="stateHistory",
        schema={"type": "array", "items": {"$ref": "#/types/gcp-tpu:index:StateChange"}},
        description="The states that the provider has seen, oldest first, at most 50.",
    ),
    Property(
        name="documentHash",
        schema=STRING,
        description="SHA-256 (hex) of the document that the machine reported about last.",
    ),
    Property(name="phase", schema=STRING, description="The phase that the machine reported last."),
    Property(
        name="ownerLabels",
        schema=STRING_MAP,
        description="The label that ties the node to this resource's URN, as it is on the node.",
    ),
)

INPUT_BY_NAME = {item.name: item for item in INPUTS}
DEAD_STATE = "state"
"""The output that the diff names when a queued resource is past use."""
