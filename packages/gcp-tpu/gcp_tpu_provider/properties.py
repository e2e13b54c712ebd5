"""Every property of the resource, defined once. Schema, checks, diff, reference and Python class are generated from this table."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias

from gcp_tpu_provider.compute_request import CLOUD_TPU, COMPUTE_ENGINE

ChangeEffect: TypeAlias = Literal["replace", "live", "policy", "words", "zones"]
"""Effect of a changed input: `replace` the queued resource; patch the `live` node; nothing in the cloud for a waiting `policy`;
no change for `words`, which are text for users; or, for `zones`, replace only if the zone in use is no longer listed."""

Schema: TypeAlias = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
BOOLEAN: Schema = {"type": "boolean"}
STRINGS: Schema = {"type": "array", "items": STRING}
STRING_MAP: Schema = {"type": "object", "additionalProperties": STRING}

DEFAULT_WAIT_PER_ZONE_S = 7200
"""Flex-start capacity can take more than two hours."""
MIN_BOOT_DISK_GB = 100
"""Google's default size. Smaller disks must fit the runtime image, whose size Google does not document."""
DEFAULT_READY_TIMEOUT_S = 3600
"""Twice the half hour of a first start that compiles a large mixture-of-experts model with XLA."""


@dataclass(frozen=True, slots=True)
class Property:
    """An input (with the effect of a change), an output, or a field of an object type (`change` is None)."""

    name: str
    schema: Schema
    description: str
    _: KW_ONLY
    change: ChangeEffect | None = None
    required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ObjectType:
    """An object type of the schema."""

    description: str
    fields: tuple[Property, ...]

    @property
    def by_name(self) -> dict[str, Property]:
        """Fields by name."""
        return {item.name: item for item in self.fields}


def object_type(schema: Schema) -> ObjectType:
    """Return the object type that a schema refers to."""
    return TYPES[str(schema["$ref"]).rpartition(":")[2]]


def _ref(name: str) -> Schema:
    return {"type": "object", "$ref": f"#/types/gcp-tpu:index:{name}"}


TYPES: Mapping[str, ObjectType] = {
    "ServiceAccount": ObjectType(
        "Service account of the VM.",
        (
            Property("email", STRING, "Email address of the service account.", required=True),
            Property(
                "scopes",
                STRINGS,
                "OAuth scopes of its tokens. IAM limits the account's permissions, so the default is all of Cloud Platform.",
                default=["https://www.googleapis.com/auth/cloud-platform"],
            ),
        ),
    ),
    "DataDisk": ObjectType(
        "An existing disk to attach.",
        (
            Property(
                "sourceDisk", STRING, "Name of a disk in the zone in use, or projects/P/zones/Z/disks/D.", required=True
            ),
            Property("mode", STRING, "`read-write` or `read-only`.", default="read-write"),
        ),
    ),
    "Ready": ObjectType(
        "Readiness report of the machine.",
        (
            Property(
                "guestAttributeNamespace",
                STRING,
                "Namespace in which the machine publishes `phase`, `document-hash` and `detail` as guest attributes, and optionally the "
                "serving document and its last pause.",
                required=True,
            ),
            Property(
                "documentMetadataKey",
                STRING,
                "Metadata key of the document that the machine runs. "
                "If set, ready requires `document-hash` to be the SHA-256 (hex) of its value.",
            ),
            Property(
                "deadlineMetadataKey",
                STRING,
                "Metadata key under which the provider writes the machine's `deadline`, once Google reports it. "
                "Not written without a run limit.",
            ),
            Property(
                "timeoutS",
                INTEGER,
                "Timeout for `ready` after the capacity is granted, in seconds.",
                default=DEFAULT_READY_TIMEOUT_S,
            ),
        ),
    ),
    "StateChange": ObjectType(
        "One observed state of the queued resource.",
        (
            Property("at", STRING, "Time of the observation, RFC 3339 in UTC."),
            Property("zone", STRING, "Zone of the queued resource."),
            Property("state", STRING, "State of the queued resource."),
        ),
    ),
}

