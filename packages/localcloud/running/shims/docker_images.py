"""Images on a simulated machine: the pulled ones, and whether the registry allows a pull."""

import base64
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from localcloud.charges import FILE, Charge, append
from localcloud.running.shims.machine import Machine, read_json, write_json

if TYPE_CHECKING:
    from urllib.error import HTTPError

_REFERENCE: Final = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9._/:-]*?)(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_DOCKER_HUB: Final = "docker.io"
_CLIENT_HEADER: Final = "X-Localcloud-Client"
_LAYERS: Final = 12
_PULL_S: Final = 60.0
"""Simulated seconds of a pull (assumed: about 8 GB at 130 MB/s)."""
_IMAGE_BYTES: Final = 8_000_000_000


class ImageError(Exception):
    """An image cannot be pulled. The message is docker's."""


def config_file() -> Path:
    """Return docker's configuration file, which contains the logins."""
    return Path(os.environ.get("DOCKER_CONFIG") or Path(os.environ.get("HOME", "/")) / ".docker") / "config.json"


def config() -> dict[str, Any]:
    """Return docker's configuration. Each command warns of one that it cannot read, and goes on without it."""
    try:
        return read_json(config_file()) or {}
    except ValueError as error:
        print(f"WARNING: Error parsing config file ({config_file()}): {error}", file=sys.stderr)
        return {}


def pulled(machine: Machine) -> dict[str, str]:
    """Return reference -> image id of the pulled images."""
    return dict(read_json(machine.images) or {})


def remove(machine: Machine, reference: str) -> bool:
    """Delete a pulled image. Return False if it does not exist."""
    here = pulled(machine)
    if here.pop(reference, None) is None:
        return False
    write_json(machine.images, here)
    return True


def pull(machine: Machine, reference: str, *, quiet: bool) -> str:
    """Pull an image, print docker's progress, and return the image's id. Raises ImageError."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ImageError("invalid reference format")
    _query_registry(machine, reference, match["name"], match["digest"] or match["tag"] or "latest")
    here = pulled(machine)
    if not quiet:
        wanted = reference if match["digest"] else match["tag"] or "latest"
        print(f"{wanted}: Pulling from {_host_and_path(match['name'])[1]}", flush=True)
    if reference in here:
        print(f"Status: Image is up to date for {reference}", flush=True)
        return here[reference]
    for line in _layers(reference, machine.clock_speed):
        if not quiet:
            print(line, flush=True)
        if machine.full_disk.exists():
            raise ImageError("failed to register layer: write /usr/lib/libcuda.so.1: no space left on device")
    charge = Charge(what="image", name=reference, seconds=_PULL_S, bytes=_IMAGE_BYTES)
    append(machine.folder / FILE, charge)
    identity = f"sha256:{hashlib.sha256(reference.encode()).hexdigest()}"
    write_json(machine.images, {**pulled(machine), reference: identity})
    print(f"Status: Downloaded newer image for {reference}" if not quiet else reference, flush=True)
    return identity


def _layers(reference: str, clock_speed: float) -> Iterator[str]:
    layers = [hashlib.sha256(f"{reference}{number}".encode()).hexdigest()[:12] for number in range(_LAYERS)]
    yield from (f"{layer}: Pulling fs layer" for layer in layers)
    for layer in layers:
        time.sleep(_PULL_S / _LAYERS / clock_speed)
        yield from (f"{layer}: {word}" for word in ("Verifying Checksum", "Download complete", "Pull complete"))


def _host_and_path(name: str) -> tuple[str, str]:
    """Return the registry of an image's name, and the name there."""
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first):
        first, rest = _DOCKER_HUB, name
    return first, f"library/{rest}" if first == _DOCKER_HUB and "/" not in rest else rest


def _query_registry(machine: Machine, reference: str, name: str, version: str) -> None:
    """Read the image's manifest from the simulated registry, with the token of the docker login. Raises ImageError."""
    if not machine.google:
        raise ImageError(
            f'Error response from daemon: Get "https://{name.partition("/")[0]}/v2/": dial tcp: i/o timeout'
        )
    host, path = _host_and_path(name)
    token = _token(host)
    headers = {_CLIENT_HEADER: machine.name, **({"Authorization": f"Bearer {token}"} if token else {})}
    import urllib.error  # noqa: PLC0415  a third of the start time of `docker`, and most of its commands send no request
    import urllib.request  # noqa: PLC0415

    request = urllib.request.Request(  # noqa: S310 - the local cloud
        f"{machine.base_url.rstrip('/')}/registry/{host}/v2/{path}/manifests/{version}", headers=headers
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        with error:
            raise ImageError(f"Error response from daemon: {_refusal(error, host, reference)}") from None
    except OSError as error:
        raise ImageError(f'Error response from daemon: Get "https://{host}/v2/": {error}') from None


def _refusal(error: "HTTPError", host: str, reference: str) -> str:
    """Return docker's message for a registry's error.

    Docker shows the registry's own message below 500 and only the status above (distribution/registry/client/errors.go, HandleHTTPResponseError).
    """
    if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return f"received unexpected HTTP status: {error.code} {error.reason}"
    found = json.loads(error.read())["errors"][0]
    message = found["message"]
    match found["code"]:
        case "MANIFEST_UNKNOWN":
            return f"manifest for {reference} not found: manifest unknown: {message}"
        case "NAME_UNKNOWN":
            return f"repository {reference.partition('@')[0]} not found: name unknown: {message}"
        case "TOOMANYREQUESTS":
            return f"toomanyrequests: {message}"
        case _:
            where = "https://" + host + "/v2/" if error.code == HTTPStatus.UNAUTHORIZED else reference
            return f'Head "{where}": denied: {message}'


def _token(host: str) -> str | None:
    """Return the password of the login at a registry, or None."""
    entry = config().get("auths", {}).get(host)
    return None if entry is None else base64.b64decode(entry["auth"]).decode().partition(":")[2]
