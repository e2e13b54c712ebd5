"""HTTP sessions. A client that reconnects repeatedly without closing its sessions does not lock itself out."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

MOST_SESSIONS: Final = 16
HARD_LIMIT: Final = 64
"""Maximum number of sessions. More are rejected only if all of these have a running call."""
_SESSION: Final = b"mcp-session-id"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(slots=True)
class _Session:
    calls: int = 0
    """Requests that wait for their responses."""
    streams: int = 0
    """Open streams of server messages. A client that disconnected without notice can leave one."""


@dataclass(slots=True)
class LatestSessions:
    """An app that closes the longest idle session above the limit. It closes it as the client does, with DELETE."""

    app: App
    most: int = MOST_SESSIONS
    _sessions: dict[str, _Session] = field(default_factory=dict[str, _Session])
    """Sessions by id, the most recently used last."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = _header(scope.get("headers"), _SESSION)
        if given is None:
            await self._opening(scope, receive, send)
        else:
            await self._using(given, scope, receive, send)

    async def _opening(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request without a session. If its response opens one, there can be one too many."""

        async def look(message: MutableMapping[str, Any]) -> None:
            opened = _header(message.get("headers"), _SESSION) if message["type"] == "http.response.start" else None
            if opened is not None:
                self._sessions[opened] = _Session()
                await self._end_oldest(scope, keep=opened)
            await send(message)

        await self.app(scope, receive, look)

    async def _using(self, given: str, scope: Scope, receive: Receive, send: Send) -> None:
        session = self._sessions.pop(given, None)
        if session is None:
            await self.app(scope, receive, send)
            return
        self._sessions[given] = session

        async def look(message: MutableMapping[str, Any]) -> None:
            gone = message["type"] == "http.response.start" and message["status"] == 404  # noqa: PLR2004 - HTTP's number
            if gone or (scope["method"] == "DELETE" and message.get("status") == 200):  # noqa: PLR2004 - HTTP's number
                self._sessions.pop(given, None)
            await send(message)

        is_stream = scope["method"] == "GET"
        session.streams += is_stream
        session.calls += not is_stream
        try:
            await self.app(scope, receive, look)
        finally:
            session.streams -= is_stream
            session.calls -= not is_stream

    async def _end_oldest(self, scope: Scope, *, keep: str) -> None:
        while len(self._sessions) > self.most:
            idle = [
                (session.streams, name)
                for name, session in self._sessions.items()
                if not session.calls and name != keep
            ]
            if not idle:
                return
            name = min(idle, key=lambda one: bool(one[0]))[1]  # the first one without a stream, otherwise the first
            del self._sessions[name]
            await self._end(name, scope)

    async def _end(self, name: str, scope: Scope) -> None:
        host = _header(scope.get("headers"), b"host") or ""
        headers = [(b"host", host.encode("latin-1")), (_SESSION, name.encode("latin-1"))]
        asked: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> MutableMapping[str, Any]:
            return asked.pop() if asked else {"type": "http.disconnect"}

        async def send(_message: MutableMapping[str, Any]) -> None:
            """Discard the response."""

        await self.app({**scope, "method": "DELETE", "headers": headers}, receive, send)


def _header(headers: object, name: bytes) -> str | None:
    pairs = cast("Iterable[tuple[bytes, bytes]]", headers or ())
    return next((value.decode("latin-1") for key, value in pairs if key.lower() == name), None)
