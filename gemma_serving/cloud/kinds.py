"""Table of all kinds of resources that a stack can leave behind: how to name, list, read and delete each, and its policy.

Names follow from the inputs of the provider `gcp` 10.2 (pulumi-gcp's schema and recorded states). Cloud NAT is part of its router.
Grants on a resource of the stack, versions of a secret, objects of a bucket and images of a repository are deleted with it.
Enabled APIs are retained, because other users may need them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from string import Formatter
from typing import Final, Literal, cast

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.labels import Ownership, owner_of, words_of

Item = Mapping[str, object]
Places = Literal["project", "aggregated", "tpu", "run", "artifactregistry"]
"""`project`, `aggregated` (all regions): one list. Otherwise one list for each location of that API."""


_VERSIONS: Final[Mapping[str, str]] = {
    "run": "v2/",
    "tpu": "v2alpha1/",
    "compute": "compute/v1/",
    "monitoring": "v3/",
    "storage": "storage/v1/",
}
"""Prefix of a full name in a path, by API; `v1/` for the others."""
_CREATED: Final[Mapping[str, str]] = {"compute": "creationTimestamp", "storage": "timeCreated"}
"""Field with the creation time, by API; `createTime` for the others."""
_GUARDS: Final[Mapping[str, tuple[str, str]]] = {
    "run": ("etag", "etag"),
    "secretmanager": ("etag", "etag"),
    "storage": ("ifMetagenerationMatch", "metageneration"),
}
"""Query parameter of a deletion, and field with the version of the document. The other APIs check none."""

LOCATIONS: Final[Mapping[Places, str]] = {
    "tpu": "v2alpha1/projects/{p}/locations?pageSize=500",
    "run": "v1/projects/{p}/locations?pageSize=500",
    "artifactregistry": "v1/projects/{p}/locations?pageSize=500",
}
"""List of locations by API. Of Cloud Run, only v1 has one (discovery: run.v2 has no projects.locations.list)."""


def list_in(answer: Item, key: str) -> Sequence[object]:
    """Return a list in a response; empty without one. Raises ScriptError for another value."""
    value = answer.get(key)
    if value is not None and not isinstance(value, list | tuple):
        raise ScriptError(f"Google returned an invalid response: {key} is not a list.")
    return as_sequence(cast("object", value))


def last_segments(inputs: Item) -> Mapping[str, str]:
    """Return the text inputs, paths as their last segment."""
    return {key: value.rpartition("/")[2] for key, value in inputs.items() if isinstance(value, str)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceKind:
    """A kind of resource."""

    kind: str
    type_: str = ""
    """Type in a state; empty if no program declares it."""
    api: str
    id: str
    """Full name, built from the inputs of that type. The list of a project or a location follows from it."""
    command: str
    """Arguments of gcloud; `{id}` is the id with the project, `{l}` the location."""
    order: int
    """Kinds with a lower number are deleted first."""
    limit_s: float = 600
    version: str = ""
    """Prefix of the full name in a path, if it is not the API's."""
    key: str = ""
    """Key of the resources in the list's response, if it is not the collection's name."""
    iam: str = ""
    """IAM's name of the collection, if it differs from the API's."""
    label_key: str = "labels"

    @property
    def prefix(self) -> str:
        """Prefix of the full name in a path."""
        return self.version or _VERSIONS.get(self.api, "v1/")

    @property
    def collection(self) -> str:
        """The API's name for all resources of the kind."""
        return self.id.split("/")[-2]

    @property
    def places(self) -> Places:
        """Scope of its lists."""
        if "/{location}/" in self.id:
            return next(places for places in LOCATIONS if places == self.api)
        return "aggregated" if "/regions/" in self.id or "/zones/" in self.id else "project"

    @property
    def path(self) -> str:
        """Path of the list; `{p}` is the project, `{l}` the location."""
        if self.api == "storage":
            return "storage/v1/b?project={p}"
        if self.places == "aggregated":
            return f"{self.prefix}projects/{{p}}/aggregated/{self.collection}"
        parent = self.id.rpartition("/")[0].replace("{project}", "{p}").replace("{location}", "{l}")
        return self.prefix + parent

    @property
    def items(self) -> str:
        """Key of the resources in the list's response."""
        return self.key or self.collection

    @property
    def permission(self) -> str:
        """The permission to list it."""
        return f"{self.api}.{self.iam or self.collection}.list"

    def labels(self, item: Item) -> Sequence[Mapping[str, str]]:
        """Return the labels of a resource; of a queued resource, which has none, its nodes' labels."""
        holders = [item]
        if self.kind == QUEUED:
            specs = as_sequence(as_mapping(item.get("tpu")).get("nodeSpec"))
            holders = [as_mapping(as_mapping(spec).get("node")) for spec in specs]
        found = [as_mapping(holder.get(self.label_key)) for holder in holders]
        return [{key: str(value) for key, value in labels.items()} for labels in found if labels]

    def owner(self, item: Item) -> Ownership | None:
        """Return the stack that a resource belongs to; None if it names none, or two."""
        text = str(item.get("description") or "")
        owners = {owner_of(labels=labels, description=text) for labels in self.labels(item) or [{}]}
        return owners.pop() if len(owners) == 1 else None

    def marks(self, item: Item) -> Mapping[str, str]:
        """Return the labels, or the words of the description."""
        return next(iter(self.labels(item)), words_of(str(item.get("description") or "")))

    @property
    def needs(self) -> tuple[str, ...]:
        """Inputs that form its full name."""
        return tuple(dict.fromkeys(key for _, key, _, _ in Formatter().parse(self.id) if key))

    def named(self, inputs: Item) -> str:
        """Return the full name of a declared resource with these inputs. Raises KeyError if an input is missing."""
        return self.id.format_map(last_segments(inputs))

    def name(self, item: Item) -> str:
        """Return the full name."""
        if self.api == "storage":
            return f"projects/_/buckets/{item.get('name')}"
        link = str(item.get("selfLink") or "").partition("/compute/v1/")[2]
        return link or str(item.get("name") or "")

    def location(self, item: Item) -> str:
        """Return the zone, region or multi-region in lower case, otherwise `global`."""
        if self.api == "storage":
            return str(item.get("location") or "").lower()
        parts = self.name(item).split("/")
        return next((after for at, after in pairwise(parts) if at in _PLACES), "global")

    def address(self, name: str) -> str:
        """Return the path of one resource by its full name."""
        return f"storage/v1/b/{name.rpartition('/')[2]}" if self.api == "storage" else self.prefix + name

    def created(self, item: Item) -> str:
        """Return the creation time (RFC 3339); empty if the API does not state it."""
        return str(item.get(_CREATED.get(self.api, "createTime")) or "")

    def deletion(self, item: Item) -> Mapping[str, str]:
        """Return the query parameters of a deletion, which delete only this version if the API checks it."""
        if self.kind == QUEUED:
            return {"force": "true"}
        parameter, field = _GUARDS.get(self.api, ("", ""))
        return {parameter: str(item.get(field) or "")} if parameter else {}

    def delete_command(self, name: str, *, project: str, location: str) -> str:
        """Return the command that deletes a resource."""
        identifier = f"{name.rpartition('/')[2]} --project={project}"
        return f"gcloud {self.command.format(id=identifier, l=location)}"


