"""Which places accept which way of buying capacity: what documents and reports say. No API of Google answers that.

The hardware, the provisioning model and the quota are three gates, and reports mix them up: a zone can have v6e and quota, and still answer
"FLEX_START provisioning model is not supported for accelerator type". Whether there is stock is a fourth matter, which only a request shows.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from planning.data.prices import LIST_PRICES
from planning.machine.hardware import (
    BY_INVITATION,
    FLEX_START_REFUSED_ZONES,
    FLEX_START_V6E_ZONES,
    Accelerator,
    gpu_regions,
)
from planning.question.types import ProvisioningModel

Answer = Literal["yes", "no", "unknown"]
PROVISIONING_MODELS: Final[tuple[ProvisioningModel, ...]] = get_args(ProvisioningModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Whether a place accepts a provisioning model, and who says so."""

    answer: Answer
    source: str
    """A document or a report; what was looked for, where nothing says."""


_GRANTED: Final = Acceptance(
    answer="yes", source="flex-start v6e was granted there, or Google's flex-start page names the zone"
)
_REFUSED: Final = Acceptance(
    answer="no", source="reports of Google's answer: FLEX_START provisioning model is not supported"
)
_RESERVED: Final = Acceptance(answer="unknown", source="a reservation is accepted in its own zone only")
_OFFERED: Final = Acceptance(answer="yes", source="Cloud Run, GPU support by region")
_INVITED: Final = Acceptance(answer="unknown", source="by invitation (Cloud Run, GPU support by region)")
_NOT_LISTED: Final = Acceptance(answer="unknown", source="Cloud Run's page of GPU regions does not name it")


def acceptance(accelerator: Accelerator, provisioning: ProvisioningModel, place: str) -> Acceptance:
    """Return what is known of a TPU zone and a provisioning model. Of flex-start, only facts of that zone count."""
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
    """Return what is known of a GPU of Cloud Run in a region. Cloud Run has one way of buying it: by the second."""
    if (accelerator.name, region) in BY_INVITATION:
        return _INVITED
    return _OFFERED if region in gpu_regions(accelerator) else _NOT_LISTED
