"""Requests to image registries: Artifact Registry, and Docker Hub without an account."""

import os
from typing import Final

import requests

from gemma_serving.planning.settings.image import in_artifact_registry

REGISTRY: Final = "https://registry-1.docker.io"
TOKENS: Final = "https://auth.docker.io/token"
_LIMIT_S: Final = 4.0
_MANIFEST_TYPES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


def ask_registry(repository: str, digest: str, session: requests.Session) -> requests.Response:
    """Request a manifest's headers from Artifact Registry with the caller's session, or from Docker Hub without an account."""
    simulated = os.environ.get("LOCALCLOUD_URL")
    headers = {"Accept": ", ".join(_MANIFEST_TYPES)}
    if in_artifact_registry(repository):
        host, _, name = repository.partition("/")
        registry = f"{simulated}/registry/{host}" if simulated else f"https://{host}"
        return session.head(f"{registry}/v2/{name}/manifests/{digest}", headers=headers, timeout=_LIMIT_S)
    registry = f"{simulated}/registry/registry-1.docker.io" if simulated else REGISTRY
    tokens = f"{simulated}/registry/auth.docker.io/token" if simulated else TOKENS
    scope = {"service": "registry.docker.io", "scope": f"repository:{repository}:pull"}
    granted = requests.get(tokens, params=scope, timeout=_LIMIT_S)
    granted.raise_for_status()
    headers["Authorization"] = f"Bearer {granted.json()['token']}"
    return requests.head(f"{registry}/v2/{repository}/manifests/{digest}", headers=headers, timeout=_LIMIT_S)