QUEUED: Final = "TPU queued resource"
NODE: Final = "TPU node"
INSTANCE: Final = "TPU instance"
SERVICE: Final = "Cloud Run service"
SUBNETWORK: Final = "subnetwork"
NETWORK: Final = "network"
ROUTER: Final = "router"
FIREWALL: Final = "firewall rule"
SECRET: Final = "secret"  # noqa: S105 - a kind of resource
ACCOUNT: Final = "service account"
BUCKET: Final = "bucket"
REPOSITORY: Final = "image repository"

_PLACES: Final = ("locations", "regions", "zones")
_TPU_LIMIT_S: Final = 1800.0

KINDS: Final[Sequence[ResourceKind]] = (
    ResourceKind(
        kind=SERVICE,
        type_="gcp:cloudrunv2/service:Service",
        api="run",
        id="projects/{project}/locations/{location}/services/{name}",
        order=0,
        command="run services delete {id} --region={l}",
    ),
    ResourceKind(
        kind=QUEUED,
        api="tpu",
        id="projects/{project}/locations/{location}/queuedResources/{queuedResourceId}",
        iam="nodes",
        order=0,
        limit_s=_TPU_LIMIT_S,
        command="alpha compute tpus queued-resources delete {id} --zone={l} --force",
    ),
    ResourceKind(
        kind=NODE,
        api="tpu",
        id="projects/{project}/locations/{location}/nodes/{nodeId}",
        order=1,
        limit_s=_TPU_LIMIT_S,
        command="compute tpus tpu-vm delete {id} --zone={l}",
    ),
    ResourceKind(
        kind=INSTANCE,
        api="compute",
        id="projects/{project}/zones/{zone}/instances/{name}",
        order=0,
        limit_s=_TPU_LIMIT_S,
        command="compute instances delete {id} --zone={l}",
    ),
    ResourceKind(
        kind="alert policy",
        type_="gcp:monitoring/alertPolicy:AlertPolicy",
        api="monitoring",
        id="projects/{project}/alertPolicies/{name}",
        label_key="userLabels",
        order=0,
        command="alpha monitoring policies delete {id}",
    ),
    ResourceKind(
        kind="notification channel",
        type_="gcp:monitoring/notificationChannel:NotificationChannel",
        api="monitoring",
        id="projects/{project}/notificationChannels/{name}",
        label_key="userLabels",
        order=1,
        command="beta monitoring channels delete {id}",
    ),
    ResourceKind(
        kind="dashboard",
        type_="gcp:monitoring/dashboard:Dashboard",
        api="monitoring",
        id="projects/{project}/dashboards/{name}",
        version="v1/",
        order=1,
        command="monitoring dashboards delete {id}",
    ),
    ResourceKind(
        kind=ROUTER,
        type_="gcp:compute/router:Router",
        api="compute",
        id="projects/{project}/regions/{region}/routers/{name}",
        order=2,
        command="compute routers delete {id} --region={l}",
    ),
    ResourceKind(
        kind=FIREWALL,
        type_="gcp:compute/firewall:Firewall",
        api="compute",
        id="projects/{project}/global/firewalls/{name}",
        key="items",
        order=2,
        command="compute firewall-rules delete {id}",
    ),
    ResourceKind(
        kind=SUBNETWORK,
        type_="gcp:compute/subnetwork:Subnetwork",
        api="compute",
        id="projects/{project}/regions/{region}/subnetworks/{name}",
        order=3,
        command="compute networks subnets delete {id} --region={l}",
    ),
    ResourceKind(
        kind=NETWORK,
        type_="gcp:compute/network:Network",
        api="compute",
        id="projects/{project}/global/networks/{name}",
        key="items",
        order=4,
        command="compute networks delete {id}",
    ),
    ResourceKind(
        kind=SECRET,
        type_="gcp:secretmanager/secret:Secret",
        api="secretmanager",
        id="projects/{project}/secrets/{secretId}",
        order=5,
        command="secrets delete {id}",
    ),
    ResourceKind(
        kind=ACCOUNT,
        type_="gcp:serviceaccount/account:Account",
        api="iam",
        id="projects/{project}/serviceAccounts/{accountId}@{project}.iam.gserviceaccount.com",
        key="accounts",
        order=7,
        command="iam service-accounts delete {id}",
    ),
    ResourceKind(
        kind=REPOSITORY,
        type_="gcp:artifactregistry/repository:Repository",
        api="artifactregistry",
        id="projects/{project}/locations/{location}/repositories/{repositoryId}",
        order=8,
        command="artifacts repositories delete {id} --location={l}",
    ),
    ResourceKind(
        kind=BUCKET,
        type_="gcp:storage/bucket:Bucket",
        api="storage",
        id="projects/_/buckets/{name}",
        key="items",
        order=9,
        limit_s=3600,
        command="storage rm --recursive gs://{id}",
    ),
)

