"""A proxy on 127.0.0.1 that adds the credentials of a server to every request.

Clients need neither a token nor a tunnel and send plain requests to this port. The identity token is renewed before it expires, and once more if the
server rejects it, because the clock does not count the time that this machine was asleep. Only local programs can connect. Requests of web pages are
rejected by their Origin, Sec-Fetch-Site and Host headers, because any page can send requests to 127.0.0.1. No response has `Access-Control-*`
headers, so no page can read one.
"""

import asyncio
import secrets
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.scripts.connect.upstream import Upstream
from gemma_serving.scripts.stack.access import ServerAccess
from gemma_serving.scripts.stack.connection_errors import PROXY
from loadtest.client.openai import connector_of
from loadtest.client.urls import plain_url, socket_path

HOST: Final = "127.0.0.1"
MAX_BODY_BYTES: Final = 256 * 2**20
"""Maximum request size. Bodies are buffered until the server responds, so they can be resent through a new tunnel."""
REOPEN_LIMIT_S: Final = 120.0
"""Time that a request waits for a lost tunnel, in seconds."""
CONNECT_LIMIT_S: Final = 30.0
_LOCAL_NAMES: Final = frozenset({"127.0.0.1", "localhost", "::1", "host.docker.internal", "host.containers.internal"})
_HOP_BY_HOP: Final = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
"""Headers of one connection (RFC 9110, 7.6.1)."""
_OURS: Final = frozenset({"host", "authorization", "x-serverless-authorization", "content-length", "expect", "cookie"})
"""Request headers that are not forwarded. The proxy sets credentials, lengths and hosts for the server."""

_FOR_PAGES: Final = "access-control-"
"""Headers about the access of web pages (Fetch Standard, CORS protocol). A response has none, so no page can read it."""


class ConnectProxy:
    """The proxy. `key`: bearer token that clients must send; None accepts every local program."""

    def __init__(self, upstream: Upstream, *, key: str | None) -> None:
        self._upstream = upstream
        self._key = key
        self._sessions: dict[str | None, aiohttp.ClientSession] = {}
        """One for TCP and one per tunnel socket, because a reopened tunnel has another path."""

    @contextmanager
    def running(self, port: int) -> Generator[int]:
        """Listen on a port (0: a free one) in its own thread, and yield the port. Raises CommandRefusedError if the port is in use."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        runner = web.AppRunner(self._application(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        try:
            yield asyncio.run_coroutine_threadsafe(self._listen(runner, port), loop).result()
        finally:
            asyncio.run_coroutine_threadsafe(self._close(runner), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=MAX_BODY_BYTES)
        application.router.add_route("*", "/{path:.*}", self._forward)
        return application

    async def _listen(self, runner: web.AppRunner, port: int) -> int:
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError:
            text = f"Port {port} is in use. Pass another --port, or --port 0 for a free one."
            raise CommandRefusedError(text) from None
        return int(runner.addresses[0][1])

    async def _close(self, runner: web.AppRunner) -> None:
        await runner.cleanup()
        for session in self._sessions.values():
            await session.close()

    def _session(self, socket: str | None) -> aiohttp.ClientSession:
        """Return the session for a server's socket, or for TCP."""
        found = self._sessions.get(socket)
        if found is None:
            found = self._sessions[socket] = aiohttp.ClientSession(
                connector=connector_of(socket),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT_S),
                auto_decompress=False,
                trust_env=socket is None,
            )
        return found

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the request exceeds {MAX_BODY_BYTES:,} bytes")
        why = ""
        for attempt in (0, 1):
            access = await asyncio.to_thread(self._upstream.access, REOPEN_LIMIT_S)
            if access is None:
                lost = "the tunnel is lost and not yet reopened; send the request again"
                return _error(HTTPStatus.SERVICE_UNAVAILABLE, lost)
            try:
                return await self._sent(request, body, access, may_renew=attempt == 0)
            except (aiohttp.ClientConnectionError, _RefusedTokenError) as error:
                why = str(error) or type(error).__name__
            except ScriptError as error:
                return _error(HTTPStatus.BAD_GATEWAY, str(error))
        return _error(HTTPStatus.BAD_GATEWAY, f"cannot reach the server: {why}")

    def _refusal(self, request: web.Request) -> web.Response | None:
        if not request.raw_path.startswith("/"):
            return _error(HTTPStatus.BAD_REQUEST, "the request has a full URL; send only the path, such as /v1/models")
        try:
            address = urlsplit(f"//{request.headers.get('Host', '')}")
        except ValueError:
            return _error(HTTPStatus.BAD_REQUEST, "the header Host is not a host and a port")
        is_page = "Origin" in request.headers or request.headers.get("Sec-Fetch-Site", "none").lower() != "none"
        if address.hostname not in _LOCAL_NAMES or "@" in address.netloc or is_page:
            only = (
                f"this port accepts only local programs that use {HOST} or localhost, or host.docker.internal from a"
                " container, not web pages"
            )
            return _error(HTTPStatus.FORBIDDEN, only)
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self._key is not None and not secrets.compare_digest(given.encode(), self._key.encode()):
            return _error(HTTPStatus.UNAUTHORIZED, "send the key that `connect` printed as OPENAI_API_KEY")
        return None

    async def _sent(
        self, request: web.Request, body: bytes, access: ServerAccess, *, may_renew: bool
    ) -> web.StreamResponse:
        """Stream the server's response to the client. Errors after its first byte close the client's connection."""
        headers = _passed_on(request.headers.items(), _HOP_BY_HOP | _OURS)
        headers.update(await asyncio.to_thread(access.headers))
        async with self._session(socket_path(access.base_url)).request(
            request.method,
            URL(plain_url(access.base_url) + request.raw_path, encoded=True),
            headers=headers,
            data=body or None,
            allow_redirects=False,
        ) as answer:
            if answer.status == HTTPStatus.UNAUTHORIZED and may_renew and access.renew():
                raise _RefusedTokenError("the server rejected the identity token")
            passed_on = _passed_on(answer.headers.items(), _HOP_BY_HOP)
            response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=passed_on)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response


class _RefusedTokenError(Exception):
    """The server rejected an identity token, which was then renewed."""


def _passed_on(headers: Iterable[tuple[str, str]], left_out: frozenset[str]) -> CIMultiDict[str]:
    """Return the headers to forward, without those for web pages."""
    kept = ((name, value) for name, value in headers if not name.lower().startswith(_FOR_PAGES))
    return CIMultiDict((name, value) for name, value in kept if name.lower() not in left_out)


def _error(status: HTTPStatus, message: str) -> web.Response:
    """Return an error in the format of the OpenAI API, so clients show its message."""
    body: Mapping[str, object] = {"error": {"message": f"connect: {message}.", "type": PROXY, "code": status.value}}
    return web.json_response(body, status=status)