INPUTS: tuple[Property, ...] = (
    Property(
        "project",
        STRING,
        "Project id. Default: the provider's `project`, then GOOGLE_CLOUD_PROJECT, GOOGLE_PROJECT or CLOUDSDK_CORE_PROJECT.",
        change="replace",
    ),
    Property(
        "zones",
        STRINGS,
        "Zones in order of preference, such as us-east5-a. Alternative to `zone`. Removing the zone in use replaces the resource.",
        change="zones",
    ),
    Property("zone", STRING, "The only zone to try. As an output: the zone in use.", change="zones"),
    Property(
        "queuedResourceId",
        STRING,
        "Id of the queued resource. Default: the Pulumi name and 7 hex digits of the URN's SHA-256.",
        change="replace",
    ),
    Property(
        "nodeId",
        STRING,
        "Id of the TPU node. Default: the id of the queued resource with the suffix `-node`. Not allowed with `api: compute-engine`.",
        change="replace",
    ),
    Property("acceleratorType", STRING, "Type and size of the slice, such as v6e-4.", change="replace", required=True),
    Property(
        "runtimeVersion",
        STRING,
        "Image of the VM, such as v2-alpha-tpuv6e; with `api: compute-engine` a boot image such as projects/P/global/images/family/F.",
        change="replace",
        required=True,
    ),
    Property(
        "provisioningModel",
        STRING,
        "`flex-start` (queued, low price, expires after `maxRunDurationS`), `spot` (preemptible), `standard` (on demand) or `reservation`.",
        change="replace",
        required=True,
        choices=("flex-start", "spot", "standard", "reservation"),
    ),
    Property(
        "reservationName",
        STRING,
        "For `reservation`: name of a reservation in the zone in use, or projects/P/locations/Z/reservations/R.",
        change="replace",
    ),
    Property(
        "maxRunDurationS",
        INTEGER,
        "Seconds after which Google deletes the nodes. Required for flex-start, at most 604800 (7 days).",
        change="replace",
    ),
    Property(
        "validUntilDurationS",
        INTEGER,
        "Seconds after which Google drops a request without capacity, even if Pulumi no longer waits. "
        "A change applies to later requests.",
        change="policy",
    ),
    Property(
        "bootDiskSizeGb",
        INTEGER,
        f"Size of the boot disk in GB, at least {MIN_BOOT_DISK_GB}. It stores the operating system, container images and files that servers "
        f"download. Default: Google's default, {MIN_BOOT_DISK_GB} GB.",
        change="replace",
    ),
    Property("network", STRING, "VPC network. Default: `default`.", change="replace"),
    Property("subnetwork", STRING, "Subnetwork in the region of the zone in use.", change="replace"),
    Property(
        "enableExternalIps",
        BOOLEAN,
        "Assign an external IP address to the machine. Without one, the subnetwork needs Private Google Access.",
        change="live",
        default=False,
    ),
    Property(
        "serviceAccount",
        _ref("ServiceAccount"),
        "Service account of the machine. Default: Compute Engine's default service account.",
        change="replace",
    ),
    Property("description", STRING, "Description of the node, at most 512 characters.", change="live"),
    Property(
        "labels",
        STRING_MAP,
        "Labels of the node. The provider adds an owner label with the hash of the URN and keeps labels that others add.",
        change="live",
    ),
    Property("tags", STRINGS, "All network tags of the node.", change="live"),
    Property(
        "metadata",
        STRING_MAP,
        "Instance metadata, such as startup-script. Must not contain secrets, because every process on the machine can read it. "
        "The provider keeps keys that others add, such as gcloud's ssh-keys.",
        change="live",
    ),
    Property("dataDisks", {"type": "array", "items": _ref("DataDisk")}, "Existing disks to attach.", change="replace"),
    Property(
        "api",
        STRING,
        "Google API that provides the capacity: `cloud-tpu` (queued resources) or `compute-engine` (instances with a `ct6e-standard-*` machine type).",
        change="replace",
        default=CLOUD_TPU,
        choices=(CLOUD_TPU, COMPUTE_ENGINE),
    ),
    Property(
        "waitPerZoneS",
        INTEGER,
        "Timeout for capacity in one zone before the provider tries the next, in seconds.",
        change="policy",
        default=DEFAULT_WAIT_PER_ZONE_S,
    ),
    Property(
        "waitTotalS",
        INTEGER,
        "Timeout for capacity in all zones together, in seconds, restarted by each create or update. Default: no limit except "
        "`waitPerZoneS` in each zone.",
        change="policy",
    ),
    Property(
        "renewBeforeS",
        INTEGER,
        "Seconds before `deadline` at which an update requests a second queued resource, with the suffix `-b` on id and node id. The update switches "
        "over when it reaches the `waitFor` state, at least ACTIVE. Requires a larger `maxRunDurationS`. Default: never.",
        change="policy",
    ),
    Property(
        "waitFor",
        STRING,
        "State that create and update wait for: `accepted` (in the queue), `active` (capacity exists), `ready` (the machine reports it). "
        "Default: `ready` if `ready` is set, else `active`.",
        change="policy",
        choices=("accepted", "active", "ready"),
    ),
    Property("ready", _ref("Ready"), "Readiness report of the machine.", change="policy"),
    Property(
        "nextSteps",
        STRINGS,
        "Advice shown at the end of the error if no zone grants capacity, in sentences. A change does not update the resource.",
        change="words",
    ),
    Property(
        "allowReplaceActive",
        BOOLEAN,
        "Allow a change to replace this resource while it is ACTIVE. This deletes its capacity, and new capacity may take hours.",
        change="policy",
        default=False,
    ),
)

