"""Guards of `preview` and `up`: a change is a plan that the user reviews, and only exactly that plan runs, once and within the limits."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping, as_sequence, from_json
from gemma_serving.engine.atomic_file import private_folder
from gemma_serving.engine.state import read
from gemma_serving.engine.steps import PlannedStep
from gemma_serving.scripts.agent.bounds import Bound, PlannedStack, require_bound
from gemma_serving.scripts.agent.context import AgentContext, Answer, ShownPlan
from gemma_serving.scripts.agent.tools import ToolCall
from gemma_serving.scripts.plan.api import changes_of_file
from gemma_serving.scripts.stack.frozen import foreign_program, freeze, planned_cost
from gemma_serving.scripts.stack.unfinished_teardown import forget

_SCALES: Final = frozenset({"cloudRun.minInstances", "cloudRun.maxInstances"})
"""Settings that an assistant may change, with the permission to scale."""


async def show_plan(call: ToolCall) -> Answer:
    """Run a dry run, and keep its plan with the verdict of `up`."""
    _require_scaling(call)
    await asyncio.to_thread(require_own_program, call, [call.stack])
    found = await call.run()
    document = as_mapping(found["document"])
    plan_id = str(document.get("plan") or "")
    if not (found["ok"] and plan_id):
        return found
    plan = _plan_of(call, plan_id, document)
    bound, budget = await asyncio.to_thread(_verdict, call.agent, plan)
    plan.is_own = bound is not None and bound.is_own
    call.agent.shown[plan_id] = plan
    return {"plan": plan_id, "allowed": bound is not None, "budget": budget, **found}


async def run_plan(call: ToolCall) -> Answer:
    """Run a plan that was shown for the same arguments, once. A stale plan is refused by the command, which compares it again."""
    agent, plan_id = call.agent, call.given["plan"]
    plan = agent.shown.get(plan_id)
    if plan is None or plan.arguments != _arguments(call.given):
        raise CommandRefusedError(
            f"{plan_id[:60]} is not a plan for these arguments, or was already run. "
            "Call preview with the same arguments, and review the answer."
        )
    agent.require(plan.change)
    agent.runs.claim(plan.stack)
    if plan.change == "restart":
        del agent.shown[plan.id]
        return await call.run()
    price = plan.known_usd_per_hour
    bound = await asyncio.to_thread(_bound, agent, plan)
    await asyncio.to_thread(agent.spending.require, plan.stack, price, bound)
    if bound.is_own and not plan.is_own:
        raise CommandRefusedError(
            f"{plan.id} did not name the limit in hours of stack {plan.stack}. Run preview again."
        )
    with agent.spending.reserved(plan.stack, price, bound):
        del agent.shown[plan.id]
        has_keeper = agent.keepers.has(plan.stack)
        if bound.is_own:
            keep = agent.keepers.keep
            project = _planned(plan).settings.project
            await asyncio.to_thread(keep, plan.stack, agent.own_hours, plan_id=plan.id, project=project)
        try:
            found = await call.run()
        except CommandRefusedError:  # nothing was changed
            agent.shown[plan.id] = plan
            if bound.is_own and not has_keeper:
                forget(plan.stack)
            raise
        return {"plan": plan.id, "usd_per_hour": price, "budget": agent.spending.sentence(), **found}


def _arguments(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments that a plan and its run must share."""
    return {name: value for name, value in given.items() if name != "plan" and value not in (None, False, [])}


def _plan_of(call: ToolCall, plan_id: str, document: Mapping[str, object]) -> ShownPlan:
    price = document.get("usd_per_hour")
    return ShownPlan(
        id=plan_id,
        change="restart" if call.given["restart"] else "up",
        stack=call.stack,
        arguments=_arguments(call.given),
        usd_per_hour=price if isinstance(price, int | float) else None,
        steps=tuple(from_json(PlannedStep, row) for row in as_sequence(document.get("steps"))),
    )


def _require_scaling(call: ToolCall) -> None:
    """Refuse settings that no permission covers. Raises CommandRefusedError."""
    keys = {str(pair).partition("=")[0].strip() for pair in call.given["set"] or ()}
    if others := sorted(keys - _SCALES):
        raise CommandRefusedError(
            f"set is {others[0][:60]}. An assistant sets only {' and '.join(sorted(_SCALES))}. The user can edit Pulumi.{call.stack}.yaml."
        )
    if keys:
        call.agent.require("scale")


def require_own_program(call: ToolCall, stacks: Sequence[str]) -> None:
    """Refuse to run a program that `gemma init` did not write without a permission to run a plan. Raises CommandRefusedError."""
    if not call.agent.allowed.isdisjoint({"up", "restart"}):
        return
    changes = changes_of_file(call.given.get("set") or ())
    for stack in stacks:
        if why := foreign_program(stack, changes):
            raise CommandRefusedError(
                f"This call runs the program of the folder, and {why}, so the user has to start this server with --allow up."
            )


def _verdict(agent: AgentContext, plan: ShownPlan) -> tuple[Bound | None, str]:
    """Return the bound with which `up` will run a plan, with the counted amounts, or None and the sentence with which it will refuse."""
    try:
        agent.require(plan.change)
        if plan.change == "restart":
            return Bound(text="A restart changes no price.", usd=0.0), "A restart changes no price."
        bound = _bound(agent, plan)
        agent.spending.require(plan.stack, plan.known_usd_per_hour, bound)
    except CommandRefusedError as error:
        return None, str(error)
    return bound, f"{bound.text} {agent.spending.sentence()}"


def _bound(agent: AgentContext, plan: ShownPlan) -> Bound:
    """Return the bound of a plan's cost. Raises CommandRefusedError."""
    state, has_keeper = read(plan.stack), agent.keepers.has(plan.stack)
    return require_bound(_planned(plan), plan.steps, state, own_hours=agent.own_hours, has_keeper=has_keeper)


def _planned(plan: ShownPlan) -> PlannedStack:
    """Return the stack of a plan, read once: the command runs no other settings. Raises CommandRefusedError for a stale plan."""
    if plan.planned is None:
        pairs: Sequence[str] = plan.arguments.get("set", ())
        with private_folder() as folder:
            frozen = freeze(plan.stack, folder / "project", changes_of_file(pairs))
            if frozen.plan_id(plan.steps) != plan.id:
                raise CommandRefusedError(
                    f"{plan.id} is stale: the program, the settings of stack {plan.stack} or the packages have changed. Call preview again."
                )
            cost = planned_cost(frozen.settings, frozen.folder)
            plan.planned = PlannedStack(name=plan.stack, settings=frozen.settings, cost=cost)
    return plan.planned
