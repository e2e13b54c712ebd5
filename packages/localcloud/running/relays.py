"""A port of the loopback address in place of a private address, with the three answers of a network: connected, refused, nothing.

Until the route allows a connection, nothing answers: the queue of the listening socket is full, so that the kernel drops connection requests, and a
client connects late if the route opens in time. A refused port is bound, but nobody listens on it. Where a kernel completes connections in spite of
a full queue, they hang.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeAlias

Route: TypeAlias = Callable[[], tuple[str, int] | None]
"""Returns where a connection arrives now, or None if it is dropped. Raises ConnectionRefusedError."""

_LOOPBACK: Final = "127.0.0.1"
_POLL_S: Final = 0.1
"""Real seconds between two looks at the route: a changed firewall rule takes effect after at most this time."""
_BACKLOG: Final = 1024
_CHUNK_BYTES: Final = 64 * 1024


class Relay:
    """Copies the connections of one destination. Rules hold for new connections; open ones continue, as in a VPC, whose firewall has a memory."""

    def __init__(self, route: Route) -> None:
        """Use a route that may change at any time."""
        self._route = route
        self._target: tuple[str, int] | None = None
        self._socket = _bound(0)
        self.port = int(self._socket.getsockname()[1])
        self._filler: socket.socket | None = None
        self._state = "refusing"
        self._decided = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Follow the route. When this returns, the port answers as the route says."""
        self._spawn(self._watch())
        await self._decided.wait()

    async def stop(self) -> None:
        """Close the port and all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._enter("stopped")
        self._socket.close()

    async def _watch(self) -> None:
        """Follow the route. One connection without a request shows at once when the server is gone, as a refused one would a client."""
        while True:
            try:
                self._target = self._route()
                if self._target is None:
                    self._enter("dropping")
                else:
                    reader, writer = await asyncio.open_connection(*self._target)
                    self._enter("listening")
                    try:
                        await self._until_changed(reader)
                    finally:
                        writer.close()
                    continue
            except OSError:
                self._enter("refusing")
            await asyncio.sleep(_POLL_S)

    async def _until_changed(self, reader: asyncio.StreamReader) -> None:
        while self._route() == self._target:
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await reader.read(1)
                    return

    def _enter(self, state: str) -> None:
        self._decided.set()
        if state == self._state:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        self._socket.close()
        if self._filler is not None:
            self._filler.close()
        self._filler, self._state = None, state
        self._socket = _bound(self.port)
        if state == "listening":
            self._socket.listen(_BACKLOG)
            loop.add_reader(self._socket, self._accept)
        elif state == "dropping":
            self._socket.listen(0)
            self._filler = socket.socket()
            self._filler.setblocking(False)
            self._filler.connect_ex((_LOOPBACK, self.port))

    def _accept(self) -> None:
        with suppress(OSError):
            client, _ = self._socket.accept()
            client.setblocking(False)
            self._spawn(self._copy(client))

    async def _copy(self, client: socket.socket) -> None:
        """Copy both directions until both have ended. A connection that breaks on one side breaks on the other."""
        reader, writer = await asyncio.open_connection(sock=client)
        try:
            target = self._route()
            if target is None:
                await asyncio.Event().wait()  # the rule went between two looks
            target_reader, target_writer = await asyncio.open_connection(*(target or ("", 0)))
        except OSError:
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_pump(reader, target_writer), _pump(target_reader, writer))
        except OSError:
            for each in (writer, target_writer):
                each.transport.abort()
        finally:
            for each in (writer, target_writer):
                each.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setblocking(False)
    bound.bind((_LOOPBACK, port))
    return bound