BY_TYPE: Final[Mapping[str, ResourceKind]] = {kind.type_: kind for kind in KINDS if kind.type_}

GRANT: Final = "IAM grant"
"""Kind of a member of an IAM policy on the project, or on another owner's bucket or secret."""
_GRANT_ORDER: Final = 6
"""Before the accounts: gcloud cannot remove the grant of a deleted member by the name that it had."""


def by_name(kind: str) -> ResourceKind:
    """Return the kind with this name."""
    return next(item for item in KINDS if item.kind == kind)


def order_of(kind: str) -> int:
    """Return the position of a kind in the deletion order."""
    return _GRANT_ORDER if kind == GRANT else by_name(kind).order


POLICIES: Final[Mapping[str, str]] = {
    "gcp:projects/iAMMember:IAMMember": "projects remove-iam-policy-binding {project}",
    "gcp:serviceaccount/iAMMember:IAMMember": (
        "iam service-accounts remove-iam-policy-binding {serviceAccountId} --project={project}"
    ),
    "gcp:secretmanager/secretIamMember:SecretIamMember": (
        "secrets remove-iam-policy-binding {secretId} --project={project}"
    ),
    "gcp:storage/bucketIAMMember:BucketIAMMember": "storage buckets remove-iam-policy-binding gs://{bucket}",
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": (
        "artifacts repositories remove-iam-policy-binding {repository} --location={location} --project={project}"
    ),
    "gcp:cloudrunv2/serviceIamMember:ServiceIamMember": (
        "run services remove-iam-policy-binding {name} --region={location} --project={project}"
    ),
}
"""Arguments of the gcloud command that removes a grant, with its inputs, by type of grant that a stack creates."""
