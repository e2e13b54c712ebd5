"""Artifact Registry v1: repositories and their IAM policies. Images themselves are not kept."""

from localcloud.json_values import JsonObject
from localcloud.rest import filters
from localcloud.rest.call import Call, Handler, check_id, masked, page
from localcloud.rest.errors import CloudError
from localcloud.services.common import (
    check_labels,
    check_region,
    policy_handlers,
    visible,
    with_token,
)
from localcloud.world.cloud import Cloud

REPOSITORIES = "artifactregistry.repositories"
_TYPE = "type.googleapis.com/google.devtools.artifactregistry.v1"
_UPDATABLE = {
    "description",
    "labels",
    "cleanupPolicies",
    "cleanupPolicyDryRun",
    "dockerConfig",
    "remoteRepositoryConfig",
    "virtualRepositoryConfig",
    "vulnerabilityScanningConfig",
    "mavenConfig",
}


def handlers(cloud: Cloud) -> dict[str, Handler]:  # noqa: C901 - small functions side by side, one a method
    """Methods of repositories."""
    store = cloud.store

    def repository(name: str) -> JsonObject:
        document = store.get(REPOSITORIES, name)
        if document is None:
            raise CloudError.not_found(f"Requested entity was not found: repository '{name}'.")
        return document

    def exists(call: Call) -> None:
        repository(call.name)

    def operation(parent: str, response: JsonObject | None) -> JsonObject:
        typed = None if response is None else {"@type": f"{_TYPE}.Repository", **visible(response)}
        return cloud.operations.timed(
            "artifactregistry",
            parent,
            duration_s=cloud.duration_s(cloud.scenario.operations.artifactregistry_s),
            response=typed,
            metadata={"@type": f"{_TYPE}.OperationMetadata"},
        )

    def create(call: Call) -> JsonObject:
        location = (
            check_region(call.name)
            if call.name.split("/")[3] not in {"us", "europe", "asia"}
            else call.name.split("/")[3]
        )
        repository_id = check_id(call.query.get("repositoryId"), "repository_id", "[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
        name = f"{call.name}/repositories/{repository_id}"
        if store.has(REPOSITORIES, name):
            raise CloudError.already_exists("the repository already exists")
        body = {key: value for key, value in call.body.items() if key != "name"}
        check_labels(body.get("labels"), "repository.labels")
        if body.get("format", "FORMAT_UNSPECIFIED") == "FORMAT_UNSPECIFIED":
            raise CloudError.field("repository.format", "The repository's format must be given, such as DOCKER.")
        mode = body.setdefault("mode", "STANDARD_REPOSITORY")
        if (mode == "REMOTE_REPOSITORY") != ("remoteRepositoryConfig" in body):
            raise CloudError.field(
                "repository.remote_repository_config",
                f"remote_repository_config belongs to the mode REMOTE_REPOSITORY and to no other; the mode is {mode}.",
            )
        now = cloud.timeline.stamp()
        project = call.name.split("/")[1]
        document: JsonObject = {"name": name, **body, "createTime": now, "updateTime": now}
        document["registryUri"] = f"{location}-docker.pkg.dev/{project}/{repository_id}"
        store.put(REPOSITORIES, name, document)
        return operation(call.name, document)

    def read(call: Call) -> JsonObject:
        return visible(repository(call.name))

    def listed(call: Call) -> JsonObject:
        found = [
            (name, visible(document)) for name, document in store.under(REPOSITORIES, call.name + "/repositories/")
        ]
        found = filters.chosen(found, call.query.get("filter"))
        repositories, following = page(found, size=call.query.get("pageSize"), token=call.query.get("pageToken"))
        return with_token({"repositories": repositories}, following)

    def patch(call: Call) -> JsonObject:
        document = repository(call.name)
        check_labels(call.body.get("labels"), "repository.labels")
        mask = call.query.get("updateMask") or ",".join(key for key in call.body if key in _UPDATABLE)
        updated = masked(document, call.body, mask, allowed=_UPDATABLE) if mask else document
        updated["updateTime"] = cloud.timeline.stamp()
        return visible(store.put(REPOSITORIES, call.name, updated))

    def delete(call: Call) -> JsonObject:
        repository(call.name)
        store.delete(REPOSITORIES, call.name)
        cloud.policies.forget(f"//artifactregistry.googleapis.com/{call.name}")
        return operation("/".join(call.name.split("/")[:4]), None)

    def read_operation(call: Call) -> JsonObject:
        return cloud.operations.get("artifactregistry", call.name)

    prefix = "artifactregistry.projects.locations.repositories"
    return {
        f"{prefix}.create": create,
        f"{prefix}.get": read,
        f"{prefix}.list": listed,
        f"{prefix}.patch": patch,
        f"{prefix}.delete": delete,
        **policy_handlers(cloud, prefix, exists),
        "artifactregistry.projects.locations.operations.get": read_operation,
    }