OUTPUTS: tuple[Property, ...] = (
    Property(
        "name", STRING, "Full name, projects/P/locations/Z/queuedResources/ID or projects/P/zones/Z/instances/ID."
    ),
    Property("state", STRING, "State of the queued resource, such as ACTIVE."),
    Property("stateInitiator", STRING, "Initiator of the state, USER or SERVICE."),
    Property("stateMessage", STRING, "Google's message about a FAILED state."),
    Property("nodeName", STRING, "Full name of the node."),
    Property("nodeNames", STRINGS, "Full names of all nodes."),
    Property(
        "nodeState",
        STRING,
        "State of the node, such as READY. MISSING if the queued resource is ACTIVE but has no node.",
    ),
    Property("nodeIps", STRINGS, "Internal IP addresses."),
    Property("externalIps", STRINGS, "External IP addresses."),
    Property("createTime", STRING, "Creation time of the queued resource, RFC 3339."),
    Property("deadline", STRING, "Time at which Google deletes the nodes, RFC 3339. Absent without a run limit."),
    Property(
        "renewalName",
        STRING,
        "Full name of the second queued resource during an unfinished renewal: the successor, or the predecessor until it is deleted.",
    ),
    Property("renewalState", STRING, "State of that queued resource."),
    Property(
        "stateHistory",
        {"type": "array", "items": {"$ref": "#/types/gcp-tpu:index:StateChange"}},
        "States observed by the provider, oldest first, at most 50.",
    ),
    Property(
        "triedZones",
        STRINGS,
        "Zones in which the provider created or found a request. A deletion searches all of them, including zones no longer listed in `zones`.",
    ),
    Property("documentHash", STRING, "SHA-256 (hex) of the document in the machine's last report."),
    Property("phase", STRING, "Phase in the machine's last report."),
    Property(
        "servingHash",
        STRING,
        "SHA-256 (hex) of the document that was served at the last report. After a failed change it is the last one that was ready.",
    ),
    Property(
        "container",
        STRING,
        "Access of the server's container to the machine, as last reported: `confined`, or less and the reason.",
    ),
    Property("ownerLabels", STRING_MAP, "Owner label on the node. Its value is a hash of this resource's URN."),
)

INPUT_BY_NAME = {item.name: item for item in INPUTS}
DEAD_STATE = "state"
"""Output that the diff names if a queued resource can never serve again."""
