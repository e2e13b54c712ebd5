"""Resource of the Pulumi provider `gcp-tpu`. Generated from the provider's schema by gcp_tpu_provider.python_sdk; do not edit."""

from collections.abc import Mapping, Sequence
from copy import copy
from inspect import get_annotations
from typing import TypeVar, cast, dataclass_transform

import pulumi

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, field_specifiers=(pulumi.property,))
def _input_type(cls: type[T]) -> type[T]:
    """Register the Pulumi constructor and declare it to type checkers."""
    return pulumi.input_type(cls)


@_input_type
class ServiceAccountArgs:
    """Service account of the VM."""

    email: pulumi.Input[str] = pulumi.property("email")
    """Email address of the service account."""
    scopes: pulumi.Input[Sequence[pulumi.Input[str]]] | None = pulumi.property("scopes", default=None)
    """OAuth scopes of its tokens. IAM limits the account's permissions, so the default is all of Cloud Platform."""


@_input_type
class DataDiskArgs:
    """An existing disk to attach."""

    source_disk: pulumi.Input[str] = pulumi.property("sourceDisk")
    """Name of a disk in the zone in use, or projects/P/zones/Z/disks/D."""
    mode: pulumi.Input[str] | None = pulumi.property("mode", default=None)
    """`read-write` or `read-only`."""


@_input_type
class ReadyArgs:
    """Readiness report of the machine."""

    guest_attribute_namespace: pulumi.Input[str] = pulumi.property("guestAttributeNamespace")
    """Namespace in which the machine publishes `phase`, `document-hash` and `detail` as guest attributes, and
    optionally the serving document and its last pause.
    """
    document_metadata_key: pulumi.Input[str] | None = pulumi.property("documentMetadataKey", default=None)
    """Metadata key of the document that the machine runs. If set, ready requires `document-hash` to be the SHA-256
    (hex) of its value.
    """
    deadline_metadata_key: pulumi.Input[str] | None = pulumi.property("deadlineMetadataKey", default=None)
    """Metadata key under which the provider writes the machine's `deadline`, once Google reports it. Not written
    without a run limit.
    """
    timeout_s: pulumi.Input[int] | None = pulumi.property("timeoutS", default=None)
    """Timeout for `ready` after the capacity is granted, in seconds."""


@pulumi.output_type
class StateChange(dict[str, object]):
    """One observed state of the queued resource."""

    at: str | None = pulumi.property("at")
    """Time of the observation, RFC 3339 in UTC."""
    zone: str | None = pulumi.property("zone")
    """Zone of the queued resource."""
    state: str | None = pulumi.property("state")
    """State of the queued resource."""


