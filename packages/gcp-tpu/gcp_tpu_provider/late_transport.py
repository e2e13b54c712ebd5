"""The transport over HTTP, loaded when it is needed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gcp_tpu_provider.transport import Pacing, TpuTransport


@dataclass
class LateTransport:
    """The transport over HTTP, loaded by its first call: a preview of new capacity makes none, and starts in a third of the time."""

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
        """Return the JSON answer. Raises GoogleError or NoAnswerError."""
        if self._loaded is None:
            from gcp_tpu_provider.http_transport import HttpTpuTransport  # noqa: PLC0415 - that is the point

            self._loaded = HttpTpuTransport(self.pacing)
        return await self._loaded.call(method, path, query=query, body=body, creation=creation)

    async def close(self) -> None:
        """Close the connections."""
        if self._loaded is not None:
            await self._loaded.close()

    def now(self) -> datetime:
        """Return Google's time by its last answer; this machine's before the first one."""
        return datetime.now(UTC) if self._loaded is None else self._loaded.now()
