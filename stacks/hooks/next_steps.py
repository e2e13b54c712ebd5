"""Next steps when no zone has TPU capacity, in terms of the settings file.

The provider appends these sentences to its error, because it knows each zone's response, but no settings.
"""

from gemma_serving.contracts.installation import with_pages
from gemma_serving.planning.data.prices import region_of
from gemma_serving.planning.machine.hardware import Accelerator, find_accelerator, known_places
from gemma_serving.planning.settings.question import Question


def next_steps(question: Question, stack: str) -> tuple[str, ...]:
    """Return the next steps, one sentence each: untried zones, another provisioning model or slice."""
    accelerator = find_accelerator(question.accelerator_name)
    zones = _untried(question, accelerator) if accelerator is not None else ()
    untried = [f"Zones not tried: add {', '.join(zones)} to gemma-serving:tpu.zones."] if zones else []
    other = with_pages(
        "Spot, flex-start and each slice size have separate capacity. "
        "Set gemma-serving:tpu.provisioning or tpu.acceleratorType (docs/tpu.md)."
    )
    quota = (
        f"Without quota, a request can wait as it does without capacity. To see the quota, run `gemma doctor {stack}`."
    )
    offers = f"To see the offers of each zone, run `gemma capacity {stack}`."
    return (*untried, other, quota, *(() if question.tpu.api == "compute-engine" else (offers,)))


def _untried(question: Question, accelerator: Accelerator) -> tuple[str, ...]:
    """Return the known zones that are not set. An existing network allows only its region."""
    tried = question.tpu.zones
    is_bound = question.tpu.private_google_access is not None
    regions = {region_of(zone) for zone in tried}
    return tuple(
        zone for zone in known_places(accelerator) if zone not in tried and (not is_bound or region_of(zone) in regions)
    )
