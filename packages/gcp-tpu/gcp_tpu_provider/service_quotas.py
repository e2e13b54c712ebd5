"""Limits of quotas from Service Usage v1beta1, which lists the limits of a metric with buckets for locations.

A limit has a bucket for a zone, a region, a region and a TPU family, or for all locations without a bucket. An unreadable limit is unknown, not 0.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from gcp_tpu_provider.errors import TpuProviderError
from gcp_tpu_provider.json_parts import object_of, objects_of, text_of
from gcp_tpu_provider.transport import TpuTransport

READ_S: Final = 30.0
"""Timeout for one read. When it expires, the answer is unknown."""
_UNLIMITED: Final = -1


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


def limits_of(listed: Sequence[Mapping[str, Any]], places: Mapping[str, str], dimension: str) -> Sequence[float] | None:
    """Return the limits of a metric in a place that are set by a dimension, such as `zone`; None if none is set by it."""
    by_dimension = [limit for limit in listed if f"{{{dimension}}}" in text_of(limit, "unit")]
    values = [value for limit in by_dimension if (value := _value(limit, places)) is not None]
    return values if by_dimension else None


def _value(limit: Mapping[str, Any], places: Mapping[str, str]) -> float | None:
    """Return a limit's value in a location, from the most specific bucket; None without one. An absent value is 0."""
    buckets = sorted(_buckets_of(limit, places), key=lambda bucket: len(object_of(bucket, "dimensions")))
    if not buckets:
        return None
    value = int(buckets[-1].get("effectiveLimit") or 0)
    return math.inf if value == _UNLIMITED else value


def _buckets_of(limit: Mapping[str, Any], places: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    for bucket in objects_of(limit, "quotaBuckets"):
        dimensions = object_of(bucket, "dimensions")
        if all(places.get(key) == value for key, value in dimensions.items()):
            yield bucket
