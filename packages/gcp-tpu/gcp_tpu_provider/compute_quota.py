"""The quotas of v6e chips in instances of Compute Engine, read before a request: a flex-start request without quota waits as one without stock does.

Service Usage v1beta1 names the metrics. Each limit has a bucket for a region, for a region and the family, or for all that have none of their own.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from gcp_tpu_provider.errors import TpuProviderError
from gcp_tpu_provider.json_parts import object_of, objects_of, text_of
from gcp_tpu_provider.transport import TpuTransport

QUOTA_IDS: Final[Mapping[str, str]] = {
    "preemptible_tpu_v6e": "PREEMPTIBLE-TPU-V6E-per-project-region",
    "tpus_per_tpu_family": "TPUS-PER-TPU-FAMILY-per-project-region",
}
"""Metric -> id of the quota, as gcloud and the console name it."""
_TPU_FAMILY: Final = "CT6E"
_UNLIMITED: Final = -1
_READ_S: Final = 30.0
"""Longest wait for one metric. The request is made then, as without this check."""
_WAITS: Final = "flex-start"
"""The provisioning model whose requests wait. Google refuses the others at once, and names the quota itself."""


@dataclass(slots=True)
class ComputeQuotas:
    """The limits of one provider, each metric read once."""

    transport: TpuTransport
    _limits: dict[tuple[str, str], dict[str, Any] | None] = field(
        default_factory=dict[tuple[str, str], dict[str, Any] | None]
    )

    async def refusal(self, inputs: Mapping[str, Any], zone: str) -> str:
        """Return why no instance can ever come in a zone, as sentences. Empty if one can, and if a quota is not known.

        Flex-start uses preemptible quota, and standard quota where a project lacks that (Compute Engine, "Provisioning models").
        """
        if inputs["provisioningModel"] != _WAITS:
            return ""
        project, region = str(inputs["project"]), zone.rpartition("-")[0]
        needed = int(str(inputs["acceleratorType"]).rpartition("-")[2])
        found: dict[str, float] = {}
        for metric in QUOTA_IDS:
            limit = await self._limit(project, region, metric)
            if limit is None or limit >= needed:
                return ""
            found[metric] = limit
        named = " and ".join(f"{limit:.0f} of {QUOTA_IDS[metric]}" for metric, limit in found.items())
        return f"Compute Engine's quota allows {named} in {region}, and {needed} chips are needed. No request was made."

    async def _limit(self, project: str, region: str, metric: str) -> float | None:
        """Return the least limit of a region; None if it is not known."""
        key = (project, metric)
        if key not in self._limits:
            self._limits[key] = await self._read(project, metric)
        answer = self._limits[key]
        if answer is None:
            return None
        places = {"region": region, "tpu_family": _TPU_FAMILY}
        limits = [_value(limit, places) for limit in objects_of(answer, "consumerQuotaLimits")]
        known = [limit for limit in limits if limit is not None]
        return min(known) if known else None

    async def _read(self, project: str, metric: str) -> dict[str, Any] | None:
        """Return a metric with its limits; None if the caller may not read it, or nothing answers."""
        name = quote(f"compute.googleapis.com/{metric}", safe="")
        path = f"v1beta1/projects/{project}/services/compute.googleapis.com/consumerQuotaMetrics/{name}"
        try:
            async with asyncio.timeout(_READ_S):
                return await self.transport.call("GET", path, query={"view": "FULL"})
        except (TpuProviderError, TimeoutError):
            return None


def _value(limit: Mapping[str, Any], places: Mapping[str, str]) -> float | None:
    """Return a limit's value for a place, from the bucket that names most of it; None if it is not a limit of regions. An absent value is 0."""
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
