"""Tools `preview` and `up`. A change is a plan that the user reviews, and only exactly that change runs."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from contracts.fields import json_object
from contracts.masking import masked
from engine import runner
from engine.atomic_file import private_folder
from engine.events import EventLog
from engine.locks import end_dead_locks, is_lock_error, parse_locks, stack_locks
from engine.previewed import PREVIEW_LIMIT_S, preview_errors
from engine.steps import CAPACITY_TYPES, PlannedStep, changes_of, steps_of
from scripts.agent.command_tools import CommandCall, Own, command_tool
from scripts.agent.context import ASKS, CHANGES, AgentContext, Answer, PlanId, ShownPlan
from scripts.agent.presenting import untrusted
from scripts.agent.programs import ProgramResult, run_program, shortened
from scripts.agent.read_tools import STACK_OF_TOOL
from scripts.agent.runs import report
from scripts.cli.command import say
from scripts.cli.frozen import FrozenProject, freeze, most_usd_per_hour
from scripts.preview.face import deployed_usd_per_hour, headline
from stacks.settings import Settings

_LAST_LINES: Final = 40
_PROGRESS_CHARACTERS: Final = 300
_LOSES: Final = frozenset({"replace", "create-replacement", "delete"})
"""Operations listed first, because an answer that is too long is cut at its end."""
_PREVIEW_GRACE_S: Final = 30.0
"""Grace period after SIGINT. A preview has no state to write."""
_end_dead_locks: Final = partial(end_dead_locks, report=partial(say, "agent"))
"""Removes locks of processes that are gone. Raises CommandRefusedError if another agent or user holds one."""


@command_tool(
    "",
    {
        "stack": STACK_OF_TOOL,
        "refresh": Own("Refresh from Google first, to find drift.", bool, default=False),
    },
    hint=ASKS,
)
async def preview(call: CommandCall) -> Answer:
    """Preview the changes of `up`, identified by a plan_id. Nothing is changed.

    up refuses it once the program, the settings, the packages or the steps differ.
    Before up, show the user the headline, each change before and after, and both prices.
    """
    agent, stack, refresh = call.agent, call.given["stack"], call.given["refresh"]
    with private_folder() as folder:
        frozen = await asyncio.to_thread(freeze, stack, folder / "project")
        usd_per_hour = most_usd_per_hour(frozen.settings, frozen.folder)
        await report(call.context, 0, 1, f"previewing stack {stack}")
        document = await _previewed(agent, frozen, refresh=refresh)
        usd_per_hour_now = await asyncio.to_thread(deployed_usd_per_hour, stack)
    plan_id = frozen.plan_id(steps_of(document))
    agent.shown[plan_id] = ShownPlan(
        plan_id=plan_id, tool="up", stack=stack, usd_per_hour=usd_per_hour, refresh=refresh
    )
    changes, unchanged, warnings = changes_of(document, agent.secrets)
    in_order = sorted(changes, key=lambda change: (change.op not in _LOSES, change.type not in CAPACITY_TYPES))
    return {
        "plan_id": plan_id,
        "stack": stack,
        "headline": headline(stack, changes),
        "changes": [change.model_dump(mode="json") for change in in_order],
        "unchanged": unchanged,
        "is_disruptive": any(change.is_disruptive for change in changes),
        "usd_per_hour_now": usd_per_hour_now,
        "usd_per_hour": round(usd_per_hour, 4),
        "said": untrusted("the program and the engine", agent.mask("\n".join(warnings))),
        "allowed": "up" in agent.allowed,
        "budget": await _budget(agent, frozen, usd_per_hour) if "up" in agent.allowed else "",
    }


@command_tool(
    "",
    {"plan_id": Own("From the answer of preview.", PlanId, required=True)},
    hint=CHANGES,
    change="up",
)
async def up(call: CommandCall) -> Answer:
    """Deploy exactly a plan of `preview`, once. It is refused if anything else changes.

    This can take hours: the answer then has `running: true`, and wait returns the result.
    """
    agent, plan_id = call.agent, call.given["plan_id"]
    plan = agent.find_plan(plan_id, "up")
    stack, usd_per_hour = plan.stack, plan.usd_per_hour or 0.0
    agent.runs.claim(stack)
    await asyncio.to_thread(agent.spending.require, stack, usd_per_hour)
    if locks := await asyncio.to_thread(stack_locks, stack):
        await asyncio.to_thread(_end_dead_locks, stack, locks)
    with private_folder() as folder:
        frozen = await asyncio.to_thread(freeze, stack, folder / "project")
        _require_limits(stack, frozen.settings)
        await report(call.context, 0, None, "comparing with the plan")
        steps = steps_of(await _previewed(agent, frozen, refresh=plan.refresh))
        if frozen.plan_id(steps) != plan_id:
            raise CommandRefusedError(
                f"{plan_id} is stale: the program, the settings of stack {stack}, the packages or the planned steps have changed. "
                "Run preview again and review the new plan."
            )
        with agent.spending.reserved(stack, usd_per_hour):
            del agent.shown[plan_id]
            try:
                result = await _run_engine(call, frozen, plan, steps, folder / "events")
            finally:  # even after a cancelled call, because the state has the salt
                lines = frozen.bring_back_engine_lines(runner.project_folder())
            return _answer(agent, plan, result, lines)


async def _budget(agent: AgentContext, frozen: FrozenProject, usd_per_hour: float) -> str:
    """Return the counted amounts, or the sentence with which `up` will refuse."""
    try:
        _require_limits(frozen.stack, frozen.settings)
        await asyncio.to_thread(agent.spending.require, frozen.stack, usd_per_hour)
    except CommandRefusedError as error:
        return str(error)
    return agent.spending.sentence()


def _require_limits(stack: str, settings: Settings) -> None:
    """Refuse a stack that no guard ever tears down. Raises CommandRefusedError."""
    limits = {"no maxUsd": settings.max_usd, "no maxAge": settings.max_age_s}
    missing = [lack for lack, value in limits.items() if value is None]
    if missing:
        raise CommandRefusedError(
            f"An assistant deploys only stacks with maxUsd and maxAge, but stack {stack} has {' and '.join(missing)}. "
            f"The user can set it in Pulumi.{stack}.yaml (docs/costs.md), or run `gemma up {stack}`."
        )


async def _previewed(agent: AgentContext, frozen: FrozenProject, *, refresh: bool) -> Mapping[str, object]:
    """Return the engine's preview in JSON. Raises ScriptError with the engine's error message."""
    stack = frozen.stack
    argv = [runner.pulumi(), "preview", "--json", "--stack", stack, "--non-interactive"]
    result = await run_program(
        [*argv, *(["--refresh"] if refresh else [])],
        secrets=agent.secrets,
        folder=frozen.folder,
        grace_s=_PREVIEW_GRACE_S,
        limit_s=PREVIEW_LIMIT_S,
    )
    document = json_object(result.printed)
    if document and result.exit_code == ExitCode.DONE:
        return document
    text = "\n".join(preview_errors(document)) or "\n".join(result.said)
    raise ScriptError(f"The preview of stack {stack} failed: {text or result.reason}")


async def _run_engine(
    call: CommandCall, frozen: FrozenProject, plan: ShownPlan, steps: Sequence[PlannedStep], events: Path
) -> ProgramResult:
    secrets = call.agent.secrets
    log = EventLog(path=events, plain=partial(progress_text, secrets), steps=len(steps))

    async def look() -> None:
        """Forward the engine's events as progress."""
        for event in log.fresh():
            await report(call.context, event.done, log.steps or None, event.text, step=event.step)

    result = await run_program(
        [
            *(runner.pulumi(), "up", "--yes", "--skip-preview", "--suppress-outputs", "--non-interactive"),
            *(["--refresh"] if plan.refresh else []),
            *("--message", plan.plan_id, "--event-log", str(events), "--stack", plan.stack),
        ],
        secrets=secrets,
        watch=look,
        folder=frozen.folder,
    )
    await look()
    return result


