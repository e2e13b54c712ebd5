"""Stable URLs of services and of their traffic tags: one loopback port each, with an IAM check before a request reaches an instance.

A front with several targets divides its requests by percentage, exactly for each hundred requests in order, so tests can count them.
A front reads the head of a request, checks it, and then copies bytes in both directions, so event streams are not buffered.
Each connection serves one request (`Connection: close`) because each request is checked.
"""

import asyncio
import html
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from localcloud.callers import foreign_host
from localcloud.open_files import raise_open_files
from localcloud.world.runtime import AccessDecision, Authorize

_HOST: Final = "127.0.0.1"
_HEAD_LIMIT_BYTES: Final = 64 * 1024
_HIGH_WATER_BYTES: Final = 1024 * 1024
_BACKLOG: Final = 2048
_HEAD_TIMEOUT_S: Final = 30.0


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
        host_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`ready` is called before each request to check whether the instance with this URL can receive it.

        `host_of` returns the host name of a service's URL on Google Cloud, which other services use.
        """
        self._authorize = authorize
        self._host_of = host_of
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
        front = _Front(service, self._authorize, self._ready, self._host_of(service))
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

    def __init__(self, service: str, authorize: Authorize, ready: Callable[[str], bool], host: str) -> None:
        self.service = service
        self.host = host
        self.authorize = authorize
        self.ready = ready
        self.port = 0
        self.targets: Mapping[_Target, int] = {}
        self._credits: dict[_Target, int] = {}
        self._server: asyncio.Server | None = None
        self.clients: set[_Client] = set()

    async def listen(self, port: int | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(lambda: _Client(self), _HOST, port or 0, backlog=_BACKLOG)
        except OSError:
            if port is None:
                raise
            server = await loop.create_server(lambda: _Client(self), _HOST, 0, backlog=_BACKLOG)
        self._server = server
        self.port = int(server.sockets[0].getsockname()[1])

    def route(self, targets: "Mapping[_Target, int]") -> None:
        self.targets = {target: share for target, share in targets.items() if share > 0}
        self._credits = dict.fromkeys(self.targets, 0)

    def pick(self) -> "_Target | None":
        """Return the instance of the next request: the one furthest behind its percentage (smooth weighted round robin)."""
        if not self.targets:
            return None
        for target, share in self.targets.items():
            self._credits[target] += share
        chosen = max(self._credits, key=self._credits.__getitem__)
        self._credits[chosen] -= sum(self.targets.values())
        return chosen

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for client in list(self.clients):
            client.abort()
        if self._server is not None:
            await self._server.wait_closed()


class _Target:
    """An instance and its free slots. Waiting requests get slots in the order of arrival."""

    def __init__(self, url: str, limits: Limits) -> None:
        parts = urlsplit(url)
        self.url = url
        self.host = parts.hostname or _HOST
        self.port = parts.port or 80
        self.limits = limits
        self.active = 0
        """Running and waiting requests."""
        self.idle = asyncio.Event()
        self.idle.set()
        self._free = limits.concurrent
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> bool:
        """Take a slot. Return False if none became free in time."""
        self.active += 1
        self.idle.clear()
        entered = False
        try:
            entered = await self._slot()
            return entered
        finally:
            if not entered:
                self._gone()

    async def _slot(self) -> bool:
        if self._free > 0:
            self._free -= 1
            return True
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        try:
            async with asyncio.timeout(self.limits.queue_s):
                await slot
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                self._release()
            raise
        return True

    def leave(self) -> None:
        """Pass a slot to the next waiting request, or release it."""
        self._release()
        self._gone()

    def _release(self) -> None:
        while self._waiting:
            slot = self._waiting.popleft()
            if not slot.done():
                slot.set_result(None)
                return
        self._free += 1

    def _gone(self) -> None:
        self.active -= 1
        if self.active == 0:
            self.idle.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """A request's first line and headers."""

    method: str
    path: str
    version: str
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


