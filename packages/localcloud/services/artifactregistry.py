"""Artifact Registry v1: repositories, their IAM policies, and the images that were pushed or pulled through them."""

from urllib.parse import unquote

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
    """Return the methods of repositories, images and operations."""
    operations = OperationsService(cloud, "artifactregistry", "artifactregistry.projects.locations.operations")
    served = (_Locations(cloud), _Repositories(cloud), _DockerImages(cloud), _Packages(cloud))
    found = {name: handler for service in served for name, handler in service.handlers().items()}
    return {**found, f"{operations.prefix}.get": operations.get}


class _Locations(ApiService):
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


class _DockerImages(ApiService):
    """Images of a repository by digest."""

    prefix = "artifactregistry.projects.locations.repositories.dockerImages"

    @method("list")
    def list_all(self, call: Call) -> JsonObject:
        self.stored(REPOSITORIES, call.name, _missing(call.name))
        return listing(call.query, "dockerImages", Registries(self._cloud).images(call.name))

    @method("get")
    def get(self, call: Call) -> JsonObject:
        repository = call.name.partition("/dockerImages/")[0]
        for name, image in Registries(self._cloud).images(repository):
            if name == unquote(call.name):
                return image
        raise CloudError.not_found(_missing(call.name))


class _Packages(ApiService):
    """The same images as packages with versions and tags, as gcloud reads one image."""

    prefix = "artifactregistry.projects.locations.repositories.packages"

    @method("get")
    def get(self, call: Call) -> JsonObject:
        repository, _, package = call.name.partition("/packages/")
        if not self._images(repository, package):
            raise CloudError.not_found(_missing(call.name))
        return {"name": call.name}

    @method("versions.get")
    def get_version(self, call: Call) -> JsonObject:
        repository, _, rest = call.name.partition("/packages/")
        package, _, digest = rest.partition("/versions/")
        for image in self._images(repository, package):
            if image["name"].endswith(f"@{digest}"):
                return _version(call.name, image)
        raise CloudError.not_found(_missing(call.name))

    @method("versions.list")
    def list_versions(self, call: Call) -> JsonObject:
        repository, _, package = call.name.partition("/packages/")
        found = [
            (name, _version(name, image))
            for image in self._images(repository, package)
            for name in [f"{call.name}/versions/{image['name'].rpartition('@')[2]}"]
        ]
        return listing(call.query, "versions", found)

    @method("tags.get")
    def get_tag(self, call: Call) -> JsonObject:
        package, _, tag = call.name.partition("/tags/")
        repository, _, image_name = package.partition("/packages/")
        for image in self._images(repository, image_name):
            if tag in image["tags"]:
                return {"name": call.name, "version": f"{package}/versions/{image['name'].rpartition('@')[2]}"}
        raise CloudError.not_found(_missing(call.name))

    def _images(self, repository: str, package: str) -> list[JsonObject]:
        prefix = f"{repository}/dockerImages/{unquote(package)}@"
        return [image for name, image in Registries(self._cloud).images(repository) if name.startswith(prefix)]


def _version(name: str, image: JsonObject) -> JsonObject:
    metadata = {key: image[key] for key in ("name", "imageSizeBytes", "mediaType", "buildTime")}
    package = name.partition("/versions/")[0]
    tags = [{"name": f"{package}/tags/{tag}", "version": name} for tag in image["tags"]]
    return {
        "name": name,
        "createTime": image["uploadTime"],
        "updateTime": image["updateTime"],
        "metadata": metadata,
        **({"relatedTags": tags} if tags else {}),
    }


def _missing(name: str) -> str:
    return f"Requested entity was not found: '{name}'."
