"""Images on a simulated machine: which are pulled, and if the registry allows a pull."""

import base64
import hashlib
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

from localcloud.running.shims.machine import Machine, read_json, write_json

_REFERENCE: Final = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9._/:-]*?)(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_REGISTRY: Final = re.compile(r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev/(?P<project>[^/]+)/(?P<repository>[^/]+)/.+")
_MISSING_DIGEST: Final = "sha256:" + "0" * 64
"""A digest that no registry has, to test a missing image."""
_DOWNLOAD: Final = '"artifactregistry.repositories.downloadArtifacts"'
_LAYERS: Final = 12
_PULL_S: Final = 60.0
"""Simulated seconds of a pull (assumed: some 8 GB at 130 MB/s)."""


class ImageError(Exception):
    """An image cannot be pulled; the message is docker's."""


def config_file() -> Path:
    """Return docker's configuration file, which holds the logins."""
    return Path(os.environ.get("DOCKER_CONFIG") or Path(os.environ.get("HOME", "/")) / ".docker") / "config.json"


def pulled(machine: Machine) -> dict[str, str]:
    """Return reference -> image id of the pulled images."""
    return dict(read_json(machine.images) or {})


def pull(machine: Machine, reference: str, *, quiet: bool) -> str:
    """Pull an image, print docker's progress, and return the image's id. Raises ImageError."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ImageError("invalid reference format")
    _ask_registry(machine, reference)
    if match["digest"] == _MISSING_DIGEST:
        raise ImageError(
            f"Error response from daemon: manifest for {reference} not found: manifest unknown: Failed to fetch {match['digest']}"
        )
    here = pulled(machine)
    if reference in here:
        print(f"Status: Image is up to date for {reference}", flush=True)
        return here[reference]
    for line in _layers(reference, machine.clock_speed):
        if not quiet:
            print(line, flush=True)
    identity = f"sha256:{hashlib.sha256(reference.encode()).hexdigest()}"
    write_json(machine.images, {**pulled(machine), reference: identity})
    print(f"Status: Downloaded newer image for {reference}" if not quiet else reference, flush=True)
    return identity


def _layers(reference: str, clock_speed: float) -> Iterator[str]:
    layers = [hashlib.sha256(f"{reference}{number}".encode()).hexdigest()[:12] for number in range(_LAYERS)]
    yield from (f"{layer}: Pulling fs layer" for layer in layers)
    for layer in layers:
        time.sleep(_PULL_S / _LAYERS / clock_speed)
        yield f"{layer}: Pull complete"


def _ask_registry(machine: Machine, reference: str) -> None:
    """Check that the local cloud has the repository of an Artifact Registry image, with the token of the docker login."""
    match = _REGISTRY.match(reference)
    if match is None:
        return
    host = reference.partition("/")[0]
    resource = f"projects/{match['project']}/locations/{match['location']}/repositories/{match['repository']}"
    token = _token(host)
    if token is None:
        raise ImageError(
            f'Error response from daemon: Head "https://{host}/v2/": denied: Unauthenticated request. '
            f'Unauthenticated requests do not have permission {_DOWNLOAD} on resource "{resource}" (or it may not exist)'
        )
    request = urllib.request.Request(  # noqa: S310 - the local cloud
        f"{machine.base_url.rstrip('/')}/artifactregistry/v1/{resource}", headers={"Authorization": f"Bearer {token}"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        with error:
            raise ImageError(f"Error response from daemon: {_refusal(error.code, reference, resource)}") from None
    except OSError as error:
        raise ImageError(f'Error response from daemon: Get "https://{host}/v2/": {error}') from None


def _refusal(status: int, reference: str, resource: str) -> str:
    """Return docker's message for a registry's refusal."""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return (
            f'Head "{reference}": denied: Permission {_DOWNLOAD} denied on resource "{resource}" (or it may not exist)'
        )
    if status == HTTPStatus.NOT_FOUND:
        name = resource.rpartition("/")[2]
        return f'repository {reference.partition("@")[0]} not found: name unknown: Repository "{name}" not found'
    return f"the registry answered {status}"


def _token(host: str) -> str | None:
    """Return the password of the login at a registry, or None."""
    entry = (read_json(config_file()) or {}).get("auths", {}).get(host)
    return None if entry is None else base64.b64decode(entry["auth"]).decode().partition(":")[2]
