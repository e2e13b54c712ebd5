"""Differences between a stack's settings file and its deployment."""

from contracts.outputs import StackOutputs
from planning.errors import PlanningError
from scripts.cli.deployed_plan import is_deployed
from scripts.cli.settings import gateway_settings, stack_settings


def settings_drift(stack: str, outputs: StackOutputs) -> str | None:
    """Return how the settings file differs from the deployment, as a sentence; None if it does not.

    Compares model, accelerator, vLLM options and image digest; of a gateway, the backends. Raises ScriptError if the file is missing or invalid.
    """
    from planning.cost.subject import examine  # noqa: PLC0415 - the planner takes 0.1 s to load
    from stacks.planned import to_deployment  # noqa: PLC0415 - as above

    gateway = gateway_settings(stack, project=outputs.project)
    if gateway is not None:
        is_same = [one.stack for one in gateway.gateway.backends] == [one.stack for one in outputs.backends or ()]
        return None if is_same else f"The backends in Pulumi.{stack}.yaml have changed since the last `pulumi up`."
    settings = stack_settings(stack, project=outputs.project)
    try:
        resolved = examine(to_deployment(settings)).resolved
    except PlanningError as error:
        return f"Pulumi.{stack}.yaml can no longer be planned: {error}"
    if not is_deployed(settings, resolved, outputs):
        return f"Pulumi.{stack}.yaml has changed since the last `pulumi up`."
    # The digest of an image that the stack builds is not in its settings.
    if not settings.image.build_context and not outputs.image.endswith(f"@{settings.image.digest}"):
        return f"The image in Pulumi.{stack}.yaml has changed since the last `pulumi up`."
    return None
