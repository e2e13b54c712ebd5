"""A machine's metadata server, according to Compute Engine's documentation: paths, ETags, waiting GETs, guest attributes, tokens."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from aiohttp import web

from localcloud.callers import foreign_host, other_user, web_page_header
from localcloud.world.runtime import MachineSpec

_ROOT: Final = "/computeMetadata/v1/"
NAMES: Final = ("metadata.google.internal", "169.254.169.254")
"""The server's name and address on Google Cloud: a program whose connections are redirected still sends them. No web page can have them."""
_LONGEST_WAIT_S: Final = 3600.0
_TOKEN_LIFETIME_S: Final = 3599
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_GUEST_KEY_LIMIT: Final = 256
_GUEST_VALUE_LIMIT_BYTES: Final = 256 * 1024

_Tree: TypeAlias = dict[str, "str | _Tree"]
"""The metadata by path; folders are objects."""

IssueAccessToken: TypeAlias = Callable[[str], str]
"""Returns an access token for a service account's email."""
IssueIdToken: TypeAlias = Callable[[str, str], str]
"""Returns an ID token for a service account's email and an audience."""


@dataclass(slots=True, kw_only=True)
class MachineData:
    """The data of one machine: its constants, metadata and guest attributes (namespace -> key -> value)."""

    spec: MachineSpec
    metadata: dict[str, str]
    guest_attributes: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    of_process: Callable[[str], str] = str
    """Returns a guest attribute with the cloud's time, if it is a time of one of the machine's processes."""


class MetadataServer:
    """The metadata server of one machine. `changed` wakes the waiting GETs after the metadata was replaced."""

    def __init__(self, data: MachineData, *, access_token: IssueAccessToken, id_token: IssueIdToken) -> None:
        self._data = data
        self._access_token = access_token
        self._id_token = id_token
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.address = ""

    async def start(self, host: str) -> None:
        """Listen on a free port of `host`; `address` is then host:port."""
        app = web.Application(middlewares=[_flavoured])
        app.router.add_get("/", self._root)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, host, 0)
        await site.start()
        self._runner = runner
        port = int(runner.addresses[0][1])
        self.address = f"{host}:{port}"

    async def stop(self) -> None:
        """Stop listening; waiting GETs are answered or dropped."""
        self.changed()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def changed(self) -> None:
        """Wake the waiting GETs."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _root(self, _: web.Request) -> web.Response:
        return web.Response(text="computeMetadata/\n")

    async def _handle(self, request: web.Request) -> web.Response:
        path = request.path
        if not path.startswith(_ROOT):
            raise web.HTTPNotFound
        parts = [part for part in path.removeprefix(_ROOT).split("/") if part]
        if parts[:2] == ["instance", "guest-attributes"]:
            return await self._guest_attributes(request, parts[2:])
        if request.method != "GET":
            raise web.HTTPMethodNotAllowed(request.method, ["GET"])
        if parts[:2] == ["instance", "service-accounts"] and len(parts) == 4:  # noqa: PLR2004 - ACCOUNT/KEY
            answer = self._credentials(request, parts[2], parts[3])
            if answer is not None:
                return answer
        return await self._value(request, parts)

    async def _value(self, request: web.Request, parts: list[str]) -> web.Response:
        """Answer with a value or a folder's listing. With wait_for_change, first wait for a change."""
        wait = request.query.get("wait_for_change", "").lower() == "true"
        known = request.query.get("last_etag")
        limit_s = _seconds(request.query.get("timeout_sec"))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        text, kind = self._rendered(request, parts)
        before = _etag(text) if known is None else known
        while wait and _etag(text) == before and loop.time() < deadline:
            change = self._changed
            try:
                async with asyncio.timeout_at(deadline):
                    await change.wait()
            except TimeoutError:
                break
            text, kind = self._rendered(request, parts)
        if text is None:
            raise web.HTTPNotFound
        return web.Response(text=text, headers={"ETag": _etag(text), "Content-Type": kind})

    def _rendered(self, request: web.Request, parts: list[str]) -> tuple[str | None, str]:
        found: str | _Tree = self._tree()
        for part in parts:
            if not isinstance(found, dict) or part not in found:
                return None, ""
            found = found[part]
        if not isinstance(found, dict):
            return found, "application/text"
        if request.query.get("recursive", "").lower() == "true":
            if request.query.get("alt", "json") != "json":
                raise web.HTTPNotImplemented(text="The simulated metadata server writes a tree as JSON only.")
            return json.dumps(_camel(found, names="attributes" not in parts)), "application/json"
        lines = [f"{name}/\n" if isinstance(value, dict) else f"{name}\n" for name, value in found.items()]
        return "".join(lines), "application/text"

    def _tree(self) -> _Tree:
        """Return all metadata."""
        spec = self._data.spec
        number = str(int.from_bytes(hashlib.sha256(spec.project.encode()).digest()[:5]))
        node = spec.name.rsplit("/", 1)[-1]
        account: _Tree = {"aliases": "default\n", "email": spec.service_account, "scopes": f"{_SCOPE}\n"}
        return {
            "instance": {
                "attributes": {**self._data.metadata},
                "description": "",
                "hostname": f"{node}.{spec.zone}.c.{spec.project}.internal",
                "id": str(int.from_bytes(hashlib.sha256(spec.name.encode()).digest()[:7])),
                "machine-type": f"projects/{number}/machineTypes/{spec.machine_type or spec.accelerator_type}",
                "maintenance-event": "NONE",
                "name": node,
                "preempted": "FALSE",
                "service-accounts": {"default": account, spec.service_account: account},
                "zone": f"projects/{number}/zones/{spec.zone}",
            },
            "project": {"attributes": {}, "numeric-project-id": number, "project-id": spec.project},
        }

    def _credentials(self, request: web.Request, account: str, key: str) -> web.Response | None:
        email = self._data.spec.service_account
        if account not in ("default", email) or key not in ("token", "identity"):
            return None
        if key == "token":
            token = self._access_token(email)
            body = {"access_token": token, "expires_in": _TOKEN_LIFETIME_S, "token_type": "Bearer"}
            return web.json_response(body)
        audience = request.query.get("audience")
        if not audience:
            raise web.HTTPBadRequest(text="non-empty audience parameter required\n")
        return web.Response(text=self._id_token(email, audience))

    async def _guest_attributes(self, request: web.Request, parts: list[str]) -> web.Response:
        if self._data.metadata.get("enable-guest-attributes", "").upper() != "TRUE":
            raise web.HTTPForbidden(text="Guest attributes endpoint access is disabled.\n")
        stored = self._data.guest_attributes
        match request.method, parts:
            case "PUT", [namespace, key]:
                value = await request.text()
                if len(key) > _GUEST_KEY_LIMIT or len(value.encode()) > _GUEST_VALUE_LIMIT_BYTES:
                    raise web.HTTPBadRequest(text="The guest attribute is too large.\n")
                stored.setdefault(namespace, {})[key] = self._data.of_process(value)
                return web.Response()
            case "DELETE", [namespace, key]:
                stored.get(namespace, {}).pop(key, None)
                return web.Response()
            case "GET", []:
                return web.Response(text="".join(f"{namespace}/\n" for namespace in stored))
            case "GET", [namespace] if namespace in stored:
                return web.Response(text="".join(f"{key}\n" for key in stored[namespace]))
            case "GET", [namespace, key] if key in stored.get(namespace, {}):
                return web.Response(text=stored[namespace][key])
            case _:
                raise web.HTTPNotFound


