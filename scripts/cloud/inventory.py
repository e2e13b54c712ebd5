"""Finds what a stack left in the cloud, by the labels and descriptions that all its resources carry."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from scripts.cloud.google_api import ApiError, GoogleApi
from scripts.errors import ScriptError

MANAGED_BY = "gemma-serving"

_NOT_ENABLED = "SERVICE_DISABLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A resource that carries a stack's labels: what it is, its full name, and the command that deletes it by hand."""

    kind: str
    name: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Where to look: a project, the regions and zones that the stack may have used, and whose labels."""

    project: str
    regions: Sequence[str]
    zones: Sequence[str]
    pulumi_project: str
    stack: str

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels that mark the stack's resources."""
        return {
            "managed-by": MANAGED_BY,
            "gemma-serving-project": self.pulumi_project,
            "gemma-serving-stack": self.stack,
        }

    @property
    def words(self) -> frozenset[str]:
        """The same, as they stand in descriptions."""
        return frozenset(f"{key}={value}" for key, value in self.labels.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """One list method: where it is, which key of the answer holds the items, and how such a thing is deleted by hand."""

    kind: str
    api: str
    key: str
    paths: Callable[[Scope], Sequence[str]]
    command: str


def _project(path: str) -> Callable[[Scope], Sequence[str]]:
    return lambda scope: [path.format(p=scope.project)]


def _regional(path: str) -> Callable[[Scope], Sequence[str]]:
    return lambda scope: [path.format(p=scope.project, r=region) for region in scope.regions]


def _zonal(path: str) -> Callable[[Scope], Sequence[str]]:
    return lambda scope: [path.format(p=scope.project, z=zone) for zone in scope.zones]


_COMPUTE = "compute/v1/projects/{p}/"

KINDS: Sequence[_Kind] = (
    _Kind(
        kind="TPU queued resource",
        api="tpu",
        key="queuedResources",
        paths=_zonal("v2alpha1/projects/{p}/locations/{z}/queuedResources"),
        command="gcloud alpha compute tpus queued-resources delete {id} --project={p} --zone={l} --force",
    ),
    _Kind(
        kind="TPU node",
        api="tpu",
        key="nodes",
        paths=_zonal("v2alpha1/projects/{p}/locations/{z}/nodes"),
        command="gcloud compute tpus tpu-vm delete {id} --project={p} --zone={l}",
    ),
    _Kind(
        kind="Cloud Run service",
        api="run",
        key="services",
        paths=_regional("v2/projects/{p}/locations/{r}/services"),
        command="gcloud run services delete {id} --project={p} --region={l}",
    ),
    _Kind(
        kind="secret",
        api="secretmanager",
        key="secrets",
        paths=_project("v1/projects/{p}/secrets"),
        command="gcloud secrets delete {id} --project={p}",
    ),
    _Kind(
        kind="bucket",
        api="storage",
        key="items",
        paths=_project("storage/v1/b?project={p}"),
        command="gcloud storage rm --recursive gs://{id}",
    ),
    _Kind(
        kind="image repository",
        api="artifactregistry",
        key="repositories",
        paths=_regional("v1/projects/{p}/locations/{r}/repositories"),
        command="gcloud artifacts repositories delete {id} --project={p} --location={l}",
    ),
    _Kind(
        kind="service account",
        api="iam",
        key="accounts",
        paths=_project("v1/projects/{p}/serviceAccounts"),
        command="gcloud iam service-accounts delete {id} --project={p}",
    ),
    _Kind(
        kind="network",
        api="compute",
        key="items",
        paths=_project(_COMPUTE + "global/networks"),
        command="gcloud compute networks delete {id} --project={p}",
    ),
    _Kind(
        kind="firewall rule",
        api="compute",
        key="items",
        paths=_project(_COMPUTE + "global/firewalls"),
        command="gcloud compute firewall-rules delete {id} --project={p}",
    ),
    _Kind(
        kind="subnetwork",
        api="compute",
        key="items",
        paths=_regional(_COMPUTE + "regions/{r}/subnetworks"),
        command="gcloud compute networks subnets delete {id} --project={p} --region={l}",
    ),
    _Kind(
        kind="router",
        api="compute",
        key="items",
        paths=_regional(_COMPUTE + "regions/{r}/routers"),
        command="gcloud compute routers delete {id} --project={p} --region={l}",
    ),
)
"""Everything that a stack of this project can leave behind. IAM grants go with what they are granted on; enabled APIs stay on purpose."""


def search(api: GoogleApi, scope: Scope) -> Iterator[Found]:
    """Yield every resource in scope that carries the stack's labels.

    Raises ScriptError where something cannot be read: what could not be looked at was not proved to be gone.
    """
    for kind in KINDS:
        for path in kind.paths(scope):
            for item in _items(api, kind, path):
                if belongs(item, scope):
                    yield _found(kind, item, scope)


def belongs(item: Mapping[str, object], scope: Scope) -> bool:
    """Whether a resource carries all the stack's labels, or all their words in its description."""
    labels = cast("Mapping[str, object]", item.get("labels") or {})
    if all(labels.get(key) == value for key, value in scope.labels.items()):
        return True
    return scope.words <= set(str(item.get("description") or "").split())


def _items(api: GoogleApi, kind: _Kind, path: str) -> Iterator[Mapping[str, object]]:
    try:
        for page in api.pages(kind.api, path):
            yield from cast("list[Mapping[str, object]]", page.get(kind.key) or [])
    except ApiError as error:
        # An API that is not enabled, or a location that does not exist, holds nothing.
        if error.reason == _NOT_ENABLED or error.status == 404:  # noqa: PLR2004  HTTP's own number
            return
        raise ScriptError(
            f"Whether a {kind.kind} is left cannot be said: {path.partition('?')[0]} answered: {error}"
        ) from None


def _found(kind: _Kind, item: Mapping[str, object], scope: Scope) -> Found:
    name = str(item.get("selfLink") or item.get("name") or "")
    full = name.partition("/compute/v1/")[2] or name
    parts = full.split("/")
    places = ("locations", "regions", "zones")
    location = next((parts[i + 1] for i, part in enumerate(parts[:-1]) if part in places), "")
    return Found(
        kind=kind.kind,
        name=full,
        command=kind.command.format(
            id=str(item.get("email") or item.get("name") or "").rpartition("/")[2], p=scope.project, l=location
        ),
    )
