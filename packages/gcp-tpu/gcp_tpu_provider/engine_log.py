"""Progress lines in the engine's output."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

CALL_TIMEOUT_S = 5.0


@dataclass
class EngineLog:
    """Sender of log lines to the engine, if its address is known. Drops lines that cannot be sent, because progress must not fail an update."""

    _channel: grpc.aio.Channel | None = None
    _stub: Any = None
    _address: str = ""

    def connect(self, address: str) -> None:
        """Connect to the engine at this address."""
        if address and address != self._address:
            self._address = address
            self._channel = grpc.aio.insecure_channel(address)
            self._stub = engine_pb2_grpc.EngineStub(self._channel)

    async def show(self, urn: str, message: str) -> None:
        """Show one line in the resource's row, in place of the previous one."""
        await self._send(engine_pb2.LogRequest(severity=engine_pb2.INFO, urn=urn, message=message, ephemeral=True))

    async def warn(self, urn: str, message: str) -> None:
        """Show a warning that stays, under the resource."""
        await self._send(engine_pb2.LogRequest(severity=engine_pb2.WARNING, urn=urn, message=message))

    async def _send(self, line: engine_pb2.LogRequest) -> None:
        if self._stub is None:
            return
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._stub.Log(line, timeout=CALL_TIMEOUT_S)

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = self._stub = None
            self._address = ""
