"""Container registries: existing images, pull permissions, and Docker Hub's limits.

An image exists if the scenario lists it, if it was pushed to a standard repository, or if the upstream of a remote
repository has it. A remote repository keeps the images pulled through it.
"""

import base64
import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final

from localcloud.json_values import JsonObject, part
from localcloud.rest.errors import CloudError
from localcloud.services.secretmanager import version_name
from localcloud.world.cloud import Cloud, project_policy

DOCKER_HUB: Final = "docker.io"
_HUB_HOSTS: Final = {DOCKER_HUB, "index.docker.io", "registry-1.docker.io"}
_HOST: Final = re.compile(r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev")
_REFERENCE: Final = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9._/-]*)(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
REPOSITORIES: Final = "artifactregistry.repositories"
IMAGES: Final = "artifactregistry.dockerImages"
PULLS: Final = "registry.pulls"
ADDED: Final = "registry.existing"
DOWNLOAD: Final = "artifactregistry.repositories.downloadArtifacts"
UPLOAD: Final = "artifactregistry.repositories.uploadArtifacts"
HUB_WINDOW_S: Final = 6 * 3600
_HUB_URL: Final = "https://registry-1.docker.io"
_SECRET_VERSION: Final = re.compile(r"projects/(?P<project>[^/]+)/secrets/(?P<secret>[^/]+)/versions/[^/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An image's full reference. Without a digest, the tag applies."""

    host: str
    name: str
    tag: str
    digest: str

    def __str__(self) -> str:
        """Return HOST/NAME@DIGEST or HOST/NAME:TAG."""
        return f"{self.host}/{self.name}" + (f"@{self.digest}" if self.digest else f":{self.tag}")

    @property
    def location(self) -> str:
        """Return the location of an Artifact Registry host. Empty for another registry."""
        found = _HOST.fullmatch(self.host)
        return "" if found is None else found["location"]

    @property
    def project(self) -> str:
        """Return the project of an Artifact Registry image."""
        return self.name.partition("/")[0]

    @property
    def repository(self) -> str:
        """Return the full name of the Artifact Registry repository. Empty for another registry or a name without an image."""
        project, _, rest = self.name.partition("/")
        repository, _, image = rest.partition("/")
        named = f"projects/{project}/locations/{self.location}/repositories/{repository}"
        return named if self.location and image else ""

    @property
    def image(self) -> str:
        """Return the image's name inside its Artifact Registry repository."""
        return self.name.split("/", 2)[-1]


def parse(text: str) -> Reference | None:
    """Return a reference, or None if it is invalid. The default host is Docker Hub, the default tag `latest`."""
    first, slash, rest = text.partition("/")
    hosted = bool(slash) and ("." in first or ":" in first or first == "localhost")
    host, path = (first, rest) if hosted else (DOCKER_HUB, text)
    found = _REFERENCE.fullmatch(path)
    if found is None:
        return None
    host = DOCKER_HUB if host in _HUB_HOSTS else host
    name = f"library/{found['name']}" if host == DOCKER_HUB and "/" not in found["name"] else found["name"]
    digest = found["digest"] or ""
    return Reference(host=host, name=name, tag=found["tag"] or ("" if digest else "latest"), digest=digest)


class RegistryError(Exception):
    """An error of a registry: HTTP status, the registry API's error code, message."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Registries:
    """All registries that simulated machines and services can reach."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._store = cloud.store

    def add(self, text: str) -> None:
        """Add an image to the scenario's. Raise CloudError if it is not a valid reference."""
        if parse(text) is None:
            raise CloudError.invalid(
                f"'{text}' is not an image reference. Expected HOST/NAME with :TAG or @sha256:DIGEST."
            )
        self._store.put(ADDED, text, {})

    def find(self, reference: Reference, *, address: str = "") -> str:
        """Return the digest of an image. Raise RegistryError if it does not exist or its registry denies access.

        With an `address`, this is a pull. It is recorded and counts against Docker Hub's limit for that address. Without one, only the
        manifest's headers are read, which is free.
        """
        if reference.host == DOCKER_HUB:
            return self._from_hub(reference, address)
        if self._is_simulated(reference):
            return self._from_repository(reference, address)
        return self._listed(reference)

    def push(self, reference: Reference, digest: str) -> None:
        """Store an image in a standard repository. Raise RegistryError if the repository does not exist or does not accept pushes."""
        document = self._repository(reference)
        if document["mode"] != "STANDARD_REPOSITORY":
            raise RegistryError(
                HTTPStatus.BAD_REQUEST, "UNSUPPORTED", f"{reference.repository} is not a standard repository."
            )
        self._keep(reference, digest)

    def permits(self, email: str, permission: str, reference: Reference) -> bool:
        """Return whether an account has a permission on the reference's repository. Images of other projects and registries are public here."""
        if not self._is_simulated(reference):
            return True
        names = [f"//artifactregistry.googleapis.com/{reference.repository}", project_policy(reference.project)]
        return email == self._cloud.operator or self._cloud.policies.allows(email, permission, names)

    def overview(self) -> JsonObject:
        """Return the listed images, the images in repositories, and the pulls so far."""
        return {
            "existing": [*self._cloud.scenario.images.existing, *(name for name, _ in self._store.under(ADDED))],
            "repositories": [document["uri"] for _, document in self._store.under(IMAGES)],
            "pulls": [pull for _, pull in self._store.under(PULLS)],
        }

    def hub_pulls_left(self, address: str) -> int:
        """Return how many pulls Docker Hub still allows an address without an account."""
        return max(0, self._cloud.scenario.images.docker_hub_pulls - self._hub_pulls(address))

    def check_credentials(self, repository: str, config: JsonObject) -> None:
        """Raise CloudError if the service agent cannot read the password, or if Docker Hub rejects it.

        Artifact Registry checks the credentials unless `disableUpstreamValidation` is set (discovery: artifactregistry.v1,
        RemoteRepositoryConfig). The message is assumed.
        """
        given = part(part(config, "upstreamCredentials"), "usernamePasswordCredentials")
        if not given:
            return
        version = str(given.get("passwordSecretVersion", ""))
        if _SECRET_VERSION.fullmatch(version) is None:
            raise CloudError.field(
                "repository.remote_repository_config.upstream_credentials",
                f"Secret version '{version}' must be in the format projects/{{project}}/secrets/{{secret}}/versions/{{version}}.",
            )
        password = self._password(repository, version)
        if config.get("disableUpstreamValidation"):
            return
        if self._cloud.scenario.images.docker_hub_accounts.get(str(given.get("username", ""))) != password:
            raise CloudError.invalid("Upstream credentials are not valid: the upstream answered 401 Unauthorized.")

    def _is_simulated(self, reference: Reference) -> bool:
        return bool(reference.repository) and self._store.has("projects", reference.project)

    def _repository(self, reference: Reference) -> JsonObject:
        document = self._store.get(REPOSITORIES, reference.repository)
        if document is None:
            name = reference.repository.rpartition("/")[2]
            raise RegistryError(HTTPStatus.NOT_FOUND, "NAME_UNKNOWN", f'Repository "{name}" not found')
        return document

    def _from_repository(self, reference: Reference, address: str) -> str:
        document = self._repository(reference)
        digest = self._kept(reference)
        cached = bool(digest)
        if not digest:
            if document["mode"] != "REMOTE_REPOSITORY":
                raise _unknown(reference)
            digest = self._from_upstream(reference, part(document, "remoteRepositoryConfig"), address)
            if address:
                self._keep(reference, digest)
        if address:
            self._record(reference, address, cached=cached)
        return digest

    def _from_upstream(self, reference: Reference, config: JsonObject, address: str) -> str:
        """Read through a remote repository. Any upstream failure is 502 (cloud.google.com/artifact-registry/docs/troubleshoot-remote, 2026-11)."""
        if part(config, "dockerRepository").get("publicRepository") != "DOCKER_HUB":
            raise _unknown(reference)
        upstream = replace(reference, host=DOCKER_HUB, name=reference.image)
        account = ""
        try:
            self.check_credentials(reference.repository, {**config, "disableUpstreamValidation": False})
            given = part(part(config, "upstreamCredentials"), "usernamePasswordCredentials")
            account = str(given.get("username", ""))
        except CloudError as error:
            raise RegistryError(HTTPStatus.BAD_GATEWAY, "UNKNOWN", error.message) from None
        try:
            return self._from_hub(upstream, address and f"artifact-registry-{reference.location}", account=account)
        except RegistryError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise _unknown(reference) from None
            url = f"{_HUB_URL}/v2/{upstream.name}/manifests/{upstream.digest or upstream.tag}"
            raise RegistryError(
                HTTPStatus.BAD_GATEWAY,
                "UNKNOWN",
                f"Received invalid http status code {error.status.value} from external repository; url={url}.",
            ) from None

    def _from_hub(self, reference: Reference, address: str, *, account: str = "") -> str:
        """Read from Docker Hub. Each pull counts against the account or the address (docs.docker.com/docker-hub/usage/pulls, 2026-11)."""
        digest = self._listed(reference)
        if not address:
            return digest
        images = self._cloud.scenario.images
        payer = f"account {account}" if account else address
        allowed = images.docker_hub_account_pulls if account else images.docker_hub_pulls
        if self._hub_pulls(payer) >= allowed:
            kind = "" if account else "unauthenticated "
            raise RegistryError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "TOOMANYREQUESTS",
                f"You have reached your {kind}pull rate limit. https://www.docker.com/increase-rate-limit",
            )
        self._record(reference, payer, cached=False)
        return digest

    def _hub_pulls(self, payer: str) -> int:
        since_s = self._cloud.timeline.simulated_s() - HUB_WINDOW_S
        hub = f"{DOCKER_HUB}/"
        return sum(
            record["by"] == payer and record["at_s"] > since_s and str(record["image"]).startswith(hub)
            for _, record in self._store.under(PULLS)
        )

    def _listed(self, wanted: Reference) -> str:
        for listed in self._all_listed():
            if (listed.host, listed.name) != (wanted.host, wanted.name):
                continue
            digest = listed.digest or f"sha256:{hashlib.sha256(str(listed).encode()).hexdigest()}"
            if (wanted.digest == digest) if wanted.digest else (wanted.tag == listed.tag):
                return digest
        raise _unknown(wanted)

    def _all_listed(self) -> list[Reference]:
        texts = (*self._cloud.scenario.images.existing, *(name for name, _ in self._store.under(ADDED)))
        return [reference for text in texts if (reference := parse(text)) is not None]

    def _password(self, repository: str, version: str) -> str:
        _, project, _, secret, _, _ = version.split("/")
        project = self._cloud.project_id(project) or project
        number = self._cloud.project_number(repository.split("/")[1])
        agent = f"service-{number}@gcp-sa-artifactregistry.iam.gserviceaccount.com"
        names = [f"//secretmanager.googleapis.com/projects/{project}/secrets/{secret}", project_policy(project)]
        if not self._cloud.policies.allows(agent, "secretmanager.versions.access", names):
            raise CloudError.denied(
                f"Permission 'secretmanager.versions.access' denied for service account {agent} on resource '{version}' "
                "(or it may not exist)."
            )
        document = self._store.get("secretmanager.versions", version_name(self._cloud, version)) or {}
        if document.get("state") != "ENABLED":
            raise CloudError.precondition(f"Secret version {version} is not enabled.")
        return base64.b64decode(document["_data"]).decode(errors="replace")

    def _kept(self, reference: Reference) -> str:
        """Return the digest of an image that the scenario lists, or that was pushed or kept from a pull. Empty without one."""
        with suppress(RegistryError):
            return self._listed(reference)
        for name, document in self._store.under(IMAGES, f"{reference.repository}/dockerImages/{reference.image}@"):
            digest = name.rpartition("@")[2]
            if reference.digest == digest or (not reference.digest and reference.tag in document["tags"]):
                return digest
        return ""

    def _keep(self, reference: Reference, digest: str) -> None:
        prefix = f"{reference.repository}/dockerImages/{reference.image}@"
        for name, document in self._store.under(IMAGES, prefix) if reference.tag else []:
            self._store.put(
                IMAGES, name, {**document, "tags": [tag for tag in document["tags"] if tag != reference.tag]}
            )
        before = self._store.get(IMAGES, prefix + digest) or {"tags": []}
        uri = f"{reference.host}/{reference.name}@{digest}"
        tags = [*before["tags"], *([reference.tag] if reference.tag else [])]
        self._store.put(IMAGES, prefix + digest, {"uri": uri, "tags": tags})

    def _record(self, reference: Reference, by: str, *, cached: bool) -> None:
        number = self._store.count_up(PULLS)
        at_s = self._cloud.timeline.simulated_s()
        pull = {"image": str(reference), "location": reference.location, "by": by, "cached": cached, "at_s": at_s}
        self._store.put(PULLS, f"{number:09d}", pull)


def _unknown(reference: Reference) -> RegistryError:
    """Return Artifact Registry's error for an image that does not exist (github.com/firezone/firezone/issues/10484, 2025-09)."""
    wanted = reference.digest or reference.tag
    message = f'Failed to fetch "{wanted}".' if reference.location else "manifest unknown"
    return RegistryError(HTTPStatus.NOT_FOUND, "MANIFEST_UNKNOWN", message)