def _answer(agent: AgentContext, plan: ShownPlan, result: ProgramResult, settings_lines: Sequence[str]) -> Answer:
    """Return the result of the engine. Raises CommandRefusedError if another run holds the stack's lock."""
    stack, text = plan.stack, "\n".join([result.out, *result.said])
    ok = result.exit_code == ExitCode.DONE
    if not ok and is_lock_error(text):
        _end_dead_locks(stack, parse_locks(text))
    then = (
        f"Check it with smoke or status of stack {stack}."
        if ok
        else f"Read the reason, check the logs of stack {stack}, then preview again.{runner.recover_hint(stack, text)}"
    )
    return {
        "ok": ok,
        "stack": stack,
        "plan_id": plan.plan_id,
        "reason": None if ok else untrusted("the engine", runner.first_error(text, result.exit_code)),
        "said": untrusted("the engine", "\n".join(result.out.splitlines()[-_LAST_LINES:])),
        "next": then,
        "usd_per_hour": round(plan.usd_per_hour or 0.0, 4),
        "budget": agent.spending.sentence(),
        "settings_lines": list(settings_lines),
    }


def progress_text(secrets: Sequence[str], text: str) -> str:
    """Return one message of the engine without secrets and escapes, and not too long."""
    return shortened(text, lambda part: masked(part, secrets), _PROGRESS_CHARACTERS)
