"""The planner's question about a gateway, from its settings and its backends'."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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
class PlannedBackend:
    """A backend whose settings can be read, with its figures."""

    stack: str
    settings: Settings
    subject: Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPlan:
    """A gateway with its planned backends and its findings."""

    question: GatewayQuestion
    planned: tuple[PlannedBackend, ...]
    findings: tuple[Finding, ...]


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
    gateway = settings.gateway
    read = {one.stack: _read(one.stack, settings.project, folder, today) for one in gateway.backends}
    question = GatewayQuestion(
        stack=stack,
        region=gateway.region,
        min_instances=gateway.min_instances,
        max_instances=gateway.max_instances,
        regions=gateway.regions,
        internet_egress=gateway.internet_egress,
        backends=[_backend(name, one, (deployed or {}).get(name)) for name, one in read.items()],
        prices=book_of(settings.prices, folder),
    )
    planned = tuple(one for one in read.values() if isinstance(one, PlannedBackend))
    return GatewayPlan(question=question, planned=planned, findings=gateway_findings(question))


def gateway_lines(plan: GatewayPlan) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a preview, each with whether it warns. Raises CommandRefusedError if findings block."""
    stack = plan.question.stack
    blocking = [finding for finding in plan.findings if finding.severity == "block"]
    if blocking:
        ids = ", ".join(dict.fromkeys(finding.id for finding in blocking))
        lines = [f"Stack {stack} is blocked by {ids}. Nothing was changed.", *map(_text, blocking)]
        raise CommandRefusedError("\n".join(lines))
    yield f"Gateway to {', '.join(one.stack for one in plan.question.backends)}.", False
    for finding in plan.findings:
        yield _text(finding), finding.severity == "warn"


def _text(finding: Finding) -> str:
    return f"{finding.id}: {finding.message} {finding.advice}".rstrip()


def _read(stack: str, project: str, folder: Path, today: str | None) -> PlannedBackend | str:
    """Return a backend with its figures, or the reason why it cannot be planned."""
    try:
        settings = from_file(folder / f"Pulumi.{stack}.yaml", project=project)
        subject = examine(to_deployment(settings, folder, today=today))
    except (SettingsError, PlanningError) as error:
        return str(error)
    return PlannedBackend(stack=stack, settings=settings, subject=subject)


def _backend(stack: str, read: PlannedBackend | str, deployed: DeployedBackend | None) -> Backend:
    if isinstance(read, str):
        return Backend(stack=stack, subject=None, problem=read, deployed=deployed)
    tpu = read.settings.tpu
    gateway = (tpu.gateway or "") if tpu else ""
    return Backend(stack=stack, subject=read.subject, gateway=gateway, deployed=deployed)
