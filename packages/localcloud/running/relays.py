"""A port of the loopback address in place of a private address, with the three answers of a network: connected, refused, nothing.

Until the route allows a connection, nothing answers: the queue of the listening socket is full, so the kernel drops connection requests, and a
client connects late if the route opens in time. A refused port is bound, but its socket does not listen. If a kernel completes connections in spite of
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
"""Real seconds between two checks of the route. A changed firewall rule takes effect after at most this time."""
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
        """Follow the route. When this returns, the port answers by the route."""
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
        """Follow the route. One connection without a request shows immediately when the server is gone, as a refused one would a client."""
        while True:
            try:
                self._target = self._route()
                sentinel = self._target and await asyncio.open_connection(*self._target)
            except OSError:
                self._enter("refusing")
                await asyncio.sleep(_POLL_S)
                continue
            if sentinel is None:
                self._enter("dropping")
                await asyncio.sleep(_POLL_S)
                continue
            self._enter("listening")
            with suppress(OSError):
                await self._until_changed(sentinel[0])
            sentinel[1].close()

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
        following = _bound(self.port)  # before the other is closed, so no other program gets the port
        self._socket.close()
        if self._filler is not None:
            self._filler.close()
        self._socket = following
        self._filler = None
        self._state = state
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
        ends = [writer]
        try:
            target = self._route()
            if target is None:  # the route went between two checks, and a network refuses this connection
                writer.transport.abort()
                return
            target_reader, target_writer = await asyncio.open_connection(*target)
            ends.append(target_writer)
            await asyncio.gather(_pump(reader, target_writer), _pump(target_reader, writer))
        except OSError:
            for end in ends:
                end.transport.abort()
        finally:
            for end in ends:
                end.close()

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
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        bound.setsockopt(socket.SOL_SOCKET, option, 1)
    bound.setblocking(False)
    bound.bind((_LOOPBACK, port))
    return bound
