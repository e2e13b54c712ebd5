"""Images on a simulated machine: the pulled ones, and whether the registry allows a pull."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from localcloud.running.shims.docker_host import DockerError, Host
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


def config_file(host: Host) -> Path:
    """Return docker's configuration file, which contains the logins."""
    variables = host.environment
    return Path(variables.get("DOCKER_CONFIG") or Path(variables.get("HOME", "/")) / ".docker") / "config.json"


def config(host: Host) -> dict[str, Any]:
    """Return docker's configuration. Each command warns of one that it cannot read, and goes on without it."""
    file = config_file(host)
    try:
        return read_json(file) or {}
    except ValueError as error:
        print(f"WARNING: Error parsing config file ({file}): {error}", file=host.err)
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


def pull(host: Host, reference: str, *, quiet: bool) -> None:
    """Pull an image and print docker's progress. Raises DockerError."""
    match = _parsed(reference)
    host.registry(host, reference)
    here = pulled(host.machine)
    if not quiet:
        wanted = reference if match["digest"] else match["tag"] or "latest"
        host.say(f"{wanted}: Pulling from {_host_and_path(match['name'])[1]}")
    if reference in here:
        host.say(f"Status: Image is up to date for {reference}")
        return
    for line in _layers(host, reference):
        if not quiet:
            host.say(line)
        if host.machine.full_disk.exists():
            raise DockerError("failed to register layer: write /usr/lib/libcuda.so.1: no space left on device")
    identity = f"sha256:{hashlib.sha256(reference.encode()).hexdigest()}"
    write_json(host.machine.images, {**pulled(host.machine), reference: identity})
    host.say(f"Status: Downloaded newer image for {reference}" if not quiet else reference)


def _parsed(reference: str) -> re.Match[str]:
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise DockerError("invalid reference format")
    return match


def _layers(host: Host, reference: str) -> Iterator[str]:
    layers = [hashlib.sha256(f"{reference}{number}".encode()).hexdigest()[:12] for number in range(_LAYERS)]
    yield from (f"{layer}: Pulling fs layer" for layer in layers)
    for layer in layers:
        host.sleep(_PULL_S / _LAYERS / host.machine.clock_speed)
        yield from (f"{layer}: {word}" for word in ("Verifying Checksum", "Download complete", "Pull complete"))


def _host_and_path(name: str) -> tuple[str, str]:
    """Return the registry of an image's name, and the name there."""
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first):
        first, rest = _DOCKER_HUB, name
    return first, f"library/{rest}" if first == _DOCKER_HUB and "/" not in rest else rest


def query_registry(host: Host, reference: str) -> None:
    """Read the image's manifest from the simulated registry, with the token of the docker login. Raises DockerError."""
    match, machine = _parsed(reference), host.machine
    registry, path = _host_and_path(match["name"])
    if not (machine.google if registry.endswith("pkg.dev") else machine.internet):
        raise DockerError(f'Error response from daemon: Get "https://{registry}/v2/": dial tcp: i/o timeout')
    version = match["digest"] or match["tag"] or "latest"
    token = login_token(host, registry)
    headers = {_CLIENT_HEADER: machine.name, **({"Authorization": f"Bearer {token}"} if token else {})}
    import urllib.error  # noqa: PLC0415  a third of the start time of `docker`, and most of its commands send no request
    import urllib.request  # noqa: PLC0415

    request = urllib.request.Request(  # noqa: S310 - the local cloud
        f"{machine.base_url.rstrip('/')}/registry/{registry}/v2/{path}/manifests/{version}", headers=headers
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        with error:
            raise DockerError(f"Error response from daemon: {_refusal(error, registry, reference)}") from None
    except OSError as error:
        raise DockerError(f'Error response from daemon: Get "https://{registry}/v2/": {error}') from None


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


def login_token(host: Host, registry: str) -> str | None:
    """Return the password of the caller's login at a registry, or None."""
    entry = config(host).get("auths", {}).get(registry)
    return None if entry is None else base64.b64decode(entry["auth"]).decode().partition(":")[2]
