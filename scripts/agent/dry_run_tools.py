"""`restart`: a dry run shows a plan, and only that plan runs."""

from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.scripts.agent.command_tools import CommandCall, Own, command_tool
from gemma_serving.scripts.agent.context import CHANGES, Answer, PlanId, ShownPlan
from gemma_serving.scripts.agent.read_tools import STACK_OF_CALL

_PLAN_ID: Final = Own("Omit it for a dry run, whose answer has a plan_id. Pass that one to run it.", PlanId)


@command_tool("up", {"stack": STACK_OF_CALL, "plan_id": _PLAN_ID}, hint=CHANGES, change="restart")
async def restart(call: CommandCall) -> Answer:
    """Restart the server on a TPU VM that hangs. Requests fail until it is ready again.

    Call it without plan_id, show the user the effect, then call it with that plan_id.
    """
    agent = call.agent
    stack = call.given["stack"]
    plan_id = call.given["plan_id"]
    if plan_id is None:
        found = await call.answer("--restart", "--dry-run")
        plan = _plan(call, found)
        agent.shown[plan.plan_id] = plan
        return {**found, "plan_id": plan.plan_id, "changed": False}
    agent.require("restart")
    agent.runs.claim(stack)
    agent.find_plan(plan_id, "restart", tuple(call.words))
    del agent.shown[plan_id]
    answer = await call.answer("--restart", "--yes", "--plan", plan_id)
    return {**answer, "plan_id": plan_id, "changed": True}


def _plan(call: CommandCall, found: Answer) -> ShownPlan:
    """Return the plan of a dry run. Raises CommandRefusedError without one."""
    stack, document = call.given["stack"], as_mapping(found["document"])
    if not found["ok"] or not document.get("plan"):
        raise CommandRefusedError(f"gemma {call.command} has no plan for stack {stack}: {found['said']['text']}")
    return ShownPlan(plan_id=str(document["plan"]), tool="restart", stack=stack, words=tuple(call.words))
