"""The engine's log: progress in the resource's own line."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

LIMIT_S = 5.0


@dataclass
class Engine:
    """Speaks to the engine, if its address is known. A line that cannot be shown is dropped: progress is never worth an error."""

    _channel: grpc.aio.Channel | None = None
    _stub: Any = None
    _address: str = ""

    def connect(self, address: str) -> None:
        """Remember where the engine is."""
        if address and address != self._address:
            self._address = address
            self._channel = grpc.aio.insecure_channel(address)
            self._stub = engine_pb2_grpc.EngineStub(self._channel)

    async def say(self, urn: str, message: str) -> None:
        """Show one line in the resource's row; the next one takes its place."""
        if self._stub is None:
            return
        line = engine_pb2.LogRequest(severity=engine_pb2.INFO, urn=urn, message=message, ephemeral=True)
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._stub.Log(line, timeout=LIMIT_S)

    async def close(self) -> None:
        """Release the connection."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = self._stub = None
            self._address = ""
