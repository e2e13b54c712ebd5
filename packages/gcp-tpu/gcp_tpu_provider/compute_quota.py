"""Quotas of chips for Compute Engine instances, read before a request.

A flex-start request without quota waits like one without available capacity.

Service Usage v1beta1 lists the metrics. Each limit has buckets for a region, for a region and the family, or for all regions without a bucket.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from gcp_tpu_provider.errors import TpuProviderError
from gcp_tpu_provider.json_parts import object_of, objects_of, text_of
from gcp_tpu_provider.machines import quota_of
from gcp_tpu_provider.transport import TpuTransport

FAMILY_METRIC: Final = "tpus_per_tpu_family"
FAMILY_QUOTA_ID: Final = "TPUS-PER-TPU-FAMILY-per-project-region"
"""Metric and id of the standard quota, as gcloud and the console show it. The generation is a dimension."""
_UNLIMITED: Final = -1
_READ_S: Final = 30.0
"""Timeout for one metric. When it expires, the request is sent unchecked."""
_WAITS: Final = "flex-start"
"""Provisioning model whose requests wait. For the others, Google rejects the request immediately and names the quota."""


@dataclass(slots=True)
class ComputeQuotas:
    """Limits of one provider. Reads each metric once."""

    transport: TpuTransport
    _limits: dict[tuple[str, str], dict[str, Any] | None] = field(
        default_factory=dict[tuple[str, str], dict[str, Any] | None]
    )

    async def refusal(self, inputs: Mapping[str, Any], zone: str) -> str:
        """Return why no instance can be created in a zone, as sentences. Empty if one can, or if a quota is unknown.

        Flex-start uses preemptible quota, or standard quota if a project has no preemptible quota (Compute Engine, "Provisioning models").
        """
        if inputs["provisioningModel"] != _WAITS:
            return ""
        project, region = str(inputs["project"]), zone.rpartition("-")[0]
        accelerator_type = str(inputs["acceleratorType"])
        needed, quota = int(accelerator_type.rpartition("-")[2]), quota_of(accelerator_type)
        if quota is None:
            return ""
        found: dict[str, float] = {}
        for metric, quota_id in ((quota.metric, quota.id), (FAMILY_METRIC, FAMILY_QUOTA_ID)):
            limit = await self._limit(project, {"region": region, "tpu_family": quota.family}, metric)
            if limit is None or limit >= needed:
                return ""
            found[quota_id] = limit
        named = " and ".join(f"{limit:.0f} of {quota_id}" for quota_id, limit in found.items())
        return f"Compute Engine quota allows {named} in {region}, but {needed} chips are needed. No request was sent."

    async def _limit(self, project: str, places: Mapping[str, str], metric: str) -> float | None:
        """Return the lowest limit in these dimensions, or None if unknown."""
        key = (project, metric)
        if key not in self._limits:
            self._limits[key] = await self._read(project, metric)
        answer = self._limits[key]
        if answer is None:
            return None
        limits = [_value(limit, places) for limit in objects_of(answer, "consumerQuotaLimits")]
        known = [limit for limit in limits if limit is not None]
        return min(known) if known else None

    async def _read(self, project: str, metric: str) -> dict[str, Any] | None:
        """Return a metric with its limits, or None if the caller cannot read it or Google does not respond."""
        name = quote(f"compute.googleapis.com/{metric}", safe="")
        path = f"v1beta1/projects/{project}/services/compute.googleapis.com/consumerQuotaMetrics/{name}"
        try:
            async with asyncio.timeout(_READ_S):
                return await self.transport.call("GET", path, query={"view": "FULL"})
        except (TpuProviderError, TimeoutError):
            return None


def _value(limit: Mapping[str, Any], places: Mapping[str, str]) -> float | None:
    """Return a limit's value in a location, from the most specific bucket; None if it is not a regional limit. An absent value is 0."""
    if "{region}" not in text_of(limit, "unit"):
        return None
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
