"""Capacity in Google's APIs: queued resources, their nodes, and Compute Engine instances.

Our provider creates one of two kinds, by its input `api`: a queued resource with a node, or an instance, which is request and machine in one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from gcp_tpu_provider.compute_request import COMPUTE_ENGINE, INSTANCE_STATES
from gemma_serving.cloud.kinds import INSTANCE, QUEUED, Item, by_name
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.labels import PRODUCT, URN_LABEL
from gemma_serving.contracts.serving_document import DOCUMENT_METADATA_KEY
from gemma_serving.planning.settings.capacity_form import ProvisioningModel

NO_SUCH_PLACE: Final = "'locations/"
"""Google's error message, HTTP 403, for a zone that does not exist, or that the project must not use."""
PROVISIONING: Final[Mapping[str, ProvisioningModel]] = {
    "FLEX_START": "flex-start",
    "SPOT": "spot",
    "RESERVATION_BOUND": "reservation",
}
"""Provisioning models that the API states unambiguously; gcloud sends STANDARD in addition to the tier `spot`."""


def capacity_kind(inputs: Item) -> str:
    """Return the kind of resource that our provider creates from these inputs."""
    return INSTANCE if inputs.get("api") == COMPUTE_ENGINE else QUEUED


def capacity_names(inputs: Item, zones: Sequence[object]) -> list[str]:
    """Return the full names that our provider's resource can have in these zones."""
    project, identifier = inputs.get("project"), inputs.get("queuedResourceId")
    if capacity_kind(inputs) == INSTANCE:
        return [by_name(INSTANCE).id.format(project=project, zone=zone, name=identifier) for zone in zones]
    kind = by_name(QUEUED)
    return [kind.id.format(project=project, location=zone, queuedResourceId=identifier) for zone in zones]


class ListedQueuedResource:
    """A queued resource (tpu.v2alpha1 QueuedResource)."""

    def __init__(self, document: Item) -> None:
        specs = [as_mapping(spec) for spec in as_sequence(as_mapping(document.get("tpu")).get("nodeSpec"))]
        state = as_mapping(document.get("state"))
        self.name: Final = _text(document, "name")
        self.state: Final = _text(state, "state") or "UNKNOWN"
        """State (contracts.capacity_states)."""
        self.is_stopped_by_google: Final = _text(state, "stateInitiator") == "SERVICE"
        """True if Google brought about the state, not a user: for SUSPENDING and SUSPENDED, it stopped the nodes."""
        named = PROVISIONING.get(_text(document, "provisioningModel"))
        tier: ProvisioningModel = "spot" if "spot" in document or "bestEffort" in document else "standard"
        self.provisioning: Final = named or tier
        """Provisioning model, as in the setting `tpu.provisioning`."""
        owner = by_name(QUEUED).owner(document)
        self.stack: Final = owner.stack if owner and owner.project == PRODUCT else None
        """The stack of this Pulumi project that its labels name; None if another owner's."""
        self.nodes: Final[Sequence[Item]] = [as_mapping(spec.get("node")) for spec in specs]
        self.accelerators: Final = tuple(_text(node, "acceleratorType") for node in self.nodes)
        """Type of each node, with the API's name: v5litepod-4."""
        self.created: Final = datetime.fromisoformat(_text(document, "createTime") or "1970-01-01T00:00:00Z")
        self.detail: Final = _text(as_mapping(as_mapping(state.get("failedData")).get("error")), "message")
        """Google's error message if it failed; empty otherwise."""
        first = specs[0] if specs else as_mapping(None)
        self.node_name: Final = f"{first.get('parent')}/nodes/{first['nodeId']}" if first.get("nodeId") else ""
        """Full name of its first node; empty if it names none."""
        limit = _text(as_mapping(document.get("runDuration")), "maxRunDuration").removesuffix("s")
        self.longest_s: Final = math.ceil(float(limit)) if limit else None
        """Maximum lifetime of its nodes; None without a limit."""

    @property
    def zone(self) -> str:
        """The zone."""
        return self.name.split("/")[3]

    def chips(self, generation: str) -> int:
        """Return its chips of a generation. They count against the quota in every state until it is deleted."""
        sizes = (kind.rpartition("-") for kind in self.accelerators)
        return sum(int(count) for family, _, count in sizes if family == generation and count.isdigit())


class ListedNode:
    """A TPU VM (tpu.v2alpha1 Node)."""

    def __init__(self, document: Item) -> None:
        self.name: Final = _text(document, "name")
        self.state: Final = _text(document, "state")
        """State (discovery: tpu.v2alpha1, Node.state)."""
        self.is_up: Final = self.state not in {"STOPPED", "PREEMPTED", "TERMINATED"}
        """True if it exists for Google, and so is billed."""
        self.request: Final = _text(document, "queuedResource").rpartition("/")[2]
        """Id of the queued resource that created it; empty without one."""
        self.ends: Final = _text(as_mapping(document.get("schedulingConfig")), "terminationTimestamp") or None
        """Time at which Google deletes it (RFC 3339)."""
        self.serving_document: Final = _text(as_mapping(document.get("metadata")), DOCUMENT_METADATA_KEY) or None


class ListedInstance:
    """A Compute Engine instance (compute.v1 Instance)."""

    def __init__(self, document: Item) -> None:
        self.name: Final = by_name(INSTANCE).name(document)
        self.status: Final = _text(document, "status") or "UNKNOWN"
        self.state: Final = INSTANCE_STATES.get(self.status, self.status)
        """The state in our provider's terms."""
        self.created: Final = _text(document, "creationTimestamp")
        self.started: Final = _text(document, "lastStartTimestamp")
        """Last start (RFC 3339); empty if it never started."""
        self.stopped: Final = _text(document, "lastStopTimestamp")
        """Last stop (RFC 3339); empty if it never stopped."""
        limit = _text(as_mapping(as_mapping(document.get("scheduling")).get("maxRunDuration")), "seconds")
        self.longest_s: Final = int(limit) if limit else None
        """Run limit; None without one."""
        scheduling = as_mapping(as_mapping(document.get("resourceStatus")).get("scheduling"))
        self.ends: Final = _text(scheduling, "terminationTimestamp") or None
        """Time at which Google deletes it (RFC 3339)."""
        metadata = pairs_of(as_mapping(document.get("metadata")).get("items"))
        self.serving_document: Final = metadata.get(DOCUMENT_METADATA_KEY) or None


def pairs_of(items: object) -> Mapping[str, str]:
    """Return metadata and guest attributes, which both APIs return as a list of keys and values."""
    return {_text(item, "key"): _text(item, "value") for item in map(as_mapping, as_sequence(items))}


def urn_marks(document: Item) -> Iterator[str]:
    """Yield the hashes of the URNs in the labels that our provider sets on a queued resource's nodes, or on an instance."""
    for labels in (*by_name(QUEUED).labels(document), as_mapping(document.get("labels"))):
        if labels.get(URN_LABEL):
            yield str(labels[URN_LABEL])


def _text(item: Item, key: str) -> str:
    return str(item.get(key) or "")
