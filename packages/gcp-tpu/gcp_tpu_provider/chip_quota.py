"""The quota of chips for queued resources, and how much of it other requests use: read after a wait that ended without capacity."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gcp_tpu_provider.errors import TpuProviderError
from gcp_tpu_provider.json_parts import objects_of, text_of
from gcp_tpu_provider.machines import ChipQuota, chip_quota
from gcp_tpu_provider.quota_documents import PREEMPTIBLE, chips_used
from gcp_tpu_provider.refusals import UNREAD_QUOTA, QuotaEvidence
from gcp_tpu_provider.service_quotas import READ_S, ServiceQuotas
from gcp_tpu_provider.transport import TpuTransport, pages


@dataclass(slots=True)
class ChipQuotas:
    """Quotas of one provider."""

    transport: TpuTransport
    quotas: ServiceQuotas

    async def after_wait(self, inputs: Mapping[str, Any], zone: str, own: str) -> QuotaEvidence:
        """Return whether the quota allows a request that was not granted beside all others. `own`: name of the request itself.

        Each metric has a limit for the zone, and can have one for its region: "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has
        been exceeded. Limit: 0 in region us-east5." with a zone's quota that sufficed (marin-community/marin#1612 and #3200).
        """
        accelerator_type, preemptible = str(inputs["acceleratorType"]), inputs["provisioningModel"] in PREEMPTIBLE
        needed, quota = int(accelerator_type.rpartition("-")[2]), chip_quota(accelerator_type, preemptible=preemptible)
        if quota is None or inputs["provisioningModel"] == "reservation":
            return QuotaEvidence(None, f"{UNREAD_QUOTA}no quota of this request is known.")
        return await self._read(inputs, zone, own, quota, needed, preemptible=preemptible)

    async def _read(
        self, inputs: Mapping[str, Any], zone: str, own: str, quota: ChipQuota, needed: int, *, preemptible: bool
    ) -> QuotaEvidence:
        project, region = str(inputs["project"]), zone.rpartition("-")[0]
        metric, places = f"tpu.googleapis.com/{quota.metric}", {"zone": zone, "region": region}
        in_zone, why = await self.quotas.limits(project, metric, places, "zone")
        in_region, why_not_region = await self.quotas.limits(project, metric, places, "region", may_lack=True)
        if why or why_not_region:
            return QuotaEvidence(None, f"{UNREAD_QUOTA}{why or why_not_region}.")
        limit, place = min((min(found), at) for found, at in ((in_zone, zone), (in_region, region)) if found)
        said = f"Quota {quota.id} allows {_chips(limit)} in {place}"
        if limit < needed:
            return QuotaEvidence(False, f"{said}, but {needed} are needed.")
        used, unread = await self._used(
            project, zone, own, str(inputs["acceleratorType"]).rpartition("-")[0], preemptible
        )
        if unread:
            return QuotaEvidence(None, f"{said}; its use by others is unknown: {unread}.")
        said = f"{said}, others use {used}{f' in {zone}' if place != zone else ''}, and {needed} are needed"
        enough = min(in_zone) - used >= needed
        if enough and in_region and min(in_region) < math.inf:
            return QuotaEvidence(None, f"{said}; the use in the whole region was not read.")
        return QuotaEvidence(enough, f"{said}.")

    async def _used(self, project: str, zone: str, own: str, generation: str, preemptible: bool) -> tuple[int, str]:
        """Return the chips of all other requests and nodes that use the same quota in a zone, and why that is unknown."""
        parent = f"v2alpha1/projects/{project}/locations/{zone}"
        try:
            async with asyncio.timeout(READ_S):
                requests = await self._all(f"{parent}/queuedResources", "queuedResources")
                nodes = await self._all(f"{parent}/nodes", "nodes")
        except TimeoutError:
            return 0, f"Cloud TPU did not respond within {READ_S:.0f} s"
        except TpuProviderError as error:
            return 0, str(error).rstrip(".")
        found = chips_used(
            requests,
            nodes,
            generation,
            preemptible=preemptible,
            is_own=lambda item: text_of(item, "name").rpartition("/")[2] == own.rpartition("/")[2],
        )
        return found or 0, "" if found is not None else "a request or a node does not name its accelerator type"

    async def _all(self, path: str, key: str) -> list[Mapping[str, Any]]:
        """Return the items of all pages of a list. Raises TpuProviderError if one is incomplete."""
        found = await pages(self.transport, path)
        if any(page.get("unreachable") for page in found):
            raise TpuProviderError(f"the list of {key} is incomplete")
        return [item for page in found for item in objects_of(page, key)]


def _chips(limit: float) -> str:
    return "any number of chips" if math.isinf(limit) else f"{limit:g} chips"
