"""A proxy in front of the local cloud's Cloud Storage that counts reads of content, and slows each connection down as a network does."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from aiohttp import ClientSession, ClientTimeout, StreamReader, hdrs, web

from dev.judges.real.relay import PIECE_BYTES, Link
from dev.judges.real_vllm.server import HOST

_CHUNK_BYTES: Final = 256 * 1024
_LIMIT_S: Final = 30.0
_PER_HOP: Final = {hdrs.HOST, hdrs.CONNECTION, hdrs.TRANSFER_ENCODING, hdrs.CONTENT_ENCODING}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one connection takes: seconds to the first byte of an answer, and bytes per second after it. 0 is no limit."""

    first_byte_s: float = 0.0
    bytes_per_s: float = 0.0

    def __str__(self) -> str:
        return f"a connection with {self.bytes_per_s / 1e6:.0f} MB/s and {self.first_byte_s * 1000:.0f} ms to the first byte"


@dataclass(slots=True)
class Reads:
    """Reads of content since the start. `most` is the maximum of reads that were in progress at the same time."""

    requests: int = 0
    content_bytes: int = 0
    now: int = 0
    most: int = 0

    def begin(self) -> None:
        """Count a read that begins."""
        self.requests += 1
        self.now += 1
        self.most = max(self.most, self.now)


@dataclass(slots=True)
class Store:
    """A running proxy."""

    cloud: str
    token: str
    """Replaces the caller's, if it is set."""
    network: ConnectionLimits
    links: Sequence[Link] = ()
    """Shared by all reads of content, besides the limits of each."""
    url: str = ""
    reads: Reads = field(default_factory=Reads)

    @property
    def json_api(self) -> str:
        """Address of the JSON API, for gcsfuse's `custom-endpoint`."""
        return f"{self.url}/storage/storage/v1/"

    async def answer(self, request: web.Request, session: ClientSession) -> web.StreamResponse:
        """Pass a request on, and its answer back at the network's speed."""
        is_content = request.method == hdrs.METH_GET and (
            request.query.get("alt") == "media" or not request.path.startswith("/storage/storage/")
        )
        headers = {name: value for name, value in request.headers.items() if name.title() not in _PER_HOP}
        if self.token:
            headers[hdrs.AUTHORIZATION] = f"Bearer {self.token}"
        if is_content:
            self.reads.begin()
        try:
            async with session.request(
                request.method, f"{self.cloud}{request.raw_path}", headers=headers, data=await request.read()
            ) as found:
                kept = {name: value for name, value in found.headers.items() if name.title() not in _PER_HOP}
                response = web.StreamResponse(status=found.status, headers=kept)
                await self._send(request, response, found.content, is_content=is_content)
                return response
        except ConnectionError:  # the reader has enough, and closed the connection
            return web.Response(status=499)
        finally:
            self.reads.now -= is_content

    async def _send(
        self, request: web.Request, response: web.StreamResponse, content: StreamReader, *, is_content: bool
    ) -> None:
        network = self.network if is_content else ConnectionLimits()
        await asyncio.sleep(network.first_byte_s)
        await response.prepare(request)
        began_s, sent = time.monotonic(), 0
        async for chunk in content.iter_chunked(PIECE_BYTES if self.links else _CHUNK_BYTES):
            sent += len(chunk)
            if network.bytes_per_s:  # the last bytes arrive no earlier than the network sends them
                await asyncio.sleep(began_s + sent / network.bytes_per_s - time.monotonic())
            if is_content:
                await asyncio.sleep(max((link.delay_s(len(chunk)) for link in self.links), default=0.0))
            await response.write(chunk)
            self.reads.content_bytes += len(chunk) * is_content
        await response.write_eof()


@contextmanager
def store(cloud: str, *, token: str = "", network: ConnectionLimits | None = None) -> Generator[Store]:
    """Run a proxy in front of the local cloud at this address during the block."""
    running = Store(cloud, token, network or ConnectionLimits())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="store", daemon=True)
    thread.start()

    def wait_for(work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(_LIMIT_S)

    try:
        runner = wait_for(_open(running))
        try:
            yield running
        finally:
            wait_for(runner.cleanup())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_LIMIT_S)
        loop.close()


async def _open(running: Store) -> web.AppRunner:
    session = ClientSession(timeout=ClientTimeout(total=None), auto_decompress=False, trust_env=False)

    async def answer(request: web.Request) -> web.StreamResponse:
        return await running.answer(request, session)

    async def close(_application: web.Application) -> None:
        await session.close()

    application = web.Application(client_max_size=2**30)
    application.router.add_route("*", "/{path:.*}", answer)
    application.on_cleanup.append(close)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    running.url = f"http://{HOST}:{runner.addresses[0][1]}"
    return runner