class _Client(asyncio.Protocol):
    """The connection to the caller."""

    def __init__(self, front: _Front) -> None:
        self._front = front
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._upstream: _InstanceConnection | None = None
        self._upstream_transport: asyncio.Transport | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - always true for TCP
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._front.clients.add(self)
        self._head_timer = asyncio.get_running_loop().call_later(_HEAD_TIMEOUT_S, self.abort)

    def data_received(self, data: bytes) -> None:
        if self._upstream_transport is not None:
            self._upstream_transport.write(data)
            return
        self._buffer += data
        if self._task is not None:
            if len(self._buffer) > _HIGH_WATER_BYTES:
                # Stop reading a large body until an instance accepts it.
                self.hold_request(hold=True)
            return
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _HEAD_LIMIT_BYTES:
                self._answer(431, "Request Header Fields Too Large", "The request's headers are too large.")
            return
        if self._head_timer is not None:
            self._head_timer.cancel()
        head = _parse_head(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        if head is None:
            self._answer(400, "Bad Request", "Your client has issued a malformed or illegal request.")
            return
        self._task = asyncio.get_running_loop().create_task(self._serve(head))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._front.clients.discard(self)
        if self._head_timer is not None:
            self._head_timer.cancel()
        if self._upstream_transport is not None:
            self._upstream_transport.abort()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        if self._upstream_transport is not None:
            self._upstream_transport.pause_reading()

    def resume_writing(self) -> None:
        if self._upstream_transport is not None:
            self._upstream_transport.resume_reading()

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    async def _serve(self, head: _Head) -> None:
        """Check the request, wait for a slot, connect, and copy bytes until the instance closes the connection."""
        if not self._admit(head):
            return
        target = self._front.pick()
        if target is None or not self._front.ready(target.url):
            self._answer(503, "Service Unavailable", "The service has no ready instance.")
            return
        if not await target.enter():
            self._answer(
                429,
                "Too Many Requests",
                "Rate exceeded. The request was aborted because there was no available instance.",
            )
            return
        try:
            async with asyncio.timeout(target.limits.timeout_s):
                await self._forward(head, target)
        except TimeoutError:
            if self._upstream is None or not self._upstream.answered:
                self._answer(504, "Gateway Timeout", "upstream request timeout")
            self.abort()
        finally:
            target.leave()

    def _admit(self, head: _Head) -> bool:
        """Check host name and IAM. If the request is rejected, answer it and return False.

        Google's front end answers 404 for an unknown host name. A web page that resolves its own name to 127.0.0.1 sends such a name.
        """
        host = head.get("host")
        if foreign_host(host, address=_HOST, port=self._front.port) and (not host or host != self._front.host):
            self._answer(404, "Not Found", "The requested URL was not found on this server.")
            return False
        given = head.get("x-serverless-authorization") or head.get("authorization")
        token = None
        if given is not None:
            scheme, _, rest = given.partition(" ")
            token = rest.strip() if scheme.lower() == "bearer" else ""
        verdict = self._front.authorize(self._front.service, token)
        if verdict is AccessDecision.ALLOWED:
            return True
        if verdict is AccessDecision.NOT_FOUND:
            self._answer(404, "Page not found", "The requested URL was not found on this server.")
            return False
        where = (
            f"Your client does not have permission to get URL <code>{html.escape(head.path)}</code> from this server."
        )
        if verdict is AccessDecision.FORBIDDEN:
            self._answer(403, "Forbidden", where)
        else:
            challenge = 'Bearer error="invalid_token" error_description="The access token could not be verified"'
            self._answer(401, "Unauthorized", where, f"WWW-Authenticate: {challenge}\r\n")
        return False

    async def _forward(self, head: _Head, target: _Target) -> None:
        upstream = _InstanceConnection(self)
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: upstream, target.host, target.port
            )
        except OSError:
            self._answer(503, "Service Unavailable", "The request failed because the instance could not be reached.")
            return
        self._upstream = upstream
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        transport.write(_forwarded(head, self._peer()) + bytes(self._buffer))
        self._buffer.clear()
        self._upstream_transport = transport
        if not upstream.writing_paused:
            self.hold_request(hold=False)
        await upstream.closed.wait()
        if not upstream.answered:
            self._answer(
                503,
                "Service Unavailable",
                "The request failed because either the HTTP response was malformed or connection to the instance had an error.",
            )

    def _peer(self) -> str:
        address = self._transport.get_extra_info("peername") if self._transport is not None else None
        return str(address[0]) if address else _HOST

    def from_upstream(self, data: bytes) -> None:
        """Forward an instance's bytes to the caller."""
        if self._transport is not None:
            self._transport.write(data)

    def upstream_closed(self, *, answered: bool, broken: bool) -> None:
        """Close the caller's connection as the instance closed its own: cleanly or with a reset."""
        if self._transport is None or not answered:
            return
        if broken:
            self._transport.abort()
        else:
            self._transport.close()

    def hold_request(self, *, hold: bool) -> None:
        """Stop or resume reading the request, depending on whether the instance accepts data."""
        if self._transport is None or self._transport.is_closing():
            return
        if hold:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _answer(self, status: int, title: str, sentence: str, headers: str = "") -> None:
        """Answer in place of the instance, as Google's front end does, and close."""
        if self._transport is None or self._transport.is_closing():
            return
        body = (
            '<html><head>\n<meta http-equiv="content-type" content="text/html;charset=utf-8">\n'
            f"<title>{status} {title}</title>\n</head>\n<body text=#000000 bgcolor=#ffffff>\n"
            f"<h1>Error: {title}</h1>\n<h2>{sentence}</h2>\n<h2></h2>\n</body></html>\n"
        ).encode()
        self._transport.write(
            f"HTTP/1.1 {status} {title}\r\nContent-Type: text/html; charset=UTF-8\r\nContent-Length: {len(body)}\r\n"
            f"Server: Google Frontend\r\nx-simulated: cloud-run\r\n{headers}Connection: close\r\n\r\n".encode()
            + body
        )
        self._transport.close()


