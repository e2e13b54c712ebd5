"""Plan of a deployed stack, from its settings file if that matches, otherwise from its outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.engine.runner import project_folder
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import WorkloadPlan
from gemma_serving.planning.settings.vllm_args import given_options
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.residuals import SmokeFigures, decode_band, smoke_figures
from gemma_serving.planning.speed.serving import server_of, workload_plan
from gemma_serving.stacks.loading import SettingsError, from_file
from gemma_serving.stacks.planned import to_question

if TYPE_CHECKING:
    from gemma_serving.planning.settings.stack import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedPlan:
    """The plan of a deployment."""

    smoke: SmokeFigures
    """Planned metrics for the requests of the smoke checks."""
    subject: Subject | None
    """None if the settings file is missing or differs from the deployment."""

    def answers(self, workload: Workload) -> WorkloadPlan | None:
        """Return the plan of the deployment for a workload; None if only its outputs are available."""
        if self.subject is None:
            return None
        server = server_of(self.subject.resolved, self.subject.memory, workload)
        return workload_plan(server, self.subject.cost.usd_per_hour)


def deployed_plan(stack: str, outputs: StackOutputs) -> DeployedPlan:
    """Return the plan of a deployed stack."""
    plan, subject = outputs.plan, _subject(stack, outputs)
    if subject is not None:
        figures = smoke_figures(subject.resolved, subject.memory, subject.throughput, outputs.smoke.burst_requests)
        return DeployedPlan(smoke=figures, subject=subject)
    rate = decode_band(plan.throughput.decode_tok_per_s, is_tpu=plan.platform == "tpu-vm")
    smoke = SmokeFigures(decode_tok_per_s=rate, tokens_per_step=plan.throughput.tokens_per_step)
    return DeployedPlan(smoke=smoke, subject=None)


def _is_deployed(settings: "Settings", resolved: Resolved, outputs: StackOutputs) -> bool:
    """Return whether the outputs have the model, accelerator, platform and vLLM options of these settings."""
    named = replace(resolved.vllm, served_model_name=settings.vllm.served_model_name or settings.model)
    wanted = (settings.model, resolved.accelerator.name, resolved.platform, _plain(given_options(named)))
    plan = outputs.plan
    return wanted == (outputs.model, plan.accelerator, plan.platform, _plain(outputs.vllm))


def _subject(stack: str, outputs: StackOutputs) -> Subject | None:
    path = project_folder() / f"Pulumi.{stack.rpartition('/')[2]}.yaml"
    try:
        settings = from_file(path, project=outputs.project)
        subject = examine(to_question(settings))
    except (SettingsError, PlanningError):
        return None
    return subject if _is_deployed(settings, subject.resolved, outputs) else None


def _plain(value: object) -> object:
    """Return a JSON value as comparable: the engine stores every number as a float, and a tuple as a list."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in cast("Mapping[str, object]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value
