"""Capacity in Google's APIs: queued resources, their nodes, and Compute Engine instances.

Our provider creates one of two kinds, by its input `api`: a queued resource with a node, or an instance, which is request and machine in one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cloud.kinds import INSTANCE, QUEUED, Item, by_name
from contracts.capacity_states import INSTANCE_STATES
from contracts.fields import as_mapping, as_sequence
from contracts.labels import URN_LABEL
from contracts.serving_document import DOCUMENT_METADATA_KEY
from planning.question.types import ProvisioningModel

COMPUTE_ENGINE: Final = "compute-engine"
"""Value of the input `api` for Compute Engine instances."""
RENEWAL_SUFFIX: Final = "-b"
"""Suffix of the second queued resource of a renewal (docs/authors/provider-gcp-tpu-internals.md); the two ids alternate. Instances are not renewed."""
NO_SUCH_PLACE: Final = "'locations/"
"""Google's error message, HTTP 403, for a zone that does not exist, or that the project must not use."""
PROVISIONING: Final[Mapping[str, ProvisioningModel]] = {
    "FLEX_START": "flex-start",
    "SPOT": "spot",
    "RESERVATION_BOUND": "reservation",
}
"""Provisioning models that the API states unambiguously; gcloud sends STANDARD in addition to the tier `spot`."""
_FAMILIES: Final[Mapping[str, str]] = {"V6E": "v6e", "V5LITE_POD": "v5litepod"}
"""Generation by type of an accelerator configuration (discovery: tpu.v2alpha1 AcceleratorConfig)."""


def capacity_kind(inputs: Item) -> str:
    """Return the kind of resource that our provider creates from these inputs."""
    return INSTANCE if inputs.get("api") == COMPUTE_ENGINE else QUEUED


def capacity_names(inputs: Item, zones: Sequence[object]) -> list[str]:
    """Return the full names that our provider's resource with these inputs can have in these zones.

    Each zone has two queued resources; the second ones are at the end.
    """
    project, identifier = inputs.get("project"), inputs.get("queuedResourceId")
    if capacity_kind(inputs) == INSTANCE:
        return [by_name(INSTANCE).id.format(project=project, zone=zone, name=identifier) for zone in zones]
    return [
        by_name(QUEUED).id.format(project=project, location=zone, queuedResourceId=name)
        for name in (identifier, f"{identifier}{RENEWAL_SUFFIX}")
        for zone in zones
    ]


@dataclass(frozen=True, slots=True)
class QueuedResource:
    """A queued resource (tpu.v2alpha1 QueuedResource)."""

    document: Item

    @property
    def name(self) -> str:
        """projects/P/locations/Z/queuedResources/ID."""
        return _text(self.document, "name")

    @property
    def zone(self) -> str:
        """The zone."""
        return self.name.split("/")[3]

    @property
    def stack(self) -> str | None:
        """The stack of this product that its labels name; None if another owner's."""
        owner = by_name(QUEUED).owner(self.document)
        return owner.stack if owner else None

    @property
    def state(self) -> str:
        """State (contracts.capacity_states)."""
        return _text(as_mapping(self.document.get("state")), "state") or "UNKNOWN"

    @property
    def provisioning(self) -> ProvisioningModel:
        """Provisioning model, as in the setting `tpu.provisioning`."""
        named = PROVISIONING.get(_text(self.document, "provisioningModel"))
        return named or ("spot" if "spot" in self.document or "bestEffort" in self.document else "standard")

    @property
    def nodes(self) -> Sequence[Item]:
        """The requested nodes."""
        return [as_mapping(spec.get("node")) for spec in self._specs]

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Type of each node, with the API's name: v5litepod-4."""
        return tuple(kind for spec in self._specs for kind in _accelerators(spec))

    @property
    def created(self) -> datetime:
        """Creation time."""
        return datetime.fromisoformat(_text(self.document, "createTime") or "1970-01-01T00:00:00Z")

    @property
    def detail(self) -> str:
        """Google's error message if it failed; empty otherwise."""
        failed = as_mapping(as_mapping(self.document.get("state")).get("failedData"))
        return _text(as_mapping(failed.get("error")), "message")

    @property
    def node_name(self) -> str:
        """Full name of its first node; empty if it names none."""
        first = next(iter(self._specs), as_mapping(None))
        return f"{first.get('parent')}/nodes/{first['nodeId']}" if first.get("nodeId") else ""

    @property
    def longest_s(self) -> int | None:
        """Maximum lifetime of its nodes; None without a limit."""
        limit = as_mapping(self.document.get("runDuration")).get("maxRunDuration")
        return math.ceil(float(str(limit).removesuffix("s"))) if limit else None

    def chips(self, generation: str) -> int:
        """Return its chips of a generation. They count against the quota in every state until it is deleted."""
        sizes = (kind.rpartition("-") for kind in self.accelerators)
        return sum(int(count) for family, _, count in sizes if family == generation and count.isdigit())

    @property
    def _specs(self) -> Sequence[Item]:
        return [as_mapping(spec) for spec in as_sequence(as_mapping(self.document.get("tpu")).get("nodeSpec"))]