@web.middleware
async def _flavoured(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Require the header Metadata-Flavor, reject requests from a proxy, and mark all responses, including errors.

    Also reject requests that cannot reach a real machine's server: from web pages, and from other users of the machine that runs the simulation.
    """
    try:
        if _from_outside(request):
            raise web.HTTPForbidden(text="The metadata server only answers its own machine.\n")
        if "X-Forwarded-For" in request.headers or (
            request.path != "/" and request.headers.get("Metadata-Flavor") != "Google"
        ):
            raise web.HTTPForbidden(
                text="Your client does not have permission to get this URL: the header Metadata-Flavor: Google is missing.\n"
            )
        response = await handler(request)
    except web.HTTPException as error:
        response = web.Response(status=error.status, text=error.text)
    response.headers["Metadata-Flavor"] = "Google"
    response.headers["Server"] = "Metadata Server for VM"
    return response


def _from_outside(request: web.Request) -> bool:
    if request.transport is None:
        return True
    client = request.transport.get_extra_info("peername")[:2]
    server = request.transport.get_extra_info("sockname")[:2]
    host = request.headers.get("Host")
    foreign = (host or "").removesuffix(":80") not in NAMES and foreign_host(host, address=server[0], port=server[1])
    return foreign or web_page_header(request.headers) is not None or other_user(client, server)


def _etag(text: str | None) -> str:
    return "0" if text is None else hashlib.sha256(text.encode()).hexdigest()[:16]


def _seconds(text: str | None) -> float:
    if not text or text == "0":
        return _LONGEST_WAIT_S
    try:
        return min(_LONGEST_WAIT_S, max(0.0, float(text)))
    except ValueError:
        raise web.HTTPBadRequest(text=f"timeout_sec is {text!r}, which is not a number of seconds.\n") from None


def _camel(tree: _Tree, *, names: bool) -> _Tree:
    """Convert keys to the camelCase of JSON responses (`machineType`). Keys of attributes belong to the user and stay unchanged."""
    out: _Tree = {}
    for name, value in tree.items():
        head, *rest = name.split("-") if names and "@" not in name else [name]
        key = head + "".join(part.capitalize() for part in rest)
        out[key] = _camel(value, names=names and name != "attributes") if isinstance(value, dict) else value
    return out
