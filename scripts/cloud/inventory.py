"""Find the resources of a stack in the cloud by their labels and descriptions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from contracts.labels import Ownership
from scripts.cloud.google_api import GoogleApi, GoogleListError
from scripts.errors import ScriptError

_NOT_ENABLED = "SERVICE_DISABLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundResource:
    """A resource with a stack's labels: its kind, its full name, and the command that deletes it."""

    kind: str
    name: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchScope:
    """Where to search: a project, all regions and zones that the stack may have used, and the owner of the resources."""

    project: str
    regions: Sequence[str]
    zones: Sequence[str]
    owner: Ownership


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """One list method: its API and paths, and the command that deletes an item."""

    kind: str
    api: str
    path: str
    """`{p}` is the project; a path with `{r}` or `{z}` is read once per region or zone."""
    command: str
    key: str = ""
    """Key of the answer that holds the items, where it is not the last part of the path."""

    @property
    def items_key(self) -> str:
        """Key of the answer that holds the items."""
        return self.key or self.path.rpartition("/")[2]

    def paths(self, scope: SearchScope) -> Iterator[str]:
        """Yield every path to read."""
        places = scope.regions if "{r}" in self.path else scope.zones if "{z}" in self.path else [""]
        for place in places:
            yield self.path.format(p=scope.project, r=place, z=place)


_COMPUTE = "compute/v1/projects/{p}/"

KINDS: Sequence[_Kind] = (
    _Kind(
        kind="TPU queued resource",
        api="tpu",
        path="v2alpha1/projects/{p}/locations/{z}/queuedResources",
        command="gcloud alpha compute tpus queued-resources delete {id} --project={p} --zone={l} --force",
    ),
    _Kind(
        kind="TPU node",
        api="tpu",
        path="v2alpha1/projects/{p}/locations/{z}/nodes",
        command="gcloud compute tpus tpu-vm delete {id} --project={p} --zone={l}",
    ),
    _Kind(
        kind="Cloud Run service",
        api="run",
        path="v2/projects/{p}/locations/{r}/services",
        command="gcloud run services delete {id} --project={p} --region={l}",
    ),
    _Kind(
        kind="secret",
        api="secretmanager",
        path="v1/projects/{p}/secrets",
        command="gcloud secrets delete {id} --project={p}",
    ),
    _Kind(
        kind="bucket",
        api="storage",
        key="items",
        path="storage/v1/b?project={p}",
        command="gcloud storage rm --recursive gs://{id}",
    ),
    _Kind(
        kind="image repository",
        api="artifactregistry",
        path="v1/projects/{p}/locations/{r}/repositories",
        command="gcloud artifacts repositories delete {id} --project={p} --location={l}",
    ),
    _Kind(
        kind="service account",
        api="iam",
        key="accounts",
        path="v1/projects/{p}/serviceAccounts",
        command="gcloud iam service-accounts delete {id} --project={p}",
    ),
    _Kind(
        kind="network",
        api="compute",
        key="items",
        path=_COMPUTE + "global/networks",
        command="gcloud compute networks delete {id} --project={p}",
    ),
    _Kind(
        kind="firewall rule",
        api="compute",
        key="items",
        path=_COMPUTE + "global/firewalls",
        command="gcloud compute firewall-rules delete {id} --project={p}",
    ),
    _Kind(
        kind="subnetwork",
        api="compute",
        key="items",
        path=_COMPUTE + "regions/{r}/subnetworks",
        command="gcloud compute networks subnets delete {id} --project={p} --region={l}",
    ),
    _Kind(
        kind="router",
        api="compute",
        key="items",
        path=_COMPUTE + "regions/{r}/routers",
        command="gcloud compute routers delete {id} --project={p} --region={l}",
    ),
)
"""Every kind of resource that a stack can leave behind. IAM grants disappear with their resource; enabled APIs stay on purpose."""


def search(api: GoogleApi, scope: SearchScope) -> Iterator[FoundResource]:
    """Yield every resource in scope that the stack owns.

    Raises ScriptError if a list cannot be read, because the search then proves nothing.
    """
    for kind in KINDS:
        for path in kind.paths(scope):
            for item in _items(api, kind, path):
                if belongs(item, scope.owner):
                    yield _found(kind, item, scope)


def belongs(item: Mapping[str, object], owner: Ownership) -> bool:
    """Whether a resource carries all the owner's labels, or all their words in its description."""
    labels = cast("Mapping[str, object]", item.get("labels") or {})
    return owner.owns(labels=labels, description=str(item.get("description") or ""))


def _items(api: GoogleApi, kind: _Kind, path: str) -> Iterator[Mapping[str, object]]:
    try:
        for page in api.pages(kind.api, path):
            yield from cast("list[Mapping[str, object]]", page.get(kind.items_key) or [])
    except GoogleListError as error:
        # A disabled API or a location that does not exist holds no resources.
        if error.reason == _NOT_ENABLED or error.status == 404:  # noqa: PLR2004 - HTTP's own number
            return
        raise ScriptError(
            f"Could not check whether a {kind.kind} still exists: {path.partition('?')[0]} answered: {error}"
        ) from None


def _found(kind: _Kind, item: Mapping[str, object], scope: SearchScope) -> FoundResource:
    name = str(item.get("selfLink") or item.get("name") or "")
    full = name.partition("/compute/v1/")[2] or name
    parts = full.split("/")
    places = ("locations", "regions", "zones")
    location = next((parts[i + 1] for i, part in enumerate(parts[:-1]) if part in places), "")
    return FoundResource(
        kind=kind.kind,
        name=full,
        command=kind.command.format(
            id=str(item.get("email") or item.get("name") or "").rpartition("/")[2], p=scope.project, l=location
        ),
    )
