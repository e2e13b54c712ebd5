"""Resources that trials create: how each kind is created, labeled, listed and deleted.

Every name starts with PREFIX. Kinds that have labels or a description also have an ownership marker. A resource of such a kind
without the marker is not owned and is left alone.
"""

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from localcloud.json_values import JsonObject, as_list, as_object

PREFIX: Final = "localcloud-try-"
MARK: Final = "localcloud-try"
"""A label's key, and the first word of a description."""
_LOGIN: Final = '"Authorization: Bearer $(gcloud auth print-access-token)"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A collection of an API, in which trials create resources."""

    collection: str
    """URL with PROJECT."""
    items: str
    """Field of a listing that has the resources."""
    id_parameter: str = ""
    """Query parameter of a creation that has the name; empty for service accounts, whose body has it."""
    marked: Literal["labels", "description", ""] = "labels"
    """Field that has the ownership marker. A queued resource has none."""
    delete_query: str = ""

    def url(self, project: str) -> str:
        """Return the URL of the collection in a project."""
        return self.collection.replace("PROJECT", project)


KINDS: Final = {
    "serviceAccounts": Kind(
        collection="https://iam.googleapis.com/v1/projects/PROJECT/serviceAccounts",
        items="accounts",
        marked="description",
    ),
    "queuedResources": Kind(
        collection="https://tpu.googleapis.com/v2alpha1/projects/PROJECT/locations/us-east5-a/queuedResources",
        items="queuedResources",
        id_parameter="queuedResourceId",
        marked="",
        delete_query="?force=true",
    ),
    "jobs": Kind(
        collection="https://run.googleapis.com/v2/projects/PROJECT/locations/us-east4/jobs",
        items="jobs",
        id_parameter="jobId",
    ),
    "services": Kind(
        collection="https://run.googleapis.com/v2/projects/PROJECT/locations/us-east4/services",
        items="services",
        id_parameter="serviceId",
    ),
    "secrets": Kind(
        collection="https://secretmanager.googleapis.com/v1/projects/PROJECT/secrets",
        items="secrets",
        id_parameter="secretId",
    ),
}
"""By the last segment of the collection's path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResource:
    """A resource that a trial creates."""

    kind: Kind
    project: str
    name: str

    @property
    def create_url(self) -> str:
        """Return the URL of its creation."""
        return self.kind.url(self.project) + (
            f"?{self.kind.id_parameter}={self.name}" if self.kind.id_parameter else ""
        )

    @property
    def url(self) -> str:
        """Return its own URL."""
        is_account = not self.kind.id_parameter
        return f"{self.kind.url(self.project)}/{self.name}" + (
            f"@{self.project}.iam.gserviceaccount.com" if is_account else ""
        )

    @property
    def delete_url(self) -> str:
        """Return the URL of its deletion."""
        return self.url + self.kind.delete_query

    def body(self, given: Mapping[str, object], run: str) -> JsonObject:
        """Return the body of its creation, with this run's ownership marker."""
        if not self.kind.id_parameter:
            return {"accountId": self.name, "serviceAccount": {**given, "description": f"{MARK} {run}"}}
        return {**given, "labels": {MARK: run}} if self.kind.marked else dict(given)


@dataclass(frozen=True, slots=True)
class OwnResource:
    """A resource that a run of this journal created, by its own request, or by the run's id in name and mark. Each deletion takes one."""

    resource: TrialResource


def own_items(kind: Kind, project: str, answer: object, runs: Collection[str]) -> tuple[list[OwnResource], list[str]]:
    """Return the resources of a listing that these runs created, and a sentence about each that only looks like theirs."""
    own: list[OwnResource] = []
    foreign: list[str] = []
    for item in map(as_object, as_list(as_object(answer).get(kind.items))):
        name = str(item.get("email") or item.get("name") or "").rpartition("/")[2].partition("@")[0]
        if not name.startswith(PREFIX):
            continue
        found = TrialResource(kind=kind, project=project, name=name)
        is_named = any(name.startswith(PREFIX + run) for run in runs)
        if is_named and (not kind.marked or _mark(kind, item) in runs):
            own.append(OwnResource(found))
        else:
            command = f"curl -X DELETE -H {_LOGIN} {shlex.quote(found.delete_url)}"
            foreign.append(
                f"{found.url}: no run of this journal has its name and label. If no run uses it, run `{command}`"
            )
    return own, foreign


def _mark(kind: Kind, item: Mapping[str, object]) -> str:
    """Return the id of the run in a resource's label or description; empty without one."""
    if kind.marked == "labels":
        return str(as_object(item.get("labels")).get(MARK) or "")
    word, _, run = str(item.get("description") or "").partition(" ")
    return run if word == MARK else ""
