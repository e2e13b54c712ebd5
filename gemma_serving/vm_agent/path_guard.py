"""ASGI middleware for a vLLM server with an API key. Every path except the open ones returns 401 without the key.

vLLM checks the key only below a few prefixes. /invocations, /tokenize and /metrics do not require it (vLLM, docs/usage/security.md).
The container gets only this file, and vLLM imports it (`--middleware`), so it needs nothing but Python 3.10.
"""

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATH = "/health"
"""The only path without a key, because probes cannot send one. A Pod of GKE has one more, for its collector of metrics."""
REFUSAL = b'{"error":"Unauthorized"}'
_POLICY_VIOLATION = 1008  # RFC 6455, section 7.4.1


class PathGuard:
    """Middleware that rejects requests and WebSocket connections without the key of VLLM_API_KEY, read as vLLM does: one key, after `Bearer`.

    A browser's preflight has no key and is rejected too. Without a configured key nothing is served, because a server
    that lost its key must not become ready.
    """

    def __init__(self, app: App) -> None:
        """Read the key and the open paths. Raises RuntimeError without a key."""
        key = os.environb.get(b"VLLM_API_KEY", b"")
        if not key:
            raise RuntimeError("VLLM_API_KEY is missing or empty. The path guard needs a key to check requests.")
        self.app = app
        self._digest = hashlib.sha256(key).digest()
        self._open_paths = {OPEN_PATH, os.environ.get("GEMMA_SERVING_OPEN_PATH") or OPEN_PATH}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward requests with the key or of an open path, and lifespan events. Reject everything else."""
        kind = scope["type"]
        if kind == "lifespan" or self._is_open(scope) or self._has_key(scope.get("headers", ())):
            await self.app(scope, receive, send)
        elif kind == "websocket" and "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            await _refuse("websocket.http" if kind == "websocket" else kind, send)

    def _is_open(self, scope: Scope) -> bool:
        """Return whether a request needs no key. Uses the connection's path, which a Host header cannot change."""
        return scope["type"] == "http" and scope["path"].removeprefix(scope.get("root_path") or "") in self._open_paths

    def _has_key(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        given = next((value for name, value in headers if name.lower() == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        # Digests have equal length, so the comparison time does not leak the key.
        is_same = hmac.compare_digest(hashlib.sha256(key).digest(), self._digest)
        return is_same and scheme.lower() == b"bearer"


async def _refuse(kind: str, send: Send) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(REFUSAL)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    await send({"type": f"{kind}.response.start", "status": 401, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": REFUSAL})
