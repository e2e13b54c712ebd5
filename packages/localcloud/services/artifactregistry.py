"""Artifact Registry v1: repositories and their IAM policies. Images are read through the registry API alone."""

from localcloud.json_values import JsonObject, part
from localcloud.rest.call import Call, Handler, check_id, masked
from localcloud.rest.errors import CloudError
from localcloud.services.checks import check_labels, check_region, region_documents
from localcloud.services.registries import IMAGES, REPOSITORIES, Registries
from localcloud.services.service import ApiService, OperationsService, PolicyService, listing, method, visible
from localcloud.world.cloud import REGIONS, Cloud

_TYPE = "type.googleapis.com/google.devtools.artifactregistry.v1"
_MULTI_REGIONS = {"us", "europe", "asia"}
_UPSTREAMS = (
    "aptRepository",
    "commonRepository",
    "dockerRepository",
    "mavenRepository",
    "npmRepository",
    "pythonRepository",
    "yumRepository",
)
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


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of repositories and operations."""
    operations = OperationsService(cloud, "artifactregistry", "artifactregistry.projects.locations.operations")
    served = (_RegistryLocations(cloud), _Repositories(cloud))
    found = {name: handler for service in served for name, handler in service.handlers().items()}
    return {**found, f"{operations.prefix}.get": operations.get}


class _RegistryLocations(ApiService):
    prefix = "artifactregistry.projects.locations"

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        """Return the regions and multi-regions."""
        found = region_documents(call.name.partition("/")[2], [*REGIONS, *_MULTI_REGIONS])
        return listing(call.query, "locations", found)


class _Repositories(PolicyService):
    prefix = "artifactregistry.projects.locations.repositories"

    def find(self, call: Call) -> JsonObject:
        return self.stored(REPOSITORIES, call.name, f"Requested entity was not found: repository '{call.name}'.")

    @method("create")
    def create(self, call: Call) -> JsonObject:
        _, project, _, location = call.name.split("/")
        if location not in _MULTI_REGIONS:
            check_region(call.name)
        repository_id = check_id(call.query.get("repositoryId"), "repository_id", "[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
        name = f"{call.name}/repositories/{repository_id}"
        if self._store.has(REPOSITORIES, name):
            raise CloudError.already_exists("the repository already exists")
        body = {"mode": "STANDARD_REPOSITORY", **call.body}
        check_labels(body.get("labels"), "repository.labels")
        if body.get("format", "FORMAT_UNSPECIFIED") == "FORMAT_UNSPECIFIED":
            raise CloudError.field("repository.format", "The repository's format must be given, such as DOCKER.")
        if (body["mode"] == "REMOTE_REPOSITORY") != ("remoteRepositoryConfig" in body):
            raise CloudError.field(
                "repository.remote_repository_config",
                f"remote_repository_config belongs to the mode REMOTE_REPOSITORY and to no other; the mode is {body['mode']}.",
            )
        upstream = part(body, "remoteRepositoryConfig")
        if body["mode"] == "REMOTE_REPOSITORY" and not any(part(upstream, key) for key in _UPSTREAMS):
            raise CloudError.field("repository.remote_repository_config", "The upstream repository must be given.")
        Registries(self._cloud).check_credentials(name, upstream)
        now = self._cloud.timeline.stamp()
        uri = f"{location}-docker.pkg.dev/{project}/{repository_id}"
        document = {**body, "name": name, "createTime": now, "updateTime": now, "registryUri": uri}
        self._store.put(REPOSITORIES, name, document)
        return self._operation(call.name, {"@type": f"{_TYPE}.Repository", **visible(document)})

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        found = self.visible_under(REPOSITORIES, call.name + "/repositories/")
        return listing(call.query, "repositories", found)

    @method("patch")
    def patch(self, call: Call) -> JsonObject:
        document = self.find(call)
        check_labels(call.body.get("labels"), "repository.labels")
        mask = call.query.get("updateMask") or ",".join(key for key in call.body if key in _UPDATABLE)
        updated = masked(document, call.body, mask, allowed=_UPDATABLE) if mask else document
        Registries(self._cloud).check_credentials(call.name, part(updated, "remoteRepositoryConfig"))
        updated["updateTime"] = self._cloud.timeline.stamp()
        return visible(self._store.put(REPOSITORIES, call.name, updated))

    @method("delete")
    def delete(self, call: Call) -> JsonObject:
        self.find(call)
        self._store.delete(REPOSITORIES, call.name)
        for name, _ in self._store.under(IMAGES, f"{call.name}/"):
            self._store.delete(IMAGES, name)
        self._cloud.policies.forget(f"//artifactregistry.googleapis.com/{call.name}")
        return self._operation(call.location, None)

    def _operation(self, parent: str, response: JsonObject | None) -> JsonObject:
        return self._cloud.operations.timed(
            "artifactregistry",
            parent,
            duration_s=self._cloud.duration_s(self._cloud.scenario.operations.artifactregistry_s),
            response=response,
            metadata={"@type": f"{_TYPE}.OperationMetadata"},
        )
