"""Middleware from the command line (`--middleware`), imported and called as in vLLM.

vLLM's server is an ASGI application, and a middleware wraps it (entrypoints/openai/api_server.py, build_app). This server is not. It
passes each request to the middleware as ASGI, and serves it itself if the middleware passes it on.
"""

import importlib
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, cast

from aiohttp import web

from localcloud.vllm.arguments import ArgumentError

_REACHED: Final = "localcloud.reached"
_Message = MutableMapping[str, Any]
_App = Callable[[_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]], Awaitable[None]]


class Middleware:
    """All middleware of a server. The last one on the command line gets a request first."""

    def __init__(self, names: Sequence[str], folders: Sequence[str]) -> None:
        """Import each `MODULE.CLASS` from the container's PYTHONPATH and create it. Raises ArgumentError with the last line of vLLM's traceback.

        If a class cannot be created, each request fails: uvicorn continues without the application's startup.
        """
        sys.path[:0] = [folder for folder in folders if folder not in sys.path]
        self._app: _App | None = _reached
        for one in [_imported(name) for name in names]:
            try:
                self._app = None if self._app is None else one(self._app)
            except Exception as error:  # noqa: BLE001 - any error of the middleware
                self._app = None
                print(f"INFO:     ASGI 'lifespan' protocol appears unsupported. [{error}]", file=sys.stderr, flush=True)

    async def answer(self, request: web.Request) -> web.Response | None:
        """Return the middleware's own response, or None if it passes the request on."""
        if self._app is None:
            return web.Response(status=500, text="Internal Server Error")
        scope: _Message = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.scheme,
            "path": request.path,
            "raw_path": request.raw_path.partition("?")[0].encode(),
            "root_path": "",
            "query_string": request.query_string.encode(),
            "headers": [(name.lower(), value) for name, value in request.raw_headers],
        }
        sent: list[_Message] = []

        async def receive() -> _Message:
            return {"type": "http.request", "body": await request.read(), "more_body": False}

        async def send(message: _Message) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        if _REACHED in scope:
            return None
        failed: _Message = {"status": 500}
        start = next((message for message in sent if message["type"] == "http.response.start"), failed)
        given = cast("Sequence[tuple[bytes, bytes]]", start.get("headers", ()))
        headers = [(name.decode(), value.decode()) for name, value in given]
        body = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
        return web.Response(
            status=start["status"], body=body, headers=[one for one in headers if one[0] != "content-length"]
        )


def _imported(name: str) -> Callable[[_App], _App]:
    module, _, attribute = name.rpartition(".")
    try:
        return cast("Callable[[_App], _App]", getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError(f"{type(error).__name__}: {error}") from error


async def _reached(scope: _Message, _receive: object, _send: object) -> None:
    scope[_REACHED] = True


def is_preflight(request: web.Request) -> bool:
    """Return whether a request is a browser's preflight (CORS as in vLLM: Starlette's CORSMiddleware with `--allowed-origins`)."""
    return request.method == "OPTIONS" and {"Origin", "Access-Control-Request-Method"} <= request.headers.keys()


def preflight(request: web.Request, origins: Sequence[str]) -> web.Response:
    """Return the response to a preflight."""
    allowed = cors_headers(request, origins)
    if not allowed:
        return web.Response(status=400, text="Disallowed CORS origin", headers={"vary": "Origin"})
    methods = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
    return web.Response(text="OK", headers={**allowed, "access-control-allow-methods": methods})


def cors_headers(request: web.Request, origins: Sequence[str]) -> dict[str, str]:
    """Return the headers that allow a page of the request's origin to read the response. Empty for another origin."""
    origin = request.headers.get("Origin")
    if origin is None:
        return {}
    if "*" in origins:
        return {"access-control-allow-origin": "*"}
    return {"access-control-allow-origin": origin, "vary": "Origin"} if origin in origins else {}
