"""CORS as in vLLM: Starlette's CORSMiddleware with `--allowed-origins`, by default `["*"]`."""

from collections.abc import Sequence

from aiohttp import web


def is_preflight(request: web.Request) -> bool:
    """Return whether a request is a browser's preflight."""
    return request.method == "OPTIONS" and {"Origin", "Access-Control-Request-Method"} <= request.headers.keys()


def preflight(request: web.Request, origins: Sequence[str]) -> web.Response:
    """Return the response to a preflight."""
    allowed = headers(request, origins)
    if not allowed:
        return web.Response(status=400, text="Disallowed CORS origin", headers={"vary": "Origin"})
    methods = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
    return web.Response(text="OK", headers={**allowed, "access-control-allow-methods": methods})


def headers(request: web.Request, origins: Sequence[str]) -> dict[str, str]:
    """Return the headers that allow a page of the request's origin to read the response. Empty for another origin."""
    origin = request.headers.get("Origin")
    if origin is None:
        return {}
    if "*" in origins:
        return {"access-control-allow-origin": "*"}
    return {"access-control-allow-origin": origin, "vary": "Origin"} if origin in origins else {}
