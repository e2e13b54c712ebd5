"""Next steps when no zone has TPU capacity, in terms of the settings file.

The provider appends these sentences to its error, because it knows each zone's response, but no settings.
"""

from collections.abc import Sequence

from gemma_serving.planning.data.prices import region_of
from gemma_serving.planning.machine.hardware import Accelerator, compute_quota, find_accelerator, known_places
from gemma_serving.planning.settings.deployment import Deployment


def next_steps(deployment: Deployment, stack: str) -> tuple[str, ...]:
    """Return the next steps, one sentence each: untried zones, another provisioning model or slice."""
    accelerator = find_accelerator(deployment.accelerator_name)
    zones = _untried(deployment, accelerator) if accelerator is not None else ()
    untried = [f"Zones not tried: add {', '.join(zones)} to gemma-serving:tpu.zones."] if zones else []
    other = (
        "Spot, flex-start and each slice size have separate capacity. "
        "Set gemma-serving:tpu.provisioning or tpu.acceleratorType (docs/tpu.md)."
    )
    quotas = () if accelerator is None else _instance_quotas(deployment, accelerator)
    if deployment.tpu.api == "compute-engine" and quotas:
        commands = [_describe(quota, models if len(quotas) > 1 else ()) for quota, models in quotas]
        last = f"Without quota, a request waits as it does without capacity. To see the quota, run {' and '.join(commands)}."
    else:
        last = f"To see the offers of each zone, run `gemma capacity {stack}`."
    return (*untried, other, last)


def _instance_quotas(deployment: Deployment, accelerator: Accelerator) -> Sequence[tuple[str, Sequence[str]]]:
    """Return each quota of instances with the forms that use it first. Flex-start and spot share one."""
    found: dict[str, list[str]] = {}
    for form in deployment.tpu.forms:
        quota = compute_quota(accelerator, form.model)
        if quota:
            found.setdefault(quota, []).append(form.model)
    return list(found.items())


def _describe(quota: str, forms: Sequence[str]) -> str:
    """Return the command that shows a quota, and the forms that use it."""
    command = f"`gcloud alpha quotas info describe {quota} --service=compute.googleapis.com`"
    return f"{command} ({' and '.join(forms)})" if forms else command


def _untried(deployment: Deployment, accelerator: Accelerator) -> tuple[str, ...]:
    """Return the known zones that are not set. An existing network allows only its region."""
    tried = deployment.tpu.zones
    is_bound = deployment.tpu.private_google_access is not None
    regions = {region_of(zone) for zone in tried}
    return tuple(
        zone for zone in known_places(accelerator) if zone not in tried and (not is_bound or region_of(zone) in regions)
    )
