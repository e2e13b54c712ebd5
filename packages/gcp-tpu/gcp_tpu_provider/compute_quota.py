"""Quotas of chips for Compute Engine instances, read before a request and after a wait.

A flex-start request without quota waits like one without available capacity.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gcp_tpu_provider.machines import quota_of
from gcp_tpu_provider.refusals import UNREAD_QUOTA, QuotaEvidence
from gcp_tpu_provider.service_quotas import ServiceQuotas

FAMILY_METRIC: Final = "tpus_per_tpu_family"
FAMILY_QUOTA_ID: Final = "TPUS-PER-TPU-FAMILY-per-project-region"
"""Metric and id of the standard quota, as gcloud and the console show it. The generation is a dimension."""
_WAITS: Final = "flex-start"
"""Provisioning model whose requests wait. For the others, Google rejects the request immediately and names the quota."""


@dataclass(slots=True)
class ComputeQuotas:
    """Limits of one provider."""

    quotas: ServiceQuotas

    async def refusal(self, inputs: Mapping[str, Any], zone: str) -> str:
        """Return why no instance can be created in a zone, as sentences. Empty if one can, or if a quota is unknown.

        Flex-start uses preemptible quota, or standard quota if a project has no preemptible quota (Compute Engine, "Provisioning models").
        """
        if inputs["provisioningModel"] != _WAITS:
            return ""
        needed, found, unknown = await self._read(inputs, zone)
        if unknown or not found or max(found.values()) >= needed:
            return ""
        return f"Compute Engine quota allows {_named(found)} in {_region(zone)}, but {needed} chips are needed. No request was sent."

    async def after_wait(self, inputs: Mapping[str, Any], zone: str) -> QuotaEvidence:
        """Return whether the quota allows a request that was not granted. How much of it others use is not read, so it is never enough for sure."""
        needed, found, unknown = await self._read(inputs, zone)
        if unknown or not found:
            return QuotaEvidence(None, f"{UNREAD_QUOTA}{unknown or 'no quota of this accelerator is known'}.")
        short = max(found.values()) < needed
        use = "" if short else "; its use by others was not read"
        return QuotaEvidence(
            False if short else None,
            f"Compute Engine quota allows {_named(found)} in {_region(zone)}, {needed} chips are needed{use}.",
        )

    async def _read(self, inputs: Mapping[str, Any], zone: str) -> tuple[int, dict[str, float], str]:
        """Return the chips of the request, the limit of each quota that it can use, by id, and why one of them is unknown."""
        accelerator_type = str(inputs["acceleratorType"])
        needed, quota = int(accelerator_type.rpartition("-")[2]), quota_of(accelerator_type)
        if quota is None:
            return needed, {}, ""
        preemptible = () if inputs["provisioningModel"] == "standard" else ((quota.metric, quota.id),)
        found: dict[str, float] = {}
        places = {"region": _region(zone), "tpu_family": quota.family}
        for metric, quota_id in (*preemptible, (FAMILY_METRIC, FAMILY_QUOTA_ID)):
            limits, why = await self.quotas.limits(
                str(inputs["project"]), f"compute.googleapis.com/{metric}", places, "region"
            )
            if why:
                return needed, found, why
            found[quota_id] = min(limits)
            if found[quota_id] >= needed:
                break
        return needed, found, ""


def _region(zone: str) -> str:
    return zone.rpartition("-")[0]


def _named(limits: Mapping[str, float]) -> str:
    return " and ".join(
        f"{'any number' if math.isinf(limit) else f'{limit:g}'} of {quota_id}" for quota_id, limit in limits.items()
    )
