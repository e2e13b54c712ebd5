"""References to container images, in docker's syntax."""

import re
from dataclasses import dataclass
from typing import Final

DOCKER_HUB: Final = "docker.io"
_HUB_HOSTS: Final = {DOCKER_HUB, "index.docker.io", "registry-1.docker.io"}
_HOST: Final = re.compile(r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev")
_REFERENCE: Final = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9._/-]*)(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


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
