"""Planned and measured rates of a stack, and differences between its settings file and the deployment."""

from contracts.outputs import StackOutputs
from planning.errors import PlanningError
from scripts.cli.measured.identity import deployed_identity, settings_identity
from scripts.cli.measured.store import read_measured
from scripts.cli.settings import gateway_settings, stack_settings
from scripts.status.report import RateFacts


def rate_facts(stack: str, outputs: StackOutputs) -> RateFacts:
    """Return the rates of a single request. Raises ScriptError if the measurements cannot be read."""
    planned = outputs.plan.throughput.decode_tok_per_s
    deployments = read_measured(stack).deployments
    record = next((one for one in reversed(deployments) if any(run.decode_tok_per_s for run in one.smoke)), None)
    if record is None:
        return RateFacts(planned_low_tok_per_s=planned, planned_high_tok_per_s=planned)
    last = next(run for run in reversed(record.smoke) if run.decode_tok_per_s)
    now = deployed_identity(outputs, record.identity.simulated)
    band, is_old = record.planned.decode_tok_per_s, record.identity != now
    return RateFacts(
        planned_low_tok_per_s=planned if is_old else round(band.low, 1),
        planned_high_tok_per_s=planned if is_old else round(band.high, 1),
        measured_tok_per_s=round(last.decode_tok_per_s or 0.0, 1),
        measured_at=last.date,
        measured_is_old=is_old,
    )


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
        wanted = settings_identity(settings, examine(to_deployment(settings)).resolved)
    except PlanningError as error:
        return f"Pulumi.{stack}.yaml can no longer be planned: {error}"
    deployed = deployed_identity(outputs, None)
    if wanted.settings_sha256 != deployed.settings_sha256:
        return f"Pulumi.{stack}.yaml has changed since the last `pulumi up`."
    if wanted.image_digest and wanted.image_digest != deployed.image_digest:
        return f"The image in Pulumi.{stack}.yaml has changed since the last `pulumi up`."
    return None