@_input_type
class QueuedResourceArgs:
    """Inputs of `gcp-tpu:index:QueuedResource`."""

    accelerator_type: pulumi.Input[str] = pulumi.property("acceleratorType")
    """Type and size of the slice, such as v6e-4."""
    runtime_version: pulumi.Input[str] = pulumi.property("runtimeVersion")
    """Image of the VM, such as v2-alpha-tpuv6e; with `api: compute-engine` a boot image such as
    projects/P/global/images/family/F.
    """
    provisioning_model: pulumi.Input[str] = pulumi.property("provisioningModel")
    """`flex-start` (queued, low price, expires after `maxRunDurationS`), `spot` (preemptible), `standard` (on demand)
    or `reservation`. One of `flex-start`, `spot`, `standard`, `reservation`.
    """
    project: pulumi.Input[str] | None = pulumi.property("project", default=None)
    """Project id. Default: the provider's `project`, then GOOGLE_CLOUD_PROJECT, GOOGLE_PROJECT or
    CLOUDSDK_CORE_PROJECT.
    """
    zones: pulumi.Input[Sequence[pulumi.Input[str]]] | None = pulumi.property("zones", default=None)
    """Zones in order of preference, such as us-east5-a. Alternative to `zone`. Removing the zone in use replaces the
    resource.
    """
    zone: pulumi.Input[str] | None = pulumi.property("zone", default=None)
    """The only zone to try. As an output: the zone in use."""
    queued_resource_id: pulumi.Input[str] | None = pulumi.property("queuedResourceId", default=None)
    """Id of the queued resource. Default: the Pulumi name and 7 hex digits of the URN's SHA-256."""
    node_id: pulumi.Input[str] | None = pulumi.property("nodeId", default=None)
    """Id of the TPU node. Default: the id of the queued resource with the suffix `-node`. Not allowed with `api:
    compute-engine`.
    """
    reservation_name: pulumi.Input[str] | None = pulumi.property("reservationName", default=None)
    """For `reservation`: name of a reservation in the zone in use, or projects/P/locations/Z/reservations/R."""
    max_run_duration_s: pulumi.Input[int] | None = pulumi.property("maxRunDurationS", default=None)
    """Seconds after which Google deletes the nodes. Required for flex-start, at most 604800 (7 days)."""
    valid_until_duration_s: pulumi.Input[int] | None = pulumi.property("validUntilDurationS", default=None)
    """Seconds after which Google drops a request without capacity, even if Pulumi no longer waits. A change applies to
    later requests.
    """
    boot_disk_size_gb: pulumi.Input[int] | None = pulumi.property("bootDiskSizeGb", default=None)
    """Size of the boot disk in GB, at least 100. It stores the operating system, container images and files that
    servers download. Default: Google's default, 100 GB.
    """
    network: pulumi.Input[str] | None = pulumi.property("network", default=None)
    """VPC network. Default: `default`."""
    subnetwork: pulumi.Input[str] | None = pulumi.property("subnetwork", default=None)
    """Subnetwork in the region of the zone in use."""
    enable_external_ips: pulumi.Input[bool] | None = pulumi.property("enableExternalIps", default=None)
    """Assign an external IP address to the machine. Without one, the subnetwork needs Private Google Access."""
    service_account: pulumi.Input[ServiceAccountArgs] | None = pulumi.property("serviceAccount", default=None)
    """Service account of the machine. Default: Compute Engine's default service account."""
    description: pulumi.Input[str] | None = pulumi.property("description", default=None)
    """Description of the node, at most 512 characters."""
    labels: pulumi.Input[Mapping[str, pulumi.Input[str]]] | None = pulumi.property("labels", default=None)
    """Labels of the node. The provider adds an owner label with the hash of the URN and keeps labels that others add."""
    tags: pulumi.Input[Sequence[pulumi.Input[str]]] | None = pulumi.property("tags", default=None)
    """All network tags of the node."""
    metadata: pulumi.Input[Mapping[str, pulumi.Input[str]]] | None = pulumi.property("metadata", default=None)
    """Instance metadata, such as startup-script. Must not contain secrets, because every process on the machine can
    read it. The provider keeps keys that others add, such as gcloud's ssh-keys.
    """
    data_disks: pulumi.Input[Sequence[pulumi.Input[DataDiskArgs]]] | None = pulumi.property("dataDisks", default=None)
    """Existing disks to attach."""
    api: pulumi.Input[str] | None = pulumi.property("api", default=None)
    """Google API that provides the capacity: `cloud-tpu` (queued resources) or `compute-engine` (instances with a
    `ct6e-standard-*` machine type). One of `cloud-tpu`, `compute-engine`.
    """
    wait_per_zone_s: pulumi.Input[int] | None = pulumi.property("waitPerZoneS", default=None)
    """Timeout for capacity in one zone before the provider tries the next, in seconds."""
    wait_total_s: pulumi.Input[int] | None = pulumi.property("waitTotalS", default=None)
    """Timeout for capacity in all zones together, in seconds, restarted by each create or update. Default: no limit
    except `waitPerZoneS` in each zone.
    """
    renew_before_s: pulumi.Input[int] | None = pulumi.property("renewBeforeS", default=None)
    """Seconds before `deadline` at which an update requests a second queued resource, with the suffix `-b` on id and
    node id. The update switches over when it reaches the `waitFor` state, at least ACTIVE. Requires a larger
    `maxRunDurationS`. Default: never.
    """
    wait_for: pulumi.Input[str] | None = pulumi.property("waitFor", default=None)
    """State that create and update wait for: `accepted` (in the queue), `active` (capacity exists), `ready` (the
    machine reports it). Default: `ready` if `ready` is set, else `active`. One of `accepted`, `active`, `ready`.
    """
    ready: pulumi.Input[ReadyArgs] | None = pulumi.property("ready", default=None)
    """Readiness report of the machine."""
    next_steps: pulumi.Input[Sequence[pulumi.Input[str]]] | None = pulumi.property("nextSteps", default=None)
    """Advice shown at the end of the error if no zone grants capacity, in sentences. A change does not update the
    resource.
    """
    allow_replace_active: pulumi.Input[bool] | None = pulumi.property("allowReplaceActive", default=None)
    """Allow a change to replace this resource while it is ACTIVE. This deletes its capacity, and new capacity may take
    hours.
    """


