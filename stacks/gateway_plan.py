"""The planner's question about a gateway, from its settings and its backends'."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from gemma_serving.cloud.model_files import PROJECT
from gemma_serving.cloud.price_file import book_of
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.rules.gateway import Backend, DeployedBackend, GatewayQuestion, gateway_findings
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.settings.gateway_stack import GatewayStack
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.stacks.loading import SettingsError, from_file
from gemma_serving.stacks.planned import to_deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPlan:
    """A gateway with its backends and its findings."""

    question: GatewayQuestion
    findings: tuple[Finding, ...]

    @property
    def first(self) -> tuple[Settings, Subject]:
        """Settings and figures of the first backend. Every backend of a gateway that is not blocked has them."""
        read = ((one.settings, one.subject) for one in self.question.backends)
        return next((settings, subject) for settings, subject in read if settings is not None and subject is not None)


def plan_gateway(
    settings: GatewayStack,
    stack: str,
    deployed: Mapping[str, DeployedBackend] | None = None,
    folder: Path = PROJECT,
    *,
    today: str | None = None,
) -> GatewayPlan:
    """Return the plan of a gateway. `deployed` is None if the states of the backends were not read.

    Raises PlanningError if the price file cannot be used.
    """
    backends = [_read(one.stack, settings.project, folder, today) for one in settings.gateway.backends]
    question = GatewayQuestion(
        stack=stack,
        settings=settings.gateway,
        backends=[replace(one, deployed=(deployed or {}).get(one.stack)) for one in backends],
        prices=book_of(settings.prices, folder),
    )
    return GatewayPlan(question=question, findings=gateway_findings(question))


def gateway_lines(plan: GatewayPlan) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a preview, each with whether it warns. Raises CommandRefusedError if findings block."""
    stack = plan.question.stack
    blocking = [finding for finding in plan.findings if finding.severity == "block"]
    if blocking:
        ids = ", ".join(dict.fromkeys(finding.id for finding in blocking))
        lines = [f"Stack {stack} is blocked by {ids}. Nothing was changed.", *map(gateway_text, blocking)]
        raise CommandRefusedError("\n".join(lines))
    yield f"Gateway to {', '.join(one.stack for one in plan.question.backends)}.", False
    for finding in plan.findings:
        yield gateway_text(finding), finding.severity == "warn"


def gateway_text(finding: Finding) -> str:
    """Return the text of a gateway's finding, which has no remedies."""
    return f"{finding.id}: {finding.message} {finding.advice}".rstrip()


def _read(stack: str, project: str, folder: Path, today: str | None) -> Backend:
    """Return a backend with its figures, or with the reason why it cannot be planned."""
    try:
        settings = from_file(folder / f"Pulumi.{stack}.yaml", project=project)
        subject = examine(to_deployment(settings, folder, today=today))
    except (SettingsError, PlanningError) as error:
        return Backend(stack=stack, problem=str(error))
    return Backend(stack=stack, settings=settings, subject=subject)