class _InstanceConnection(asyncio.Protocol):
    """The connection to the instance."""

    def __init__(self, client: _Client) -> None:
        self._client = client
        self.answered = False
        self.writing_paused = False
        self.closed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.answered = True
        self._client.from_upstream(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._client.upstream_closed(answered=self.answered, broken=exc is not None)

    def pause_writing(self) -> None:
        self.writing_paused = True
        self._client.hold_request(hold=True)

    def resume_writing(self) -> None:
        self.writing_paused = False
        self._client.hold_request(hold=False)


def _parse_head(raw: bytes) -> _Head | None:
    lines = raw.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):  # noqa: PLR2004 - method, path, version
        return None
    headers: list[tuple[str, str]] = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            return None
        headers.append((name, value.strip()))
    return _Head(method=parts[0], path=parts[1], version=parts[2], headers=tuple(headers))


def _forwarded(head: _Head, peer: str) -> bytes:
    """Return the request head for the instance: one request per connection, without the signature of the checked token."""
    checked = "authorization" if head.get("x-serverless-authorization") is None else "x-serverless-authorization"
    lines = [f"{head.method} {head.path} {head.version}"]
    for name, value in head.headers:
        match name.lower():
            case "connection" | "keep-alive" | "x-forwarded-for" | "x-forwarded-proto":
                continue
            case lower if lower == checked:
                lines.append(f"{name}: {_without_signature(value)}")
            case _:
                lines.append(f"{name}: {value}")
    lines += [f"X-Forwarded-For: {peer}", "X-Forwarded-Proto: https", "Connection: close"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _without_signature(value: str) -> str:
    """Remove the signature of a checked ID token, as Cloud Run does before the request reaches the container."""
    parts = value.split(".")
    if len(parts) == 3 and value.lower().startswith("bearer ey"):  # noqa: PLR2004 - header, claims, signature
        return ".".join([*parts[:2], "SIGNATURE_REMOVED_BY_GOOGLE"])
    return value