class QueuedResource(pulumi.CustomResource):
    """A queued resource of the Cloud TPU API, requested zone by zone, and the node that runs on it.

    Labels, tags, metadata and description change on the running node. A change that replaces ACTIVE capacity needs
    `allowReplaceActive`. Import by full name, projects/P/locations/Z/queuedResources/ID.
    """

    project: pulumi.Output[str] = pulumi.property("project")
    zone: pulumi.Output[str] = pulumi.property("zone")
    queued_resource_id: pulumi.Output[str] = pulumi.property("queuedResourceId")
    node_id: pulumi.Output[str] = pulumi.property("nodeId")
    name: pulumi.Output[str] = pulumi.property("name")
    """Full name, projects/P/locations/Z/queuedResources/ID or projects/P/zones/Z/instances/ID."""
    state: pulumi.Output[str] = pulumi.property("state")
    """State of the queued resource, such as ACTIVE."""
    node_name: pulumi.Output[str] = pulumi.property("nodeName")
    """Full name of the node."""
    state_history: pulumi.Output[Sequence[StateChange]] = pulumi.property("stateHistory")
    """States observed by the provider, oldest first, at most 50."""
    state_initiator: pulumi.Output[str | None] = pulumi.property("stateInitiator")
    """Initiator of the state, USER or SERVICE."""
    state_message: pulumi.Output[str | None] = pulumi.property("stateMessage")
    """Google's message about a FAILED state."""
    node_names: pulumi.Output[Sequence[str] | None] = pulumi.property("nodeNames")
    """Full names of all nodes."""
    node_state: pulumi.Output[str | None] = pulumi.property("nodeState")
    """State of the node, such as READY. MISSING if the queued resource is ACTIVE but has no node."""
    node_ips: pulumi.Output[Sequence[str] | None] = pulumi.property("nodeIps")
    """Internal IP addresses."""
    external_ips: pulumi.Output[Sequence[str] | None] = pulumi.property("externalIps")
    """External IP addresses."""
    create_time: pulumi.Output[str | None] = pulumi.property("createTime")
    """Creation time of the queued resource, RFC 3339."""
    deadline: pulumi.Output[str | None] = pulumi.property("deadline")
    """Time at which Google deletes the nodes, RFC 3339. Absent without a run limit."""
    renewal_name: pulumi.Output[str | None] = pulumi.property("renewalName")
    """Full name of the second queued resource during an unfinished renewal: the successor, or the predecessor until it
    is deleted.
    """
    renewal_state: pulumi.Output[str | None] = pulumi.property("renewalState")
    """State of that queued resource."""
    tried_zones: pulumi.Output[Sequence[str] | None] = pulumi.property("triedZones")
    """Zones in which the provider created or found a request. A deletion searches all of them, including zones no
    longer listed in `zones`.
    """
    document_hash: pulumi.Output[str | None] = pulumi.property("documentHash")
    """SHA-256 (hex) of the document in the machine's last report."""
    phase: pulumi.Output[str | None] = pulumi.property("phase")
    """Phase in the machine's last report."""
    serving_hash: pulumi.Output[str | None] = pulumi.property("servingHash")
    """SHA-256 (hex) of the document that was served at the last report. After a failed change it is the last one that
    was ready.
    """
    container: pulumi.Output[str | None] = pulumi.property("container")
    """Access of the server's container to the machine, as last reported: `confined`, or less and the reason."""
    owner_labels: pulumi.Output[Mapping[str, str] | None] = pulumi.property("ownerLabels")
    """Owner label on the node. Its value is a hash of this resource's URN."""

    def __init__(
        self, resource_name: str, args: QueuedResourceArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        properties = copy(args)
        # Pulumi resolves the outputs named by the properties.
        vars(properties).update({**dict.fromkeys(get_annotations(QueuedResource)), **vars(args)})
        super().__init__("gcp-tpu:index:QueuedResource", resource_name, cast("pulumi.Inputs", properties), opts)
