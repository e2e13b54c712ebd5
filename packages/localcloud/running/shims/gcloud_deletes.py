"""Manual deletions: the `gcloud ... delete` commands that a teardown prints, for the local cloud's `gcloud`."""

import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Call: TypeAlias = Callable[[str, str], dict[str, Any]]
"""Sends a request (verb and path) as the caller and returns the JSON object of the response."""

_POLL_S: Final = 0.1
_COMPUTE: Final = "/compute/compute/v1/projects/{project}"
_TPU: Final = "/tpu/v2alpha1/projects/{project}/locations/{place}"
_PLACES: Final = ("zone", "region", "location")
_FLAGS: Final = frozenset({"--force", "--quiet", "-q", "--recursive"})
_PATHS: Final[Mapping[str, str]] = {
    "run services delete": "/run/v2/projects/{project}/locations/{place}/services/{id}",
    "compute tpus queued-resources delete": f"{_TPU}/queuedResources/{{id}}",
    "compute tpus tpu-vm delete": f"{_TPU}/nodes/{{id}}",
    "compute instances delete": f"{_COMPUTE}/zones/{{place}}/instances/{{id}}",
    "compute routers delete": f"{_COMPUTE}/regions/{{place}}/routers/{{id}}",
    "compute firewall-rules delete": f"{_COMPUTE}/global/firewalls/{{id}}",
    "compute networks subnets delete": f"{_COMPUTE}/regions/{{place}}/subnetworks/{{id}}",
    "compute networks delete": f"{_COMPUTE}/global/networks/{{id}}",
    "secrets delete": "/secretmanager/v1/projects/{project}/secrets/{id}",
    "iam service-accounts delete": "/iam/v1/projects/{project}/serviceAccounts/{id}",
    "artifacts repositories delete": "/artifactregistry/v1/projects/{project}/locations/{place}/repositories/{id}",
    "monitoring policies delete": "/monitoring/v3/projects/{project}/alertPolicies/{id}",
    "monitoring channels delete": "/monitoring/v3/projects/{project}/notificationChannels/{id}",
    "monitoring dashboards delete": "/monitoring/v1/projects/{project}/dashboards/{id}",
}
"""Path of the resource that a command deletes."""
_BUCKET: Final = "storage rm"


class DeletionError(Exception):
    """A deletion that the service accepted but did not finish, or an incomplete command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A parsed command. `path` is the resource's, or empty for a bucket with its objects."""

    path: str
    bucket: str
    force: bool


def parse(words: Sequence[str], project: str) -> Deletion | None:
    """Return the deletion of a command, or None if it is another command. Raises DeletionError if the command is incomplete."""
    names = [word for word in words if not word.startswith("-")]
    options = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
    command = next((known for known in (*_PATHS, _BUCKET) if names[: known.count(" ") + 1] == known.split()), None)
    if command is None:
        return None
    unknown = [word for word in words if word.startswith("-") and "=" not in word and word not in _FLAGS]
    unknown += [f"--{name}" for name in options if name not in (*_PLACES, "project", "account")]
    given = names[command.count(" ") + 1 :]
    path = _PATHS.get(command, "")
    project = options.get("project") or project
    place = next((options[name] for name in _PLACES if name in options), "")
    if len(given) != 1 or unknown or not project or ("{place}" in path and not place):
        raise DeletionError(
            f"`gcloud {command}` of the stand-in needs one name, --project and, if the resource has one, --region, --zone or --location, "
            f"each option in one word{'; unknown: ' + ', '.join(unknown) if unknown else ''}."
        )
    bucket = given[0].removeprefix("gs://").rstrip("/") if command == _BUCKET else ""
    full = path.format(project=project, place=place, id=urllib.parse.quote(given[0], safe="@"))
    return Deletion(path=full, bucket=bucket, force="--force" in words)


def run(deletion: Deletion, call: Call) -> None:
    """Delete the resource and wait until it is gone. Raises DeletionError, and the errors of `call`."""
    if deletion.bucket:
        _empty(deletion.bucket, call)
        call("DELETE", f"/storage/storage/v1/b/{deletion.bucket}")
        return
    operation = call("DELETE", deletion.path + ("?force=true" if deletion.force else ""))
    while not _is_done(operation):
        time.sleep(_POLL_S)
        operation = call("GET", _operation_path(deletion.path, operation))
    error = operation.get("error")
    if error:
        raise DeletionError(str(error.get("message") or error["errors"][0]["message"]))


def _empty(bucket: str, call: Call) -> None:
    for name in _objects(bucket, call):
        call("DELETE", f"/storage/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}")


def _objects(bucket: str, call: Call) -> Iterator[str]:
    while found := call("GET", f"/storage/storage/v1/b/{bucket}/o").get("items"):
        yield from (str(item["name"]) for item in found)


def _is_done(operation: Mapping[str, Any]) -> bool:
    """Return whether a response is not an operation or is a finished one."""
    if operation.get("kind") == "compute#operation":
        return operation.get("status") == "DONE"
    return "/operations/" not in str(operation.get("name", "")) or bool(operation.get("done"))


def _operation_path(path: str, operation: Mapping[str, Any]) -> str:
    if operation.get("kind") == "compute#operation":
        scope = path.rsplit("/", 2)[0]
        return f"{scope}/operations/{operation['name']}"
    return f"/{'/'.join(path.split('/')[1:3])}/{operation['name']}"
