"""Tools `preview` and `up`. A change is a plan that the user reviews, and only exactly that change runs."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import anyio
from pydantic import Field

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.fields import camel_case, json_object
from gemma_serving.contracts.masking import masked
from gemma_serving.contracts.resource_types import SERVER_TYPES
from gemma_serving.engine import runner
from gemma_serving.engine.atomic_file import private_folder, replace_file
from gemma_serving.engine.backend import BACKEND_VARIABLE
from gemma_serving.engine.events import EventLog
from gemma_serving.engine.locks import end_dead_locks, is_lock_error, parse_locks, stack_locks
from gemma_serving.engine.previewed import PREVIEW_LIMIT_S, creations_in, preview_errors
from gemma_serving.engine.secrets_provider import create_state
from gemma_serving.engine.state import StackState, read, remove_empty
from gemma_serving.engine.steps import PlannedStep, changes_of, steps_of
from gemma_serving.scripts.agent.bounds import Bound, require_bound
from gemma_serving.scripts.agent.command_tools import CommandCall, Own, command_tool
from gemma_serving.scripts.agent.context import ASKS, CHANGES, AgentContext, Answer, PlanId, ShownPlan
from gemma_serving.scripts.agent.presenting import untrusted
from gemma_serving.scripts.agent.programs import ProgramResult, run_program, shortened
from gemma_serving.scripts.agent.read_tools import STACK_OF_TOOL
from gemma_serving.scripts.agent.runs import report
from gemma_serving.scripts.agent.spending import GOOGLE_LIMIT_S, usd_per_hour_of
from gemma_serving.scripts.cli.command import print_progress
from gemma_serving.scripts.preview.api import headline
from gemma_serving.scripts.stack.frozen import FrozenProject, freeze, most_usd_per_hour
from gemma_serving.scripts.stack.own_runs import remember_run
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.scripts.stack.settings_file import SettingsFile
from gemma_serving.scripts.stack.unfinished_teardown import forget

_LAST_LINES: Final = 40
_PROGRESS_CHARACTERS: Final = 300
_LOSES: Final = frozenset({"replace", "create-replacement", "delete"})
"""Operations listed first, because an answer that is too long is cut at its end."""
_PREVIEW_GRACE_S: Final = 30.0
"""Grace period after SIGINT. A preview has no state to write."""
_end_dead_locks: Final = partial(end_dead_locks, report=partial(print_progress, "agent"))
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
    Before up, show the user the headline, each change before and after, both prices and budget.
    allowed is false if up refuses the plan: budget then names what is missing. Only the user can set it.
    """
    agent = call.agent
    stack = call.given["stack"]
    refresh = call.given["refresh"]
    with private_folder() as folder:
        frozen = await asyncio.to_thread(freeze, stack, folder / "project")
        usd_per_hour = most_usd_per_hour(frozen.settings, frozen.folder)
        await report(call.context, 0, 1, f"previewing stack {stack}")
        state = await asyncio.to_thread(read, stack)
        differences = await asyncio.to_thread(_differences, state)
        refresh = refresh or bool(differences)
        document = await _previewed(agent, frozen, state, refresh=refresh)
        steps = steps_of(document)
        bound, budget = await asyncio.to_thread(_verdict, agent, frozen, steps, state, usd_per_hour)
    plan_id = frozen.plan_id(steps)
    agent.shown[plan_id] = ShownPlan(
        plan_id=plan_id,
        tool="up",
        stack=stack,
        usd_per_hour=usd_per_hour,
        refresh=refresh,
        is_own=bound is not None and bound.is_own,
    )
    changes, unchanged, warnings = changes_of(document, agent.secrets)
    in_order = sorted(changes, key=lambda change: (change.op not in _LOSES, change.type not in SERVER_TYPES))
    return {
        "plan_id": plan_id,
        "stack": stack,
        "headline": headline(stack, changes),
        "changes": [change.model_dump(mode="json") for change in in_order],
        "unchanged": unchanged,
        "is_disruptive": any(change.is_disruptive for change in changes),
        "usd_per_hour_now": await asyncio.to_thread(_known_usd_per_hour, state),
        "usd_per_hour": round(usd_per_hour, 4),
        "said": untrusted("the program and the engine", agent.mask("\n".join([*differences, *warnings]))),
        "allowed": bound is not None,
        "budget": budget,
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
    stack = plan.stack
    usd_per_hour = plan.usd_per_hour or 0.0
    agent.runs.claim(stack)
    await asyncio.to_thread(agent.spending.require, stack, usd_per_hour)
    if locks := await asyncio.to_thread(stack_locks, stack):
        await asyncio.to_thread(_end_dead_locks, stack, locks)
    with private_folder() as folder:
        frozen = await asyncio.to_thread(freeze, stack, folder / "project")
        await report(call.context, 0, None, "comparing with the plan")
        state = await asyncio.to_thread(read, stack)
        document = await _previewed(agent, frozen, state, refresh=plan.refresh)
        steps = steps_of(document)
        if frozen.plan_id(steps) != plan_id:
            raise CommandRefusedError(
                f"{plan_id} is stale: the program, the settings of stack {stack}, the packages or the planned steps have changed. "
                "Run preview again and review the new plan."
            )
        await asyncio.to_thread(_require_ready, frozen, state)
        bound = await asyncio.to_thread(_bound, agent, frozen, steps, state)
        if bound.is_own and not plan.is_own:
            raise CommandRefusedError(f"{plan_id} did not name the limit in hours of stack {stack}. Run preview again.")
        with agent.spending.reserved(stack, usd_per_hour):
            del agent.shown[plan_id]
            if bound.is_own:
                keep = partial(agent.keepers.keep, plan_id=plan_id, project=frozen.settings.project)
                await asyncio.to_thread(keep, stack, agent.own_hours)
            if state.status == "missing":
                with anyio.CancelScope(shield=True):
                    await asyncio.to_thread(create_state, stack, folder=frozen.folder)
            lines: Sequence[str] = ()
            try:
                await asyncio.to_thread(_begin, frozen, state, document)
                result = await _run_engine(call, frozen, plan, steps, folder / "events")
            finally:  # even after a cancelled call, because the state has the salt
                with anyio.CancelScope(shield=True):
                    lines = await asyncio.to_thread(_kept_lines, frozen, state)
            return _answer(agent, plan, result, lines)


@command_tool(
    "",
    {
        "stack": STACK_OF_TOOL,
        "min_instances": Own("Instances that always run.", Annotated[int, Field(ge=0, le=1000)], required=True),
        "max_instances": Own("Maximum number of instances.", Annotated[int, Field(ge=1, le=1000)], required=True),
    },
    hint=CHANGES,
    change="scale",
)
async def scale(call: CommandCall) -> Answer:
    """Write minInstances and maxInstances of a Cloud Run service to the stack's file, if the cost of all instances is within the limit per hour.

    Nothing is deployed: then call preview, show the user the price, and call up.
    """
    agent, stack = call.agent, call.given["stack"]
    agent.runs.claim(stack)
    with private_folder() as folder:
        frozen = await asyncio.to_thread(freeze, stack, folder / "project")
        if frozen.settings.cloud_run is None:
            raise CommandRefusedError(
                f"Stack {stack} is not a Cloud Run service: its target is {frozen.settings.target}."
            )
        path = frozen.folder / f"Pulumi.{stack}.yaml"
        file = SettingsFile(path)
        instances = {f"cloudRun.{camel_case(key)}": call.given[key] for key in ("min_instances", "max_instances")}
        file.apply(instances)
        path.write_text(file.text(), encoding="utf-8")
        most = most_usd_per_hour(stack_settings(stack, folder=frozen.folder), frozen.folder)
        await asyncio.to_thread(agent.spending.require, stack, most)
    path = (runner.project_folder() / path.name).resolve()
    file = SettingsFile(path)  # as it is now
    file.apply(instances)
    replace_file(path, file.text())
    return {"stack": stack, "most_usd_per_hour": round(most, 4), "next": "Nothing is deployed yet. Call preview."}


def _begin(frozen: FrozenProject, state: StackState, document: Mapping[str, object]) -> None:
    """Import what Google has of the stack and its state lacks, and record that this folder deploys it. Raises ScriptError."""
    from gemma_serving.scripts.up.api import import_missing  # noqa: PLC0415 - loads Google's packages

    if state.pending or creations_in(document):
        import_missing(frozen.stack, frozen.settings.project, document)
    remember_run(frozen.stack, "begun")


def _kept_lines(frozen: FrozenProject, before: StackState) -> Sequence[str]:
    """Keep the engine's lines of the settings file. Without any resource, remove a state that was missing before instead."""
    if before.status == "missing" and remove_empty(read(frozen.stack)):
        forget(frozen.stack)
        return ()
    return frozen.bring_back_engine_lines(runner.project_folder())


def _known_usd_per_hour(state: StackState) -> float | None:
    """Return the maximum price of the deployed stack per hour; None if it is not deployed, or the price is unknown."""
    try:
        rate = usd_per_hour_of(state)
    except CommandRefusedError:
        return None
    return None if rate is None else round(rate, 4)


def _differences(state: StackState) -> Sequence[str]:
    """Return what Google has otherwise than the state, one sentence each."""
    from gemma_serving.scripts.stack.facts import read_facts  # noqa: PLC0415 - loads Google's packages
    from gemma_serving.scripts.stack.serves import differs  # noqa: PLC0415 - the same

    return differs(read_facts(state, "server", "lost", limit_s=GOOGLE_LIMIT_S))


def _require_ready(frozen: FrozenProject, state: StackState) -> None:
    """Raise CommandRefusedError with each check that stops `gemma up` too, and its fix."""
    from gemma_serving.scripts.doctor.api import require_ready  # noqa: PLC0415 - loads Google's packages

    require_ready(frozen.settings, state)


def _verdict(
    agent: AgentContext, frozen: FrozenProject, steps: Sequence[PlannedStep], state: StackState, usd_per_hour: float
) -> tuple[Bound | None, str]:
    """Return the bound with which `up` will run a plan, with the counted amounts, or None and the sentence with which it will refuse."""
    try:
        agent.require("up")
        _require_ready(frozen, state)
        bound = _bound(agent, frozen, steps, state)
        agent.spending.require(frozen.stack, usd_per_hour)
    except CommandRefusedError as error:
        return None, str(error)
    return bound, f"{bound.text} {agent.spending.sentence()}"


def _bound(agent: AgentContext, frozen: FrozenProject, steps: Sequence[PlannedStep], state: StackState) -> Bound:
    has_keeper = agent.keepers.has(frozen.stack)
    return require_bound(frozen, steps, state, own_hours=agent.own_hours, has_keeper=has_keeper)


async def _previewed(
    agent: AgentContext, frozen: FrozenProject, state: StackState, *, refresh: bool
) -> Mapping[str, object]:
    """Return the engine's preview in JSON, of a stack without a state in a temporary backend. Raises ScriptError with the engine's error."""
    stack = frozen.stack
    argv = [runner.pulumi(), "preview", "--json", "--stack", stack, "--non-interactive"]
    async with _backend_for(frozen, state) as variables:
        result = await run_program(
            [*argv, *(["--refresh"] if refresh else [])],
            secrets=agent.secrets,
            folder=frozen.folder,
            variables=variables,
            grace_s=_PREVIEW_GRACE_S,
            limit_s=PREVIEW_LIMIT_S,
        )
    document = json_object(result.printed)
    if document and result.exit_code == ExitCode.DONE:
        return document
    text = "\n".join(preview_errors(document)) or "\n".join(result.said)
    raise ScriptError(f"The preview of stack {stack} failed: {text or result.reason}")


@asynccontextmanager
async def _backend_for(frozen: FrozenProject, state: StackState) -> AsyncGenerator[Mapping[str, str]]:
    """Yield the engine's variables for a preview: of a stack without a state, those of a new one in a temporary backend.

    Only the copy's settings file gets the lines that the engine adds for a new state.
    """
    if state.status != "missing":
        yield {}
        return
    with private_folder() as folder:
        backend = f"file://{folder}"
        await asyncio.to_thread(create_state, frozen.stack, folder=frozen.folder, backend=backend)
        yield {BACKEND_VARIABLE: backend}


async def _run_engine(
    call: CommandCall, frozen: FrozenProject, plan: ShownPlan, steps: Sequence[PlannedStep], events: Path
) -> ProgramResult:
    secrets = call.agent.secrets
    log = EventLog(path=events, plain=partial(progress_text, secrets), steps=len(steps))

    async def forward_events(_lines: Sequence[str]) -> None:
        """Forward the engine's events as progress, and not its lines, which repeat them."""
        for event in log.fresh():
            await report(call.context, event.done, log.steps or None, event.text, step=event.step)

    return await run_program(
        [
            *(runner.pulumi(), "up", "--yes", "--skip-preview", "--suppress-outputs", "--non-interactive"),
            *(["--refresh"] if plan.refresh else []),
            *("--message", plan.plan_id, "--event-log", str(events), "--stack", plan.stack),
        ],
        secrets=secrets,
        watch=forward_events,
        folder=frozen.folder,
    )


def _answer(agent: AgentContext, plan: ShownPlan, result: ProgramResult, settings_lines: Sequence[str]) -> Answer:
    """Return the result of the engine. Raises CommandRefusedError if another run holds the stack's lock."""
    stack, text = plan.stack, "\n".join([result.out, *result.said])
    ok = result.exit_code == ExitCode.DONE
    if not ok and is_lock_error(text):
        _end_dead_locks(stack, parse_locks(text))
    if ok:
        remember_run(stack, "done")
    failed = f"Read the reason, check the logs of stack {stack}, then preview again: up imports what exists."
    then = f"Check it with smoke or status of stack {stack}." if ok else failed
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
