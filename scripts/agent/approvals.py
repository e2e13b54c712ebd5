"""Guards of `preview` and `up`: a change is a plan that the user reviews, and only exactly that plan runs, once, after the user said yes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from mcp.server.mcpserver import Context, Elicit

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping, as_sequence, from_json
from gemma_serving.engine.atomic_file import private_folder
from gemma_serving.engine.state import read
from gemma_serving.engine.steps import PlannedStep
from gemma_serving.scripts.agent.bounds import PlannedStack, require_bound
from gemma_serving.scripts.agent.consent import Approval, approval, require_consent
from gemma_serving.scripts.agent.context import AgentContext, Answer, ShownPlan
from gemma_serving.scripts.agent.tools import ToolCall
from gemma_serving.scripts.plan.api import changes_of_file
from gemma_serving.scripts.stack.costs import recorded_costs
from gemma_serving.scripts.stack.frozen import foreign_program, freeze, planned_cost

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
    allowed, budget = await asyncio.to_thread(_verdict, call.agent, plan)
    call.agent.shown[plan_id] = plan
    return {"plan": plan_id, "allowed": allowed, "budget": budget, **found}


def prompt_for_plan(agent: AgentContext) -> Callable[..., Awaitable[Elicit[Approval] | Approval]]:
    """Return the function that asks whether a plan may run."""

    async def prompt(  # noqa: PLR0917 - the arguments of the tool
        stack: str,
        plan: str,
        refresh: bool,
        restart: bool,
        set: Sequence[str] | None,  # noqa: A002 - the name of the option
        code: str | None,
        context: Context[Any, Any],
    ) -> Elicit[Approval] | Approval:
        given = {"stack": stack, "refresh": refresh, "restart": restart, "set": set}
        shown = _shown(agent, plan, given)
        if agent.runs.active(stack, None):
            return Approval(approve=False)  # the guard names the work that changes the stack
        question = await asyncio.to_thread(_question, shown)
        return approval(context, stack, question, code)

    return prompt


async def run_plan(call: ToolCall) -> Answer:
    """Run a plan that was shown for the same arguments, once. A stale plan is refused by the command, which compares it again."""
    agent = call.agent
    plan = _shown(agent, call.given["plan"], call.given)
    agent.runs.claim(plan.stack)
    require_consent(call, await asyncio.to_thread(_question, plan))
    del agent.shown[plan.id]
    try:
        found = await call.run()
    except CommandRefusedError:  # nothing was changed
        agent.shown[plan.id] = plan
        raise
    return {"plan": plan.id, "usd_per_hour": plan.usd_per_hour, **found}


def _shown(agent: AgentContext, plan_id: str, given: Mapping[str, Any]) -> ShownPlan:
    """Return the plan of a call. Raises CommandRefusedError for one that was not shown for its arguments, or that has no permission."""
    plan = agent.shown.get(plan_id)
    if plan is None or plan.arguments != _arguments(given):
        raise CommandRefusedError(
            f"{plan_id[:60]} is not a plan for these arguments, or was already run. "
            "Call preview with the same arguments, and review the answer."
        )
    agent.require(plan.change)
    return plan


def _arguments(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments that a plan and its run must share."""
    return {name: value for name, value in given.items() if name != "plan" and value not in (None, False, [])}


def _plan_of(call: ToolCall, plan_id: str, document: Mapping[str, object]) -> ShownPlan:
    price, is_restart = document.get("usd_per_hour"), bool(call.given["restart"])
    effect = document.get("sentences" if is_restart else "effect")
    return ShownPlan(
        id=plan_id,
        change="restart" if is_restart else "up",
        stack=call.stack,
        arguments=_arguments(call.given),
        effect=" ".join(str(sentence) for sentence in as_sequence(effect)),
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


def _verdict(agent: AgentContext, plan: ShownPlan) -> tuple[bool, str]:
    """Return whether `up` will ask about a plan, and its cost, or the sentence with which `up` will refuse."""
    try:
        agent.require(plan.change)
        return True, _cost(plan)
    except CommandRefusedError as error:
        return False, str(error)


def _question(plan: ShownPlan) -> str:
    """Return the question about a plan. Raises CommandRefusedError for one that `up` refuses."""
    what = "RESTART the server of" if plan.change == "restart" else "DEPLOY"
    return (
        f"{what} stack {plan.stack!r}? An assistant requests {plan.id}. {plan.effect} Cost: {_cost(plan)} "
        "Decline to change nothing."
    )


def _cost(plan: ShownPlan) -> str:
    """Return the price per hour of a plan and its bound, as sentences. Raises CommandRefusedError without a bound that is required."""
    state = read(plan.stack)
    if plan.change == "restart":
        return f"{'; '.join(costs.text for costs in recorded_costs(state)) or 'as now'}. A restart changes no price."
    return require_bound(_planned(plan), plan.usd_per_hour, plan.steps, state)


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
