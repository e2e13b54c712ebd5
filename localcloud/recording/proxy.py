"""The recorder's server: it takes the requests of one command, passes them on unchanged, and hands over each exchange.

It listens on 127.0.0.1 only. A request is accepted if its path begins with a secret that only the command's environment names, if its Host
is the server's own, and if no web page sent it. Go's client of Cloud Storage drops the path of an endpoint for uploads; such a request is
accepted with an access token that came with the secret before.
"""

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from localcloud.recording.bodies import Passing, kept_answer, kept_request
from localcloud.recording.endpoints import Endpoints
from localcloud.recording.recordings import RecordedExchange

_CONNECT_LIMIT_S: Final = 30.0
_SHUTDOWN_S: Final = 5.0
_SECRET_BYTES: Final = 24
_ROOT_PATHS: Final = frozenset({"upload", "download", "resumable", "batch"})
"""First parts of Cloud Storage's paths that stand at the root of its host."""
_HOP: Final = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
        "host",
        "expect",
    ]
)
"""Headers of one connection (RFC 9110, 7.6.1); they are not passed on."""
_NOT_ADDED: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass(slots=True, kw_only=True)
class Proxy:
    """A running recorder. `keep` gets each exchange with its access token, which must not be written."""

    endpoints: Endpoints
    keep: Callable[[RecordedExchange], None]
    learn_token: Callable[[str], None]
    refused: int = 0
    base_url: str = ""
    _hosts: frozenset[str] = frozenset()
    _secret: str = field(default_factory=lambda: secrets.token_urlsafe(_SECRET_BYTES))
    _tokens: set[str] = field(default_factory=set[str])
    _session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[str]:
        """Listen until the context ends; yield the base URL, below which each API has a path of its own."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S, auto_decompress=False)
        await runner.setup()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_LIMIT_S)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(
            timeout=timeout,
            connector=connector,
            auto_decompress=False,
            trust_env=True,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = int(runner.addresses[0][1])
            self._hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
            self.base_url = f"http://127.0.0.1:{port}/{self._secret}"
            yield self.base_url
        finally:
            await runner.cleanup()
            await self._session.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        path = self._admitted(request)
        if path is None:
            self.refused += 1
            return web.Response(
                status=403, text="This is the recorder of another command; it takes that command's requests only.\n"
            )
        target = self.endpoints.url(path)
        if target is None:
            return web.Response(status=404, text=f"The recorder knows no API at {path}.\n")
        return await self._pass(request, path, target)

    def _admitted(self, request: web.Request) -> str | None:
        """Return the path from the API's name on if the request is the command's, else None."""
        if request.headers.get("Host", "") not in self._hosts or "Origin" in request.headers:
            return None
        first, _, rest = request.raw_path.partition("?")[0].lstrip("/").partition("/")
        token = _bearer(request.headers)
        if secrets.compare_digest(first.encode(), self._secret.encode()):
            if token:
                self._tokens.add(token)
                self.learn_token(token)
        elif first in _ROOT_PATHS and any(
            secrets.compare_digest(token.encode(), known.encode()) for known in self._tokens
        ):
            rest = f"{first}/{rest}"
        else:
            return None
        return f"/storage/{rest}" if rest.partition("/")[0] in _ROOT_PATHS else f"/{rest}"

    async def _pass(self, request: web.Request, path: str, target: str) -> web.StreamResponse:
        """Pass a request on and its answer back, both in pieces, and keep the exchange however it ends."""
        if self._session is None:
            raise RuntimeError("the recorder is not open")
        began, at = time.monotonic(), datetime.now(UTC)
        sent, received = Passing(), Passing()
        question = request.raw_path.partition("?")[2]
        url = URL(f"{target}?{question}" if question else target, encoded=True)
        status, headers, location = 0, CIMultiDict[str](), None
        try:
            async with self._session.request(
                request.method,
                url,
                headers=_passed(request.headers),
                data=sent.through(request.content.iter_any()) if request.can_read_body else None,
                allow_redirects=False,
                skip_auto_headers=_NOT_ADDED,
            ) as answer:
                headers, status = CIMultiDict(answer.headers), answer.status
                out = _passed(headers)
                here = self.endpoints.local(headers.get("Location", ""), self.base_url)
                if here is not None:
                    out["Location"] = here
                    location = here.removeprefix(self.base_url)
                response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=out)
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    received.add(piece)
                    await response.write(piece)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, OSError, TimeoutError):
            status = 0
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)
        finally:
            query = _query(request)
            asked, asked_content = kept_request(request.method, path, query, request.headers, sent)
            said, said_content = kept_answer(path, query, status, headers, received)
            self.keep(
                RecordedExchange(
                    time=at,
                    duration_s=time.monotonic() - began,
                    method=request.method,
                    path=path,
                    query=query,
                    request=asked,
                    request_content=asked_content,
                    status=status,
                    response=said,
                    response_content=said_content,
                    location=location,
                    range=request.headers.get("Content-Range"),
                )
            )


def _bearer(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _passed(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers that go on: all but those of the connection."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    kept = CIMultiDict[str]()
    for name, value in headers.items():
        if name.lower() not in _HOP | named:
            kept.add(name, value)
    return kept


def _query(request: web.Request) -> dict[str, Any]:
    found = {key: request.query.getall(key) for key in request.query}
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}
