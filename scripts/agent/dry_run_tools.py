"""`rollout`, `restart` and `recover`: a dry run shows a plan, and only that plan runs, within the limit of `up`."""

import asyncio
from typing import Final

from contracts.errors import CommandRefusedError
from contracts.fields import as_mapping
from scripts.agent.command_tools import Argument, CommandCall, Own, command_tool
from scripts.agent.context import CHANGES, Answer, PlanId, ShownPlan
from scripts.agent.permissions import Change
from scripts.agent.read_tools import STACK_OF_CALL

_PLAN_ID: Final = Own("Omit it for a dry run, whose answer has a plan_id. Pass that one to run it.", PlanId)


@command_tool(
    "rollout",
    {
        "stack": STACK_OF_CALL,
        "to": Argument("Revision to roll back to. Default: the new one."),
        "plan_id": _PLAN_ID,
    },
    hint=CHANGES,
    change="rollout",
)
async def rollout(call: CommandCall) -> Answer:
    """Check a service's new revision and move all traffic to it, or back to another revision.

    Call it without plan_id, show the user the change and the cost, then call it with that plan_id.
    """
    return await _dry_run_or_change(call, "rollout")


@command_tool("restart", {"stack": STACK_OF_CALL, "plan_id": _PLAN_ID}, hint=CHANGES, change="restart")
async def restart(call: CommandCall) -> Answer:
    """Restart the server on a TPU VM that hangs. Requests fail until it is ready again.

    Call it without plan_id, show the user the effect, then call it with that plan_id.
    """
    return await _dry_run_or_change(call, "restart")


@command_tool("recover", {"stack": STACK_OF_CALL, "plan_id": _PLAN_ID}, hint=CHANGES)
async def recover(call: CommandCall) -> Answer:
    """Find the resources that an interrupted run created but did not record; with a plan_id, if allowed, import it into the state.

    Call it without plan_id, and show the user the result.
    """
    return await _dry_run_or_change(call, "recover")


async def _dry_run_or_change(call: CommandCall, command: Change) -> Answer:
    """Show a dry run, or run the plan that one showed. The command refuses it if a new dry run differs."""
    agent = call.agent
    stack = call.given["stack"]
    plan_id = call.given["plan_id"]
    if plan_id is None:
        found = await call.answer("--dry-run")
        plan = _plan(call, command, found)
        agent.shown[plan.plan_id] = plan
        return _answer(found, plan, budget="", changed=False)
    agent.require(command)
    agent.runs.claim(stack)
    plan = agent.find_plan(plan_id, command, tuple(call.words))
    if plan.usd_per_hour:
        await asyncio.to_thread(agent.spending.require, stack, plan.usd_per_hour)
    with agent.spending.reserved(stack, plan.usd_per_hour):
        del agent.shown[plan_id]
        answer = await call.answer(*([] if command == "rollout" else ["--yes"]), "--plan", plan_id)
        return _answer(answer, plan, budget=agent.spending.sentence(), changed=True)


def _plan(call: CommandCall, command: Change, found: Answer) -> ShownPlan:
    """Return the plan of a dry run. Raises CommandRefusedError without a plan, or a rollout's price."""
    stack, document = call.given["stack"], as_mapping(found["document"])
    if not found["ok"] or not document.get("plan"):
        raise CommandRefusedError(f"gemma {command} has no plan for stack {stack}: {found['said']['text']}")
    rate = document.get("usd_per_hour")
    if command == "rollout" and rate is None:
        raise CommandRefusedError(
            f"The combined cost of the revisions of stack {stack} is unknown, because Google reports no instance limits. "
            f"The user can run `gemma {command} {stack}`."
        )
    return ShownPlan(
        plan_id=str(document["plan"]),
        tool=command,
        stack=stack,
        words=tuple(call.words),
        usd_per_hour=rate if isinstance(rate, int | float) else None,
    )


def _answer(found: Answer, plan: ShownPlan, *, budget: str, changed: bool) -> Answer:
    gate = {"plan_id": plan.plan_id, "changed": changed, "usd_per_hour": plan.usd_per_hour, "budget": budget}
    return {**found, **gate}
