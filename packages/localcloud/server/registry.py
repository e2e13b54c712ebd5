"""The registry API under /registry/HOST/v2/: manifests of all simulated registries, as docker requests them.

Specification: github.com/opencontainers/distribution-spec, version 1.1. Layers are not served.
"""

from http import HTTPStatus

from aiohttp import web

from localcloud.json_values import strings
from localcloud.rest.bodies import json_object
from localcloud.rest.errors import CloudError
from localcloud.server.guard import caller_of, operator_only
from localcloud.services.registries import (
    DOCKER_HUB,
    DOWNLOAD,
    HUB_WINDOW_S,
    UPLOAD,
    Reference,
    Registries,
    RegistryError,
    parse,
)
from localcloud.world.cloud import Cloud

CLIENT_HEADER = "X-Localcloud-Client"
"""Header with the full name of the calling simulated machine, which its pulls count against."""


class Registry:
    """Handlers of the registry API and of Docker Hub's token endpoint."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._registries = Registries(cloud)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        path = "/registry/{host}/v2/{name:.+}/manifests/{reference}"
        return [
            web.get("/registry/auth.docker.io/token", self.hub_token),
            web.get(path, self.manifest),
            web.put(path, self.push),
            web.get("/admin/images", operator_only(self._cloud, self.images)),
            web.post("/admin/images", operator_only(self._cloud, self.add_images)),
        ]

    async def hub_token(self, _request: web.Request) -> web.Response:
        """Return a token for anonymous pulls, as Docker Hub does for every client."""
        return web.json_response({"token": "anonymous"})

    async def manifest(self, request: web.Request) -> web.Response:
        """Answer GET, which is a pull, and HEAD, which is free. Pulls name their machine in the header."""
        address = request.headers.get(CLIENT_HEADER, "unknown") if request.method == "GET" else ""
        try:
            reference = self._permitted(request, DOWNLOAD)
            digest = self._registries.find(reference, address=address)
        except RegistryError as error:
            return _refusal(error)
        headers = {"Docker-Content-Digest": digest}
        if reference.host == DOCKER_HUB:
            allowed = self._cloud.scenario.images.docker_hub_pulls
            left = self._registries.hub_pulls_left(address)
            headers |= {
                "ratelimit-limit": f"{allowed};w={HUB_WINDOW_S}",
                "ratelimit-remaining": f"{left};w={HUB_WINDOW_S}",
            }
        return web.json_response({"schemaVersion": 2}, headers=headers)

    async def push(self, request: web.Request) -> web.Response:
        """Store an image. The body is `{"digest": "sha256:..."}` in place of a manifest with that digest."""
        try:
            reference = self._permitted(request, UPLOAD)
            digest = str((await json_object(request)).get("digest") or "")
            self._registries.push(reference, digest)
        except RegistryError as error:
            return _refusal(error)
        return web.Response(status=HTTPStatus.CREATED, headers={"Docker-Content-Digest": digest})

    async def images(self, _request: web.Request) -> web.Response:
        """Return the listed images, the images in repositories, and the pulls with location and client."""
        return web.json_response(self._registries.overview())

    async def add_images(self, request: web.Request) -> web.Response:
        """Add the images `{"images": ["HOST/NAME:TAG", ...]}`."""
        for text in strings(await json_object(request), "images"):
            self._registries.add(str(text))
        return await self.images(request)

    def _permitted(self, request: web.Request, permission: str) -> Reference:
        """Return the reference of a request. Raise RegistryError if the caller lacks the permission."""
        wanted = request.match_info["reference"]
        text = f"{request.match_info['host']}/{request.match_info['name']}{'@' if ':' in wanted else ':'}{wanted}"
        reference = parse(text)
        if reference is None:
            raise RegistryError(HTTPStatus.BAD_REQUEST, "NAME_INVALID", f"invalid reference {text}")
        if not reference.repository and permission == DOWNLOAD:
            return reference
        try:
            email = caller_of(self._cloud, request).email
        except CloudError:
            raise RegistryError(
                HTTPStatus.UNAUTHORIZED,
                "DENIED",
                "Unauthenticated request. Unauthenticated requests do not have permission "
                f'"{permission}" on resource "{reference.repository}" (or it may not exist)',
            ) from None
        if not self._registries.permits(email, permission, reference):
            raise RegistryError(
                HTTPStatus.FORBIDDEN,
                "DENIED",
                f'Permission "{permission}" denied on resource "{reference.repository}" (or it may not exist)',
            )
        return reference


def _refusal(error: RegistryError) -> web.Response:
    body = {"errors": [{"code": error.code, "message": str(error)}]}
    return web.json_response(body, status=error.status)