@dataclass(frozen=True, slots=True)
class Node:
    """A TPU VM (tpu.v2alpha1 Node)."""

    document: Item

    @property
    def name(self) -> str:
        """projects/P/locations/Z/nodes/ID."""
        return _text(self.document, "name")

    @property
    def state(self) -> str:
        """State (discovery: tpu.v2alpha1, Node.state)."""
        return _text(self.document, "state")

    @property
    def is_up(self) -> bool:
        """True if it exists for Google, and so is billed."""
        return self.state not in {"STOPPED", "PREEMPTED", "TERMINATED"}

    @property
    def request(self) -> str:
        """Id of the queued resource that created it; empty without one."""
        return _text(self.document, "queuedResource").rpartition("/")[2]

    @property
    def ends(self) -> str | None:
        """Time at which Google deletes it (RFC 3339)."""
        return _text(as_mapping(self.document.get("schedulingConfig")), "terminationTimestamp") or None

    @property
    def serving_document(self) -> str | None:
        """The document in its metadata."""
        return _text(as_mapping(self.document.get("metadata")), DOCUMENT_METADATA_KEY) or None


@dataclass(frozen=True, slots=True)
class Instance:
    """A Compute Engine instance (compute.v1 Instance)."""

    document: Item

    @property
    def name(self) -> str:
        """projects/P/zones/Z/instances/ID."""
        return by_name(INSTANCE).name(self.document)

    @property
    def status(self) -> str:
        """Compute Engine's state."""
        return _text(self.document, "status") or "UNKNOWN"

    @property
    def state(self) -> str:
        """The state in our provider's terms."""
        return INSTANCE_STATES.get(self.status, self.status)

    @property
    def created(self) -> str:
        """Time of the request (RFC 3339)."""
        return _text(self.document, "creationTimestamp")

    @property
    def started(self) -> str:
        """Last start (RFC 3339); empty if it never started."""
        return _text(self.document, "lastStartTimestamp")

    @property
    def stopped(self) -> str:
        """Last stop (RFC 3339); empty if it never stopped."""
        return _text(self.document, "lastStopTimestamp")

    @property
    def longest_s(self) -> int | None:
        """Run limit; None without one."""
        limit = as_mapping(as_mapping(self.document.get("scheduling")).get("maxRunDuration")).get("seconds")
        return None if limit is None else int(str(limit))

    @property
    def ends(self) -> str | None:
        """Time at which Google deletes it (RFC 3339)."""
        scheduling = as_mapping(as_mapping(self.document.get("resourceStatus")).get("scheduling"))
        return _text(scheduling, "terminationTimestamp") or None

    @property
    def serving_document(self) -> str | None:
        """The document in its metadata."""
        items = pairs_of(as_mapping(self.document.get("metadata")).get("items"))
        return items.get(DOCUMENT_METADATA_KEY) or None


def pairs_of(items: object) -> Mapping[str, str]:
    """Return metadata and guest attributes, which both APIs return as a list of keys and values."""
    return {_text(item, "key"): _text(item, "value") for item in map(as_mapping, as_sequence(items))}


def urn_marks(document: Item) -> Iterator[str]:
    """Yield the hashes of the URNs in the labels that our provider sets on a queued resource's nodes, or on an instance."""
    for labels in (*by_name(QUEUED).labels(document), as_mapping(document.get("labels"))):
        if labels.get(URN_LABEL):
            yield str(labels[URN_LABEL])


def _accelerators(spec: Item) -> Sequence[str]:
    count = int(_text(as_mapping(spec.get("multiNodeParams")), "nodeCount") or 1)
    return [_accelerator(as_mapping(spec.get("node")))] * count


def _accelerator(node: Item) -> str:
    """Return the type of a node, which the API states by name or by generation and topology."""
    if node.get("acceleratorType"):
        return str(node["acceleratorType"])
    config = as_mapping(node.get("acceleratorConfig"))
    sides = [int(side) for side in _text(config, "topology").split("x") if side.isdigit()]
    return f"{_FAMILIES.get(str(config.get('type')), '')}-{math.prod(sides)}"


def _text(item: Item, key: str) -> str:
    return str(item.get(key) or "")
