"""Limits of quotas from Service Usage v1beta1, which lists the limits of a metric with buckets for locations.

A limit has a bucket for a zone, a region, a region and a TPU family, or for all locations without a bucket. An unreadable limit is unknown, not 0.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from gcp_tpu_provider.errors import TpuProviderError
from gcp_tpu_provider.json_parts import objects_of
from gcp_tpu_provider.quota_documents import limits_of
from gcp_tpu_provider.transport import TpuTransport

READ_S: Final = 30.0
"""Timeout for one read. When it expires, the answer is unknown."""


@dataclass(slots=True)
class ServiceQuotas:
    """Limits of one provider. Reads each metric once."""

    transport: TpuTransport
    _answers: dict[tuple[str, str], dict[str, Any] | str] = field(
        default_factory=dict[tuple[str, str], dict[str, Any] | str]
    )

    async def limits(
        self, project: str, metric: str, places: Mapping[str, str], dimension: str, *, may_lack: bool = False
    ) -> tuple[Sequence[float], str]:
        """Return the limits of a metric, such as `tpu.googleapis.com/tpu-v6e`, that are set by a dimension; and why there is none.

        `places`: the value of each dimension, such as `zone`. `may_lack`: the metric need not have a limit by this dimension.
        """
        key = (project, metric)
        if key not in self._answers:
            self._answers[key] = await self._read(project, metric)
        answer = self._answers[key]
        if isinstance(answer, str):
            return [], answer
        known = limits_of(objects_of(answer, "consumerQuotaLimits"), places, dimension)
        if known is None and may_lack:
            return [], ""
        return known or [], "" if known else f"Service Usage returned no limit of {metric} for {places[dimension]}"

    async def _read(self, project: str, metric: str) -> dict[str, Any] | str:
        """Return a metric with its limits, or why the caller cannot read it."""
        service = metric.partition("/")[0]
        path = f"v1beta1/projects/{project}/services/{service}/consumerQuotaMetrics/{quote(metric, safe='')}"
        try:
            async with asyncio.timeout(READ_S):
                return await self.transport.call("GET", path, query={"view": "FULL"})
        except TimeoutError:
            return f"Service Usage did not respond within {READ_S:.0f} s"
        except TpuProviderError as error:
            return str(error).rstrip(".")
