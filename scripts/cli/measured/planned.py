"""Planned metrics of a deployed stack, from its settings file if it matches the deployment, otherwise from its outputs."""

from dataclasses import dataclass

from contracts.outputs import StackOutputs
from engine.runner import project_folder
from planning.cost.subject import Subject, examine
from planning.errors import PlanningError
from planning.question.types import WorkloadPlan
from planning.question.workload import Workload
from planning.speed.residuals import SmokeFigures, decode_band, smoke_figures
from planning.speed.serving import workload_plan
from scripts.cli.measured.identity import deployed_identity, settings_identity
from scripts.cli.measured.schema import PlannedFigures
from stacks.loading import SettingsError, from_file
from stacks.planned import to_deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedPlan:
    """The plan of a deployment."""

    figures: PlannedFigures
    subject: Subject | None
    """None if the settings file is missing or differs from the deployment."""

    @property
    def smoke(self) -> SmokeFigures:
        """Planned metrics for the requests of the smoke checks."""
        figures = self.figures
        return SmokeFigures(
            decode_tok_per_s=figures.decode_tok_per_s, ttft_s=figures.ttft_s, burst_tok_per_s=figures.burst_tok_per_s
        )

    def answers(self, workload: Workload) -> WorkloadPlan | None:
        """Return the plan of the deployment for a workload; None if only its outputs are available."""
        if self.subject is None:
            return None
        return workload_plan(self.subject.resolved, self.subject.memory, self.subject.cost.usd_per_hour, workload)


def deployed_plan(stack: str, outputs: StackOutputs) -> DeployedPlan:
    """Return the plan of a deployed stack."""
    plan, subject = outputs.plan, _subject(stack, outputs)
    planned = (
        smoke_figures(subject, outputs.smoke.burst_requests)
        if subject
        else SmokeFigures(
            decode_tok_per_s=decode_band(plan.throughput.decode_tok_per_s, is_tpu=plan.platform == "tpu-vm")
        )
    )
    return DeployedPlan(
        figures=PlannedFigures(
            kv_blocks=plan.memory.kv_blocks,
            kv_tokens=plan.memory.kv_tokens,
            serving_start_s=plan.startup.load_s + plan.startup.compile_s,
            usd_per_hour=plan.cost.usd_per_hour,
            decode_tok_per_s=planned.decode_tok_per_s,
            ttft_s=planned.ttft_s,
            burst_tok_per_s=planned.burst_tok_per_s,
        ),
        subject=subject,
    )


def _subject(stack: str, outputs: StackOutputs) -> Subject | None:
    """Return the planning subject of the settings file if deploying it would produce these outputs."""
    path = project_folder() / f"Pulumi.{stack.rpartition('/')[2]}.yaml"
    try:
        settings = from_file(path, project=outputs.project)
        subject = examine(to_deployment(settings))
    except (SettingsError, PlanningError):
        return None
    planned, deployed = settings_identity(settings, subject.resolved), deployed_identity(outputs, None)
    return subject if planned.settings_sha256 == deployed.settings_sha256 else None
