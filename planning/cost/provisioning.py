"""Provisioning models by location, from documents and reports. No Google API returns them.

The hardware, the provisioning model and the quota are three gates that reports confuse. A zone can have v6e and quota but still return
"FLEX_START provisioning model is not supported for accelerator type". Available capacity is a fourth, known only after a request.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from planning.data.prices import LIST_PRICES
from planning.machine.hardware import FLEX_START_REFUSED_ZONES, FLEX_START_V6E_ZONES, Accelerator, gpu_regions
from planning.question.types import ProvisioningModel

Answer = Literal["yes", "no", "unknown"]
PROVISIONING_MODELS: Final[tuple[ProvisioningModel, ...]] = get_args(ProvisioningModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Support for a provisioning model in a location, with the source."""

    answer: Answer
    source: str
    """A document or a report; if unknown, the reason."""


_GRANTED: Final = Acceptance(
    answer="yes", source="flex-start v6e was granted there, or Google's flex-start page names the zone"
)
_REFUSED: Final = Acceptance(
    answer="no", source="reports of Google's answer: FLEX_START provisioning model is not supported"
)
_RESERVED: Final = Acceptance(answer="unknown", source="a reservation is accepted in its own zone only")
_OFFERED: Final = Acceptance(answer="yes", source="Cloud Run, GPU support by region")
_INVITED: Final = Acceptance(answer="unknown", source="by invitation (Cloud Run, GPU support by region)")
_NOT_LISTED: Final = Acceptance(answer="unknown", source="not listed on Cloud Run's page of GPU regions")


def acceptance(accelerator: Accelerator, provisioning: ProvisioningModel, place: str) -> Acceptance:
    """Return the known support for a provisioning model in a TPU zone. For flex-start, only facts about that zone count."""
    generation = accelerator.name.partition("-")[0]
    if provisioning == "reservation":
        return _RESERVED
    if provisioning == "flex-start" and generation == "v6e":
        if place in FLEX_START_V6E_ZONES:
            return _GRANTED
        if place in FLEX_START_REFUSED_ZONES:
            return _REFUSED
    price = LIST_PRICES.tpu_chip_hour(generation, provisioning, place)
    if price.is_assumed:
        return Acceptance(answer="unknown", source=f"no list price of {provisioning} {generation} in {price.region}")
    listed = f"a list price of {provisioning} {generation} in {price.region}, {price.as_of or 'without a date'} ({price.url})"
    if provisioning == "flex-start":
        return Acceptance(answer="unknown", source=f"only {listed}, which names no zone")
    return Acceptance(answer="yes", source=listed)


def run_acceptance(accelerator: Accelerator, region: str) -> Acceptance:
    """Return the known support for a Cloud Run GPU in a region. Cloud Run has one provisioning model: per second."""
    if region in accelerator.cloud_run.by_invitation:
        return _INVITED
    return _OFFERED if region in gpu_regions(accelerator) else _NOT_LISTED
