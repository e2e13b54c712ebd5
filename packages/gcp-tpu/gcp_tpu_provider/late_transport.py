"""Transport over HTTP, loaded on first use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gcp_tpu_provider.transport import Pacing, TpuTransport


@dataclass
class LateTransport:
    """Transport over HTTP, loaded by its first call. A preview of new capacity makes none, so it starts in a third of the time."""

    pacing: Pacing = field(default_factory=Pacing)
    _loaded: TpuTransport | None = None

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        creation: bool = False,
    ) -> dict[str, Any]:
        """Return the JSON response. Raises GoogleError or NoAnswerError."""
        if self._loaded is None:
            from gcp_tpu_provider.http_transport import HttpTpuTransport  # noqa: PLC0415 - late on purpose

            self._loaded = HttpTpuTransport(self.pacing)
        return await self._loaded.call(method, path, query=query, body=body, creation=creation)

    async def close(self) -> None:
        """Close the connections."""
        if self._loaded is not None:
            await self._loaded.close()

    def now(self) -> datetime:
        """Return Google's time according to its last response, or this machine's time before the first one."""
        return datetime.now(UTC) if self._loaded is None else self._loaded.now()
