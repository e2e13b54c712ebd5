"""Find the resources of a stack in the cloud by their labels and descriptions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

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


class _Kind(NamedTuple):
    """One list method, and the command that deletes an item."""

    kind: str
    api: str
    path: str
    """`{p}` is the project; a path with `{r}` or `{z}` is read once per region or zone."""
    command: str
    """Arguments of gcloud besides the project."""

    @property
    def key(self) -> str:
        """Key of the answer that holds the items."""
        return _KEYS.get(self.api) or self.path.rpartition("/")[2]

    def paths(self, scope: SearchScope) -> Iterator[str]:
        """Yield every path to read."""
        places = scope.regions if "{r}" in self.path else scope.zones if "{z}" in self.path else [""]
        for place in places:
            yield self.path.format(p=scope.project, r=place, z=place)


_KEYS: Final[Mapping[str, str]] = {"compute": "items", "storage": "items", "iam": "accounts"}
"""Keys of APIs whose answers do not name the items after the path."""

_TPU: Final = "v2alpha1/projects/{p}/locations/{z}"
_COMPUTE: Final = "compute/v1/projects/{p}"

KINDS: Sequence[_Kind] = (
    _Kind(
        "TPU queued resource",
        "tpu",
        f"{_TPU}/queuedResources",
        "alpha compute tpus queued-resources delete {id} --zone={l} --force",
    ),
    _Kind("TPU node", "tpu", f"{_TPU}/nodes", "compute tpus tpu-vm delete {id} --zone={l}"),
    _Kind(
        "Cloud Run service", "run", "v2/projects/{p}/locations/{r}/services", "run services delete {id} --region={l}"
    ),
    _Kind("secret", "secretmanager", "v1/projects/{p}/secrets", "secrets delete {id}"),
    _Kind("bucket", "storage", "storage/v1/b?project={p}", "storage rm --recursive gs://{id}"),
    _Kind(
        "image repository",
        "artifactregistry",
        "v1/projects/{p}/locations/{r}/repositories",
        "artifacts repositories delete {id} --location={l}",
    ),
    _Kind("service account", "iam", "v1/projects/{p}/serviceAccounts", "iam service-accounts delete {id}"),
    _Kind("network", "compute", f"{_COMPUTE}/global/networks", "compute networks delete {id}"),
    _Kind("firewall rule", "compute", f"{_COMPUTE}/global/firewalls", "compute firewall-rules delete {id}"),
    _Kind(
        "subnetwork",
        "compute",
        f"{_COMPUTE}/regions/{{r}}/subnetworks",
        "compute networks subnets delete {id} --region={l}",
    ),
    _Kind("router", "compute", f"{_COMPUTE}/regions/{{r}}/routers", "compute routers delete {id} --region={l}"),
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
            yield from cast("list[Mapping[str, object]]", page.get(kind.key) or [])
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
    identifier = str(item.get("email") or item.get("name") or "").rpartition("/")[2]
    arguments = kind.command.format(id=f"{identifier} --project={scope.project}", l=location)
    return FoundResource(kind=kind.kind, name=full, command=f"gcloud {arguments}")
