"""The bound of the cost of an `up` by an assistant: the TPU run itself, `maxUsd` and a scheduled guard, or none for one instance that requests start.

Google ends a flex-start run after `maxRunDuration`, so the run has a maximum cost even if no guard enforces a limit. That covers one
run: the stack's record (contracts.run_record) shows whether it already had one.
A Cloud Run service that keeps no instance and has at most one has no maximum. The user who is asked accepts that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gemma_serving.cloud.guard import GUARD, guard_problem
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import camel_case
from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.contracts.three_answers import Absent, Answer, Present, Unknown
from gemma_serving.engine.state import StackState
from gemma_serving.engine.steps import PlannedStep
from gemma_serving.planning.question.types import CostPlan
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.scripts.stack.costs import at_most

_AGE: Final = camel_case("max_age")
_USD: Final = camel_case("max_usd")
_STARTS: Final = frozenset({"create", "replace", "create-replacement"})
"""Operations of the engine that request new capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStack:
    """The stack that a plan deploys."""

    name: str
    settings: Settings
    cost: CostPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class _BoundedKind:
    """A kind of deployment, its needs, and the bound of its cost."""

    what: str
    """The kind, with its article."""
    bound: str
    """The bound of the cost, as a sentence."""
    needs_usd: bool = False
    needs_guard: bool = False
    why: str = ""
    """Why the deployment is of this kind, as a sentence; empty if its settings show it."""


def require_bound(
    stack: PlannedStack, usd_per_hour: float | None, steps: Sequence[PlannedStep], state: StackState
) -> str:
    """Return the price per hour of a plan, and the bound of its cost with what enforces it, as sentences.

    Raises CommandRefusedError that names all that is missing, also without a price.
    """
    if usd_per_hour is None:
        raise CommandRefusedError(
            f"The price of stack {stack.name} per hour is unknown. The user can set prices in Pulumi.{stack.name}.yaml to a file with the "
            f"price of its hardware (docs/costs.md), or run `gemma up {stack.name}`."
        )
    rate, settings = f"${usd_per_hour:,.2f} per hour", stack.settings
    case = _case(stack, steps, state)
    values = {_AGE: settings.max_age_s, **({_USD: settings.max_usd} if case.needs_usd else {})}
    lacks = [f"no {key}" for key, value in values.items() if value is None]
    problems = [f"Stack {stack.name} has {' and '.join(lacks)}"] if lacks else []
    if case.needs_guard and (problem := _guard_problem(settings)):
        problems.append(problem)
    if not problems:
        return f"{rate}. {case.bound}"
    run = settings.cloud_run
    if run is not None and (run.min_instances, run.max_instances) == (0, 1):
        return f"{rate} while requests come, no maximum. Without requests, only storage costs money."
    *others, last = [*values, *(["a scheduled guard"] if case.needs_guard else [])]
    needed = f"{', '.join(others)} and {last}" if others else last
    raise CommandRefusedError(
        f"An assistant deploys {case.what} only with {needed}. {case.why}{'; '.join(problems)}. "
        f"The user can set limits in Pulumi.{stack.name}.yaml (docs/costs.md), or run `gemma up {stack.name}`."
    )


def _case(stack: PlannedStack, steps: Sequence[PlannedStep], state: StackState) -> _BoundedKind:
    settings, cost = stack.settings, stack.cost
    if form := _unbounded_form(settings):
        bound = (
            f"maxUsd is ${settings.max_usd}. A scheduled guard enforces it: the account {GUARD} of project {settings.project} "
            "shows that one was set up, not that it runs."
        )
        return _BoundedKind(what=form, bound=bound, needs_usd=True, needs_guard=True)
    if settings.max_usd is not None:
        return _BoundedKind(what="a run", bound=f"{_most('Each run', cost)} maxUsd is ${settings.max_usd}.")
    match _next_run(stack, steps, state):
        case Absent():
            return _BoundedKind(what="a run", bound=_most("This run", cost))
        case Present(value=""):
            return _BoundedKind(what="a run", bound=f"This plan starts no new run. {_most('The current run', cost)}")
        case Present(value=reason):
            why = f"This is a second run: {reason}. "
        case Unknown(why=reason):
            why = f"Whether this is a second run is unknown, so try again: {reason.rstrip('.')}. "
    return _BoundedKind(what="a second run", bound="", needs_usd=True, why=why)


def _unbounded_form(settings: Settings) -> str:
    """Return the form of a server whose cost no single run bounds; empty for a flex-start TPU."""
    tpu = settings.tpu
    if tpu is None:
        return "a Cloud Run service"
    if any(form.model != "flex-start" for form in tpu.forms):
        return f"a TPU with tpu.provisioning {tpu.provisioning_text}"
    return "a TPU without tpu.maxRunDuration" if tpu.max_run_duration_s is None else ""


def _guard_problem(settings: Settings) -> str:
    """Return why no guard is known, as a clause that names both limits, also one that is still missing; empty if one is known."""
    limits = settings.limits
    both = replace(limits, max_age_s=limits.max_age_s or 0, max_usd=limits.max_usd or 0)
    return guard_problem(both, settings.project)


def _next_run(stack: PlannedStack, steps: Sequence[PlannedStep], state: StackState) -> Answer[str]:
    """Return Absent before the first run. Later, return why the plan starts another one; empty if it starts none."""
    from gemma_serving.stacks.hooks.run_recorder import stack_recorder  # noqa: PLC0415 - loads Pulumi's SDK

    runs = stack_recorder(stack.settings, stack.name).runs()
    match runs:
        case Unknown():
            return runs
        case Absent():
            lost = "the state has a server, but the service account with the record of its runs does not exist"
            return Unknown(lost) if state.has_server else runs
        case Present(value=found) if found.first_start_s is None:
            return Absent()
        case Present(value=found) if not found.is_running:
            return Present("the first one is over")
        case Present():
            replaces = any(step.type == CAPACITY_TYPE and step.op in _STARTS for step in steps)
            return Present("the plan replaces the current one" if replaces else "")


def _most(what: str, cost: CostPlan) -> str:
    return f"{what} costs {at_most(cost)}; then Google deletes the TPU VM."
