"""Stable URLs of services and of their traffic tags: one loopback port each, with an IAM check before a request reaches an instance.

A front with several targets divides its requests by percentage, exactly for each hundred requests in order, so tests can count them.
A front checks the head of a request, then forwards its body and the response as they arrive, so event streams are not buffered.
Each connection serves one request (`Connection: close`), so none outlives the traffic split or the instance that it began with.
"""

import asyncio
import html
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from localcloud.callers import foreign_host
from localcloud.open_files import raise_open_files
from localcloud.world.runtime import AccessDecision, Authorize

_HOST: Final = "127.0.0.1"
_HEAD_LIMIT_BYTES: Final = 64 * 1024
_PARSED_BYTES: Final = 2**20
_PARSED_HEADERS: Final = 10_000
"""Limits of the HTTP parser. They are above `_HEAD_LIMIT_BYTES`, so a front returns 431 before the parser fails."""
_BACKLOG: Final = 2048
_HEAD_TIMEOUT_S: Final = 30.0
_SHUTDOWN_S: Final = 0.01
_SERVERLESS: Final = "X-Serverless-Authorization"
_HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"})
"""Headers of one connection (RFC 9110, 7.6.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a service's instances: `concurrent` requests run in parallel; others wait for `queue_s` and then get a 429; `timeout_s` ends any request."""

    concurrent: int
    queue_s: float
    timeout_s: float


DEFAULT_LIMITS: Final = Limits(concurrent=10_000, queue_s=10.0, timeout_s=3600.0)
LimitsOf: TypeAlias = Callable[[str], Limits]
"""Returns the limits of the instance with this URL."""


class Fronts:
    """Implementation of `localcloud.world.runtime.FrontRuntime`."""

    def __init__(
        self,
        *,
        authorize: Authorize,
        limits: LimitsOf,
        ready: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`ready` is called before each request to check whether the instance with this URL can receive it."""
        self._authorize = authorize
        self._ready = ready
        self._limits = limits
        self._fronts: dict[tuple[str, str], _Front] = {}
        self._targets: dict[str, _Target] = {}

    async def open(self, service: str, *, port: int | None, tag: str = "") -> int:
        """Open the front of a service or its tag, on the given port if it is free, and return its port."""
        known = self._fronts.get((service, tag))
        if known is not None:
            return known.port
        raise_open_files()
        front = _Front(service, self._authorize, self._ready)
        await front.listen(port)
        self._fronts[service, tag] = front
        return front.port

    def route(self, service: str, shares: Mapping[str, int], *, tag: str = "") -> None:
        """Divide new requests between instances by percentage; running requests are not moved. Raises KeyError for a service without a front."""
        front = self._fronts[service, tag]
        front.route({self._target(url): share for url, share in shares.items()})
        routed = {target.url for each in self._fronts.values() for target in each.targets}
        self._targets = {url: target for url, target in self._targets.items() if url in routed or target.active}

    async def drained(self, instance_url: str) -> None:
        """Wait until an instance without new requests has finished its running ones. The request timeout limits the wait."""
        target = self._targets.get(instance_url)
        if target is not None:
            await target.idle.wait()

    async def close(self, service: str, *, tag: str = "") -> None:
        """Close a front and the connections through it."""
        front = self._fronts.pop((service, tag), None)
        if front is not None:
            await front.close()

    def _target(self, url: str) -> "_Target":
        """Return the instance behind a URL. The service's front and the fronts of its tags share its slots."""
        known = self._targets.get(url)
        if known is None:
            known = self._targets[url] = _Target(url, self._limits(url))
        return known


class _Front:
    """One listening port, and the instances behind it."""

    def __init__(self, service: str, authorize: Authorize, ready: Callable[[str], bool]) -> None:
        self.port = 0
        self.targets: Mapping[_Target, int] = {}
        self._service = service
        self._authorize = authorize
        self._ready = ready
        self._credits: dict[_Target, int] = {}
        self._runner: web.ServerRunner | None = None

    async def listen(self, port: int | None) -> None:
        server = web.Server(
            self._serve,
            access_log=None,
            handler_cancellation=True,
            auto_decompress=False,
            keepalive_timeout=_HEAD_TIMEOUT_S,
            max_line_size=_PARSED_BYTES,
            max_field_size=_PARSED_BYTES,
            max_headers=_PARSED_HEADERS,
        )
        runner = self._runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, _HOST, port or 0, backlog=_BACKLOG).start()
        except OSError:
            if port is None:
                raise
            await web.TCPSite(runner, _HOST, 0, backlog=_BACKLOG).start()
        self.port = int(runner.addresses[0][1])

    def route(self, targets: "Mapping[_Target, int]") -> None:
        self.targets = {target: share for target, share in targets.items() if share > 0}
        self._credits = dict.fromkeys(self.targets, 0)

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _pick(self) -> "_Target | None":
        """Return the instance of the next request: the one furthest behind its percentage (smooth weighted round robin)."""
        if not self.targets:
            return None
        for target, share in self.targets.items():
            self._credits[target] += share
        chosen = max(self._credits, key=self._credits.__getitem__)
        self._credits[chosen] -= sum(self.targets.values())
        return chosen

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Check the request, wait for a slot, and forward it."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        target = self._pick()
        if target is None or not self._ready(target.url):
            return _answer(503, "Service Unavailable", "The service has no ready instance.")
        async with target.slot() as entered:
            if not entered:
                sentence = "Rate exceeded. The request was aborted because there was no available instance."
                return _answer(429, "Too Many Requests", sentence)
            try:
                async with asyncio.timeout(target.limits.timeout_s):
                    return await _forward(request, target.url)
            except TimeoutError:
                return _answer(504, "Gateway Timeout", "upstream request timeout")
            except aiohttp.ClientConnectorError:
                sentence = "The request failed because the instance could not be reached."
            except aiohttp.ClientError:
                sentence = (
                    "The request failed because either the HTTP response was malformed or connection to the instance "
                    "had an error."
                )
            return _answer(503, "Service Unavailable", sentence)

    def _refusal(self, request: web.BaseRequest) -> web.Response | None:
        """Check form, size, host name and IAM. Return the answer to a rejected request, or None.

        Google's front end answers 404 for an unknown host name. A web page that resolves its own name to 127.0.0.1 sends such a name.
        """
        if not request.raw_path.startswith("/"):
            return _answer(400, "Bad Request", "Your client has issued a malformed or illegal request.")
        head_bytes = len(request.raw_path) + sum(len(name) + len(value) for name, value in request.raw_headers)
        if head_bytes > _HEAD_LIMIT_BYTES:
            return _answer(431, "Request Header Fields Too Large", "The request's headers are too large.")
        if foreign_host(request.headers.get("Host"), address=_HOST, port=self.port):
            return _answer(404, "Not Found", "The requested URL was not found on this server.")
        return self._denial(request)

    def _denial(self, request: web.BaseRequest) -> web.Response | None:
        """Return the answer to a caller that IAM does not allow, or None."""
        given = request.headers.get(_SERVERLESS) or request.headers.get("Authorization")
        token = None
        if given is not None:
            scheme, _, rest = given.partition(" ")
            token = rest.strip() if scheme.lower() == "bearer" else ""
        verdict = self._authorize(self._service, token)
        if verdict is AccessDecision.ALLOWED:
            return None
        if verdict is AccessDecision.NOT_FOUND:
            return _answer(404, "Page not found", "The requested URL was not found on this server.")
        url = html.escape(request.raw_path)
        where = f"Your client does not have permission to get URL <code>{url}</code> from this server."
        if verdict is AccessDecision.FORBIDDEN:
            return _answer(403, "Forbidden", where)
        challenge = 'Bearer error="invalid_token" error_description="The access token could not be verified"'
        return _answer(401, "Unauthorized", where, {"WWW-Authenticate": challenge})


