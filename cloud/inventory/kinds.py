"""Every kind of resource that a stack can leave behind: how to list, read and delete it.

IAM grants have a module of their own. Cloud NAT is part of its router. Grants on a resource of the stack, versions of a secret,
objects of a bucket and images of a repository disappear with it. Enabled APIs stay on purpose: others may use them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, cast

from contracts.labels import Ownership, owner_of, words_of

Item = Mapping[str, object]
Places = Literal["project", "aggregated", "tpu", "run", "artifactregistry"]
"""`project`: one list for the project. `aggregated`: one list with all regions. Otherwise one list for each location of that API."""

LOCATIONS: Final[Mapping[Places, str]] = {
    "tpu": "v2alpha1/projects/{p}/locations?pageSize=500",
    "run": "v1/projects/{p}/locations?pageSize=500",
    "artifactregistry": "v1/projects/{p}/locations?pageSize=500",
}
"""API -> the list of its locations. Of Cloud Run, only v1 has one (discovery: run.v2 has no projects.locations.list)."""


def labels_of(item: Item) -> Iterator[Mapping[str, str]]:
    """Yield the labels of a resource."""
    labels = cast("Mapping[str, str] | None", item.get("labels"))
    if labels:
        yield labels


def _labels_of_nodes(item: Item) -> Iterator[Mapping[str, str]]:
    """Yield the labels of each node: a queued resource has none of its own (discovery: tpu.v2alpha1 QueuedResource)."""
    specs = cast("Sequence[Item]", cast("Item", item.get("tpu") or {}).get("nodeSpec") or ())
    for spec in specs:
        yield cast("Mapping[str, str]", cast("Item", spec.get("node") or {}).get("labels") or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceKind:
    """One kind of resource."""

    kind: str
    api: str
    path: str
    """Path of the list; `{p}` is the project, `{l}` the location."""
    places: Places
    command: str
    """Arguments of gcloud; `{id}` is the id with the project, `{l}` the location."""
    order: int
    """Kinds with a lower number are deleted first."""
    limit_s: float = 600
    """How long a deletion may take."""
    items: str = "items"
    """Key of the answer that holds the resources."""
    version: str = "v1/"
    """What stands before the full name in the path of one resource."""
    created: str = "createTime"
    """Field with the time of creation; empty if there is none."""
    etag: str = ""
    """Field with the version of the document; empty if the API checks none at a deletion."""
    guard: str = ""
    """Query parameter of the deletion that takes the etag."""
    parameters: tuple[tuple[str, str], ...] = ()
    """Further query parameters of the deletion."""
    labels: Callable[[Item], Iterator[Mapping[str, str]]] = labels_of
    """Yields the labels of a resource, wherever they stand."""

    def owner(self, item: Item) -> Ownership | None:
        """Return the stack that a resource belongs to; None if it names none, or two."""
        found = [labels for labels in self.labels(item) if labels] or [{}]
        owners = {owner_of(labels=labels, description=str(item.get("description") or "")) for labels in found}
        return owners.pop() if len(owners) == 1 else None

    def marks(self, item: Item) -> Mapping[str, str]:
        """Return the labels, or the words of the description."""
        return next((labels for labels in self.labels(item) if labels), words_of(str(item.get("description") or "")))

    def name(self, item: Item) -> str:
        """Return the full name."""
        if self.api == "storage":
            return f"projects/_/buckets/{item.get('name')}"
        link = str(item.get("selfLink") or "").partition("/compute/v1/")[2]
        return link or str(item.get("name") or "")

    def location(self, item: Item) -> str:
        """Return the zone, region or multi-region in lower case, else `global`."""
        if self.api == "storage":
            return str(item.get("location") or "").lower()
        parts = self.name(item).split("/")
        return next((after for at, after in pairwise(parts) if at in _PLACES), "global")

    def address(self, name: str) -> str:
        """Return the path of one resource by its full name."""
        return f"storage/v1/b/{name.rpartition('/')[2]}" if self.api == "storage" else self.version + name

    def delete_command(self, name: str, *, project: str, location: str) -> str:
        """Return the command that deletes a resource."""
        identifier = f"{name.rpartition('/')[2]} --project={project}"
        return f"gcloud {self.command.format(id=identifier, l=location)}"


_PLACES: Final = ("locations", "regions", "zones")
_TPU: Final = "v2alpha1/projects/{p}/locations/{l}"
_COMPUTE: Final = "compute/v1/projects/{p}"
_TPU_LIMIT_S: Final = 1800.0

KINDS: Final[Sequence[ResourceKind]] = (
    ResourceKind(
        kind="Cloud Run service",
        api="run",
        path="v2/projects/{p}/locations/{l}/services",
        places="run",
        items="services",
        version="v2/",
        etag="etag",
        guard="etag",
        order=0,
        command="run services delete {id} --region={l}",
    ),
    ResourceKind(
        kind="TPU queued resource",
        api="tpu",
        path=f"{_TPU}/queuedResources",
        places="tpu",
        items="queuedResources",
        version="v2alpha1/",
        labels=_labels_of_nodes,
        parameters=(("force", "true"),),
        order=0,
        limit_s=_TPU_LIMIT_S,
        command="alpha compute tpus queued-resources delete {id} --zone={l} --force",
    ),
    ResourceKind(
        kind="TPU node",
        api="tpu",
        path=f"{_TPU}/nodes",
        places="tpu",
        items="nodes",
        version="v2alpha1/",
        order=1,
        limit_s=_TPU_LIMIT_S,
        command="compute tpus tpu-vm delete {id} --zone={l}",
    ),
    ResourceKind(
        kind="TPU instance",
        api="compute",
        path=f"{_COMPUTE}/aggregated/instances",
        places="aggregated",
        items="instances",
        version="compute/v1/",
        created="creationTimestamp",
        order=0,
        limit_s=_TPU_LIMIT_S,
        command="compute instances delete {id} --zone={l}",
    ),
    ResourceKind(
        kind="router",
        api="compute",
        path=f"{_COMPUTE}/aggregated/routers",
        places="aggregated",
        items="routers",
        version="compute/v1/",
        created="creationTimestamp",
        order=2,
        command="compute routers delete {id} --region={l}",
    ),
    ResourceKind(
        kind="firewall rule",
        api="compute",
        path=f"{_COMPUTE}/global/firewalls",
        places="project",
        version="compute/v1/",
        created="creationTimestamp",
        order=2,
        command="compute firewall-rules delete {id}",
    ),
    ResourceKind(
        kind="subnetwork",
        api="compute",
        path=f"{_COMPUTE}/aggregated/subnetworks",
        places="aggregated",
        items="subnetworks",
        version="compute/v1/",
        created="creationTimestamp",
        order=3,
        command="compute networks subnets delete {id} --region={l}",
    ),
    ResourceKind(
        kind="network",
        api="compute",
        path=f"{_COMPUTE}/global/networks",
        places="project",
        version="compute/v1/",
        created="creationTimestamp",
        order=4,
        command="compute networks delete {id}",
    ),
    ResourceKind(
        kind="secret",
        api="secretmanager",
        path="v1/projects/{p}/secrets",
        places="project",
        items="secrets",
        etag="etag",
        guard="etag",
        order=5,
        command="secrets delete {id}",
    ),
    ResourceKind(
        kind="service account",
        api="iam",
        path="v1/projects/{p}/serviceAccounts?pageSize=100",
        places="project",
        items="accounts",
        created="",
        order=6,
        command="iam service-accounts delete {id}",
    ),
    ResourceKind(
        kind="image repository",
        api="artifactregistry",
        path="v1/projects/{p}/locations/{l}/repositories",
        places="artifactregistry",
        items="repositories",
        order=8,
        command="artifacts repositories delete {id} --location={l}",
    ),
    ResourceKind(
        kind="bucket",
        api="storage",
        path="storage/v1/b?project={p}",
        places="project",
        created="timeCreated",
        etag="metageneration",
        guard="ifMetagenerationMatch",
        order=9,
        limit_s=3600,
        command="storage rm --recursive gs://{id}",
    ),
)
"""Every kind of resource that has a name of its own."""

GRANT: Final = "IAM grant"
"""Kind of a member of an IAM policy on the project, or on a bucket or secret of somebody else."""
GRANT_ORDER: Final = 7


def by_name(kind: str) -> ResourceKind:
    """Return the kind with this name."""
    return next(item for item in KINDS if item.kind == kind)


def order_of(kind: str) -> int:
    """Return the place of a kind in the order of deletion."""
    return GRANT_ORDER if kind == GRANT else by_name(kind).order
