"""ASGI middleware of a served vLLM that has an API key: every path but /health answers 401 without the key.

vLLM itself checks the key below a few prefixes only: /invocations, /tokenize and /metrics answer without it (vLLM, docs/usage/security.md).
The container gets this file alone and vLLM imports it (`--middleware`), so that it needs nothing but Python 3.10.
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
"""The only path without a key: probes of Cloud Run cannot send one."""
REFUSAL = b'{"error":"Unauthorized"}'
_POLICY_VIOLATION = 1008  # RFC 6455, section 7.4.1


class PathGuard:
    """Refuses requests and WebSocket connections without the key of VLLM_API_KEY, as vLLM reads it: one key, after `Bearer`.

    A preflight of a browser has no key and is refused too. Without a key nothing is served: a server that should have one and has
    none must not become ready.
    """

    def __init__(self, app: App) -> None:
        """Read the key. Raises RuntimeError if there is none."""
        key = os.environb.get(b"VLLM_API_KEY", b"")
        if not key:
            raise RuntimeError("VLLM_API_KEY is absent or empty, so that the path guard could let nobody in")
        self.app = app
        self._digest = hashlib.sha256(key).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what has the key, the health check and the start and end of the server. Refuse everything else."""
        kind = scope["type"]
        if kind == "lifespan" or _is_health(scope) or self._has_key(scope.get("headers", ())):
            await self.app(scope, receive, send)
        elif kind == "websocket" and "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            await _refuse("websocket.http" if kind == "websocket" else kind, send)

    def _has_key(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        given = next((value for name, value in headers if name.lower() == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        # Digests have one length, so that the time of the comparison says nothing about the key.
        is_same = hmac.compare_digest(hashlib.sha256(key).digest(), self._digest)
        return is_same and scheme.lower() == b"bearer"


def _is_health(scope: Scope) -> bool:
    """Return whether a request is a health check. The path is that of the connection: a Host header cannot change it."""
    return scope["type"] == "http" and scope["path"].removeprefix(scope.get("root_path") or "") == OPEN_PATH


async def _refuse(kind: str, send: Send) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(REFUSAL)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    await send({"type": f"{kind}.response.start", "status": 401, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": REFUSAL})
