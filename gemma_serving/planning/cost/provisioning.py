"""Provisioning models by location, from documents and reports. No Google API returns them.

The hardware, the provisioning model and the quota are three gates that reports confuse. A zone can have v6e and quota but still return
"FLEX_START provisioning model is not supported for accelerator type". Available capacity is a fourth, known only after a request.
"""

from typing import Final, Literal, get_args

from msgspec import Struct

from gemma_serving.planning.data.prices import LIST_PRICES, UNDATED
from gemma_serving.planning.machine.hardware import Accelerator, tpu_offer
from gemma_serving.planning.settings.capacity_form import ProvisioningModel

Answer = Literal["yes", "no", "unknown"]
PROVISIONING_MODELS: Final[tuple[ProvisioningModel, ...]] = get_args(ProvisioningModel)


class Acceptance(Struct, frozen=True):
    """Support for a provisioning model in a location, with a document or a report; if unknown, the reason."""

    answer: Answer
    source: str


def provisioning_support(accelerator: Accelerator, provisioning: ProvisioningModel, place: str) -> Acceptance:
    """Return the known support for a provisioning model in a TPU zone. For flex-start, only facts about that zone count."""
    generation, offer = accelerator.generation, tpu_offer(accelerator)
    if provisioning not in offer.provisioning:
        return Acceptance(
            "no", offer.plan_only or f"Google does not offer {provisioning} {generation} to every project"
        )
    if provisioning == "reservation":
        return Acceptance("unknown", "a reservation is accepted in its own zone only")
    if provisioning == "flex-start" and place in offer.flex_start_zones:
        return Acceptance(
            "yes", f"flex-start {generation} was granted there, or Google's flex-start page names the zone"
        )
    if provisioning == "flex-start" and place in offer.flex_start_refused_zones:
        return Acceptance("no", "reports of Google's answer: FLEX_START provisioning model is not supported")
    return _listed(generation, provisioning, place)


def _listed(generation: str, provisioning: ProvisioningModel, place: str) -> Acceptance:
    """Return what the price list says about a provisioning model in a zone."""
    price = LIST_PRICES.tpu_chip_hour(generation, provisioning, place)
    if price is None:
        return Acceptance("unknown", f"no price of {provisioning} {generation} is known")
    if price.is_assumed:
        return Acceptance("unknown", f"no known price of {provisioning} {generation} in {price.region}")
    listed = (
        f"a {price.kind} price of {provisioning} {generation} in {price.region}, {price.as_of or UNDATED} ({price.url})"
    )
    if provisioning == "flex-start":
        return Acceptance("unknown", f"only {listed}, which names no zone")
    return Acceptance("yes", listed)


def run_acceptance(accelerator: Accelerator, region: str) -> Acceptance:
    """Return the known support for a Cloud Run GPU in a region. Cloud Run has one provisioning model: per second."""
    if region in accelerator.cloud_run.by_invitation:
        return Acceptance("unknown", "by invitation (Cloud Run, GPU support by region)")
    if region in accelerator.cloud_run.regions:
        return Acceptance("yes", "Cloud Run, GPU support by region")
    return Acceptance("unknown", "not listed on Cloud Run's page of GPU regions")
