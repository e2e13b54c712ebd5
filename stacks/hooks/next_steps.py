"""Next steps when no zone has TPU capacity, in terms of the settings file.

The provider appends these sentences to its error, because it knows each zone's response, but no models and prices.
"""

from collections.abc import Iterator
from dataclasses import replace

from planning import plan
from planning.data.prices import LIST_PRICES, PriceBook, region_of
from planning.machine.hardware import ACCELERATORS, COMPUTE_QUOTAS, Accelerator, find_accelerator, known_places
from planning.question.types import Deployment

_OTHER_POOLS = {
    "flex-start": ("spot", "which Google can reclaim at any time"),
    "spot": ("flex-start", "which requires gemma-serving:tpu.maxRunDuration"),
    "standard": ("flex-start", "which requires gemma-serving:tpu.maxRunDuration"),
    "reservation": ("flex-start", "which requires gemma-serving:tpu.maxRunDuration"),
}
"""By provisioning model: an alternative that draws on another pool of machines, and its cost besides money."""


def next_steps(deployment: Deployment, stack: str) -> tuple[str, ...]:
    """Return the next steps, one sentence each: untried zones, another provisioning model, smaller slices that fit."""
    if deployment.tpu.api == "compute-engine":
        quota = COMPUTE_QUOTAS[deployment.tpu.provisioning_model]
        command = f"gcloud alpha quotas info describe {quota} --service=compute.googleapis.com"
        return (
            *_steps(deployment),
            f"Without quota, a request waits as it does without capacity. To see the quota, run `{command}`.",
        )
    return (*_steps(deployment), f"To see what each zone offers, run `gemma capacity {stack}`.")


def _steps(deployment: Deployment) -> Iterator[str]:
    accelerator = find_accelerator(deployment.accelerator)
    if accelerator is None:
        return
    untried = _untried(deployment, accelerator)
    if untried:
        yield f"Zones not tried: add {', '.join(untried)} to gemma-serving:tpu.zones."
    other = _other_pool(deployment, accelerator)
    if other:
        yield other
    smaller = _smaller(deployment, accelerator)
    if smaller:
        yield f"A smaller slice fits by the plan: set gemma-serving:tpu.acceleratorType: {smaller}."


def _untried(deployment: Deployment, accelerator: Accelerator) -> tuple[str, ...]:
    """Return the known zones missing from the settings. The subnet of an existing network allows only its region."""
    tried = deployment.tpu.zones
    is_bound = deployment.tpu.private_google_access is not None
    regions = {region_of(zone) for zone in tried}
    return tuple(
        zone for zone in known_places(accelerator) if zone not in tried and (not is_bound or region_of(zone) in regions)
    )


def _other_pool(deployment: Deployment, accelerator: Accelerator) -> str:
    present = deployment.tpu.provisioning_model
    other, note = _OTHER_POOLS[present]
    generation = accelerator.name.partition("-")[0]
    if not PriceBook.has_chip_hour(generation, other):
        return ""
    place = next(iter(deployment.tpu.zones), None)
    book = deployment.prices or LIST_PRICES
    prices = [accelerator.devices * book.tpu_chip_hour(generation, model, place).usd for model in (other, present)]
    return f"Another provisioning model: set gemma-serving:tpu.provisioning: {other}, {note} (${prices[0]:.2f}/h; {present} ${prices[1]:.2f}/h)."


def _smaller(deployment: Deployment, accelerator: Accelerator) -> str:
    """Return the largest smaller slice of the generation on which the same settings fit, or an empty string."""
    generation = accelerator.name.partition("-")[0]
    slices = [
        one
        for one in ACCELERATORS.values()
        if one.is_tpu and one.name.partition("-")[0] == generation and one.devices < accelerator.devices
    ]
    for one in sorted(slices, key=lambda found: -found.devices):
        planned = plan(replace(deployment, accelerator=one.name))
        if planned.fits and planned.margin is None and not planned.stopping:
            return one.name
    return ""