class _Target:
    """An instance and its free slots. Waiting requests get slots in the order of arrival."""

    def __init__(self, url: str, limits: Limits) -> None:
        self.url = url
        self.limits = limits
        self.active = 0
        """Running and waiting requests."""
        self.idle = asyncio.Event()
        self.idle.set()
        self._free = asyncio.Semaphore(limits.concurrent)

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[bool]:
        """Hold a slot during the block. Yield False, without a slot, if none became free in time."""
        self.active += 1
        self.idle.clear()
        entered = False
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.limits.queue_s):
                    entered = await self._free.acquire()
            yield entered
        finally:
            if entered:
                self._free.release()
            self.active -= 1
            if self.active == 0:
                self.idle.set()


async def _forward(request: web.BaseRequest, instance: str) -> web.StreamResponse:
    """Send the request to the instance, and its response to the caller as it comes. If a started response fails, drop the caller's connection."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # Each request has its own connection, so a shared session would have nothing to share.
    async with (
        aiohttp.ClientSession(
            auto_decompress=False,
            connector=aiohttp.TCPConnector(force_close=True),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            timeout=aiohttp.ClientTimeout(total=None),
            max_line_size=_PARSED_BYTES,
            max_field_size=_PARSED_BYTES,
        ) as session,
        session.request(
            request.method,
            URL(instance + request.raw_path, encoded=True),
            allow_redirects=False,
            headers=_forwarded(request),
            data=request.content if request.can_read_body else None,
        ) as answer,
    ):
        response = web.StreamResponse(
            status=answer.status, reason=answer.reason, headers=_without(answer.headers, _HOP_BY_HOP)
        )
        response.force_close()
        try:
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        except BaseException:
            if request.transport is not None:
                request.transport.abort()
            raise
        return response


def _answer(status: int, title: str, sentence: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer in place of the instance's, as Google's front end does."""
    body = (
        '<html><head>\n<meta http-equiv="content-type" content="text/html;charset=utf-8">\n'
        f"<title>{status} {title}</title>\n</head>\n<body text=#000000 bgcolor=#ffffff>\n"
        f"<h1>Error: {title}</h1>\n<h2>{sentence}</h2>\n<h2></h2>\n</body></html>\n"
    )
    own = {"Server": "Google Frontend", "x-simulated": "cloud-run", **(headers or {})}
    answer = web.Response(
        status=status, reason=title, text=body, content_type="text/html", charset="UTF-8", headers=own
    )
    answer.force_close()
    return answer


def _forwarded(request: web.BaseRequest) -> CIMultiDict[str]:
    """Return the request's headers for the instance, without the signature of the checked token."""
    headers = _without(request.headers, _HOP_BY_HOP | {"expect"})
    checked = _SERVERLESS if _SERVERLESS in headers else "Authorization"
    if checked in headers:
        headers[checked] = _without_signature(headers[checked])
    headers["X-Forwarded-For"] = request.remote or _HOST
    headers["X-Forwarded-Proto"] = "https"
    return headers


def _without(headers: Mapping[str, str], left_out: frozenset[str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in left_out)


def _without_signature(value: str) -> str:
    """Remove the signature of a checked ID token, as Cloud Run does before the request reaches the container."""
    parts = value.split(".")
    if len(parts) == 3 and value.lower().startswith("bearer ey"):  # noqa: PLR2004 - header, claims, signature
        return ".".join([*parts[:2], "SIGNATURE_REMOVED_BY_GOOGLE"])
    return value
