"""`rollout`, `restart` and `recover`: a dry run creates a plan that the user can review, and only that plan runs, within the limits of `up`."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from mcp.server.mcpserver import MCPServer
from pydantic import Field

from contracts.errors import CommandRefusedError
from contracts.fields import as_mapping, as_sequence
from engine import runner
from engine.deployment import type_in
from engine.steps import CAPACITY_TYPES
from scripts.agent.command_tools import Argument, CommandCall, command_tool
from scripts.agent.context import AgentContext, CommandAnswer
from scripts.agent.hints import ASKS, CHANGES
from scripts.agent.plans import KeptCommand, PlanId
from scripts.agent.read_tools import STACK_OF_CALL
from scripts.cli.frozen import most_usd_per_hour
from scripts.cli.settings import stack_settings

_NEW: Final = frozenset({"rolled out", "rolled back manually", "nothing to do", "restarted", "waits for rollout"})
"""Outcomes after which the price of the plan counts."""
_OLD: Final = frozenset({"rolled back", "not verified"})
"""Outcomes after which the previous revisions receive all traffic."""
_NOTHING: Final = frozenset({"held", "refused", "unknown", "failed"})
"""Outcomes of a run that did not change traffic."""

_PLAN_ID: Final = Argument(
    kind=PlanId,
    help="Omit it for a dry run, whose answer shows the steps and a plan_id. Pass that plan_id to run them.",
    is_passed=False,
)


class GatedAnswer(CommandAnswer):
    """Result of a dry run with the plan_id that runs it, or the result of the run."""

    plan_id: str = Field(description="Pass this with the same arguments to run the plan.")
    changed: bool = Field(description="True if the plan was run. If false, nothing was changed: show it to the user.")
    usd_per_hour: float | None = Field(description="Maximum price of the stack during the run, in USD per hour.")
    budget: str = Field(description="Amounts that count against the spending limits.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prices:
    """Maximum prices in USD per hour. If None, the counted amount does not change."""

    during: float | None
    after: float | None


@command_tool(
    "rollout",
    {
        "stack": STACK_OF_CALL,
        "to": Argument(help="Revision to roll back to. Default: the new one."),
        "plan_id": _PLAN_ID,
    },
    hint=CHANGES,
)
async def rollout(call: CommandCall) -> GatedAnswer:
    """Check a service's new revision and move all traffic to it, or back to another revision.

    First call it without plan_id and show the user the change and the cost, then call it again with the plan_id of that answer.
    """
    return await _gated(call, "rollout")


@command_tool("restart", {"stack": STACK_OF_CALL, "plan_id": _PLAN_ID}, hint=CHANGES)
async def restart(call: CommandCall) -> GatedAnswer:
    """Restart the server on a TPU machine without changing its settings, for example if it hangs. Requests fail until it is ready again.

    First call it without plan_id and show the user the effect, then call it again with the plan_id of that answer.
    """
    return await _gated(call, "restart")


@command_tool("recover", {"stack": STACK_OF_CALL, "plan_id": _PLAN_ID}, hint=CHANGES)
async def recover(call: CommandCall) -> GatedAnswer:
    """Find what an interrupted run created but did not record; with a plan_id, if allowed, import it into the state.

    First call it without plan_id and show the user what it found. An imported TPU or service counts against the spending limits.
    """
    return await _gated(call, "recover")


def add_gated_tools(server: MCPServer[Any], agent: AgentContext) -> None:
    """Register the tools. `rollout` and `restart` exist only if the user allowed them; `recover` can always do a dry run."""
    (recover if agent.permissions.allows("recover") else replace(recover, hint=ASKS)).add(server, agent)
    if agent.permissions.allows("rollout"):
        rollout.add(server, agent)
    if agent.permissions.allows("restart"):
        restart.add(server, agent)


async def _gated(call: CommandCall, command: Literal["rollout", "restart", "recover"]) -> GatedAnswer:
    agent, words, stack, plan_id = call.agent, call.words, call.given["stack"], call.given["plan_id"]
    if plan_id is None:
        return await _dry_run(call, command)
    agent.require(command)
    agent.runs.claim(stack)
    kept = agent.plan_store.find_command(plan_id, command, words)
    before, during = agent.spending.counted(stack), kept.usd_per_hour_during
    await _require(agent, stack, during)
    agent.plan_store.find_command(plan_id, command, words)  # another call may have run it in the meantime
    if during is not None:
        most = max(during, agent.spending.price_of(stack) or 0.0)
        agent.spending.reserve(stack, during, counted=most)
    agent.plan_store.use(plan_id)
    yes = [] if command == "rollout" else ["--yes"]
    try:
        answer = await call.answer(*yes, "--plan", kept.shown)
    except CommandRefusedError:
        agent.spending.settles(stack, before)  # it refused before any change
        raise
    if during is not None:
        reported = (answer.document or {}).get("outcome")
        outcome = "rolled out" if command == "recover" else str(reported)
        agent.spending.settles(stack, _price_after(kept, outcome, before))
    return _answer(agent, answer, plan_id, during, changed=True)


async def _dry_run(call: CommandCall, command: str) -> GatedAnswer:
    agent, stack = call.agent, call.given["stack"]
    found = await call.answer("--dry-run")
    document: Mapping[str, object] = found.document or {}
    shown = str(document.get("plan") or "")
    if not found.ok or not shown:
        raise CommandRefusedError(f"gemma {command} has no plan for stack {stack}: {found.said.text}")
    prices = (
        _prices_of_recovery(stack, document) if command == "recover" else _prices_of_revisions(command, stack, document)
    )
    plan_id = agent.plan_store.keep(
        KeptCommand(
            command=command,
            stack=stack,
            words=tuple(call.words),
            shown=shown,
            usd_per_hour_during=prices.during,
            usd_per_hour_after=prices.after,
            made_s=agent.plan_store.clock(),
        )
    )
    return _answer(agent, found, plan_id, prices.during, changed=False)


def _prices_of_revisions(command: str, stack: str, document: Mapping[str, object]) -> _Prices:
    """Return the price of both revisions together, and of the remaining one. The price of a restarted TPU does not change.

    Raises CommandRefusedError if Google does not report it.
    """
    if document.get("target") == "tpu":
        return _Prices(during=None, after=None)
    during, after = document.get("usd_per_hour"), document.get("usd_per_hour_after")
    if not isinstance(during, int | float) or not isinstance(after, int | float):
        raise CommandRefusedError(
            f"The combined cost of the revisions of stack {stack} is unknown, because Google does not report their instance limits. "
            f"The user can run `gemma {command} {stack}`."
        )
    return _Prices(during=float(during), after=float(after))


def _prices_of_recovery(stack: str, document: Mapping[str, object]) -> _Prices:
    """Return the price of the stack if a TPU or a service would be taken over or may be: it is then deployed. Raises PlanningError."""
    groups = [as_sequence(document.get(key)) for key in ("owned", "unknown", "pending")]
    urns = [str(as_mapping(finding).get("urn") or "") for group in groups for finding in group]
    if not any(type_in(urn) in CAPACITY_TYPES for urn in urns):
        return _Prices(during=None, after=None)
    folder = runner.project_folder()
    rate = most_usd_per_hour(stack_settings(stack, folder=folder), folder)
    return _Prices(during=rate, after=rate)


def _price_after(kept: KeptCommand, outcome: str, before: float | None) -> float | None:
    """Return the price to count after the command. An interrupted rollout can leave traffic on two revisions."""
    during, after = kept.usd_per_hour_during, kept.usd_per_hour_after
    if outcome in _NOTHING:
        return before
    if outcome in _OLD and during is not None and after is not None:
        return (during - after) or after
    return after if outcome in _NEW else during


async def _require(agent: AgentContext, stack: str, usd_per_hour: float | None) -> None:
    if usd_per_hour is None:
        agent.spending.require_left()
    else:
        await asyncio.to_thread(agent.spending.require, stack, usd_per_hour)


def _answer(
    agent: AgentContext, found: CommandAnswer, plan_id: str, usd_per_hour: float | None, *, changed: bool
) -> GatedAnswer:
    return GatedAnswer(
        **dict(found),
        plan_id=plan_id,
        changed=changed,
        usd_per_hour=usd_per_hour,
        budget=agent.spending.sentence() if changed else "",
    )
