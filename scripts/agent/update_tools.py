"""Tools `preview` and `up`. A change is a plan that can be reviewed, and only that plan runs."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final

from mcp.server.mcpserver import Context, MCPServer
from pydantic import Field

from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from contracts.fields import json_object
from engine import runner
from engine.changes import ResourceChange, changes_of
from engine.checkout import git
from engine.events import EventLog
from engine.locks import StackLock, is_lock_error, locked, parse_locks, stack_locks
from engine.previewed import PREVIEW_LIMIT_S, preview_errors
from engine.private_folders import private_folder
from engine.steps import CAPACITY_TYPES, differences, shortened_differences, steps_of
from scripts.agent.context import AgentContext, sentences
from scripts.agent.hints import ASKS, CHANGES
from scripts.agent.plans import VALID_S, KeptPlan, PlanId
from scripts.agent.programs import run_program, shortened
from scripts.agent.read_tools import Stack
from scripts.agent.runs import report
from scripts.agent.untrusted import Frozen, UntrustedText, untrusted
from scripts.cli.frozen import FrozenProject, freeze
from scripts.cli.plan_identity import PlanIdentity, identity_of
from scripts.preview.face import deployed_usd_per_hour, headline

_MOST_CHARACTERS: Final = 400
"""Limit for one line of the engine, because an error can contain a whole start-up script, and untrusted text."""
_LAST_LINES: Final = 40
_PROGRESS_CHARACTERS: Final = 300
"""Of one message of progress."""
_LOSES: Final = frozenset({"replace", "create-replacement", "delete"})
"""Operations listed first, because an answer that is too long is cut at its end."""
_PREVIEW_GRACE_S: Final = 30.0
"""Grace period after SIGINT. A preview has no state to write."""
_MOST_FILES: Final = 10
"""Number of files named in a refusal."""
_MOST_LOCKS, _LOCK_CHARACTERS = 20, 2000
"""Limit for the lines about locks, because the search takes quadratic time on a long word."""


class PreviewAnswer(Frozen):
    """Planned steps of `up`, identified by `plan_id`."""

    plan_id: str = Field(description="Pass this to up.")
    stack: str = Field(description="Name of the stack.")
    headline: str = Field(description="Effect of the changes on running resources, in one sentence.")
    changes: list[ResourceChange] = Field(description="Each changed resource, with the differences.")
    unchanged: int = Field(description="Number of unchanged resources.")
    is_disruptive: bool = Field(description="True if the TPU capacity or the service is replaced or deleted.")
    usd_per_hour_now: float | None = Field(
        description="Maximum price of the deployed stack, in USD per hour; null if it is not deployed."
    )
    usd_per_hour: float = Field(
        description="Maximum price of the stack after the change, in USD per hour, with all its instances."
    )
    said: UntrustedText = Field(description="Messages of the program and the engine, such as findings.")
    valid_for_s: float = Field(description="Seconds until the plan expires.")
    allowed: bool = Field(description="True if this server may run it with up.")
    budget: str = Field(
        default="", description="Amounts that count against the spending limits, or why up will refuse."
    )
    edited: list[str] = Field(
        default_factory=list[str], description="Files changed during the preview, which this plan does not include."
    )


class UpAnswer(Frozen):
    """Result of an update."""

    ok: bool = Field(description="True if it was deployed.")
    stack: str = Field(description="Name of the stack.")
    plan_id: str = Field(description="The plan that ran.")
    reason: UntrustedText | None = Field(description="Why it failed.")
    said: UntrustedText = Field(description="Last lines of the engine.")
    next: str = Field(description="What to do next.")
    usd_per_hour: float = Field(description="Maximum price of the stack, in USD per hour.")
    spent_usd: float | None = Field(description="Cost of this agent's deployments in the last 24 hours, in USD.")
    budget: str = Field(default="", description="Amounts that count against the spending limits.")
    edited: list[str] = Field(
        default_factory=list[str],
        description="Files changed after the plan was created. The changes are not deployed.",
    )
    settings_lines: list[str] = Field(
        default_factory=list[str], description="The engine's additions to the stack's settings file, for the user."
    )


def add_update_tools(server: MCPServer[Any], agent: AgentContext) -> None:
    """Register the tools. `up` exists only if the user allowed it."""

    @server.tool(annotations=ASKS)
    async def preview(
        *,
        context: Context[Any, Any],
        stack: Stack,
        refresh: Annotated[bool, Field(description="Refresh from Google first, to find drift.")] = False,
    ) -> PreviewAnswer:
        """Preview the changes of `up` and store them as a plan. Nothing is changed.

        The plan is valid for an hour, as long as program, settings, backend, state and image stay the same.
        Before up, show the user the headline, each change before and after, and both prices.
        """
        with sentences(agent):
            return await _preview(agent, context, stack, refresh=refresh)

    if agent.permissions.allows("up"):

        @server.tool(annotations=CHANGES)
        async def up(
            *,
            context: Context[Any, Any],
            plan_id: Annotated[PlanId, Field(description="From the answer of preview.")],
        ) -> UpAnswer:
            """Deploy exactly a plan of `preview`. A plan that is no longer valid is refused.

            This can take hours. The answer then has `running: true`, the work continues, and wait returns the result. Only cancel stops it, as
            Ctrl-C does; the next preview and up continue from there.
            """
            with sentences(agent):
                agent.require("up")
                return await _up(agent, context, plan_id)


async def _preview(agent: AgentContext, context: Context[Any, Any], stack: str, *, refresh: bool) -> PreviewAnswer:
    with private_folder() as folder:
        frozen = await asyncio.to_thread(freeze, stack, folder / "project")
        identity = await asyncio.to_thread(identity_of, frozen)
        usd_per_hour = frozen.most_usd_per_hour
        await report(context, 0, 1, f"previewing stack {stack}")
        document = await _previewed(agent, frozen, refresh=refresh)
        usd_per_hour_now = await asyncio.to_thread(deployed_usd_per_hour, stack)
        changed = (await asyncio.to_thread(identity_of, frozen)).changed_since(identity)
        edited = await asyncio.to_thread(frozen.edited, runner.project_folder())
    if changed:
        raise ScriptError(f"{' and '.join(changed).capitalize()} during the preview. Run preview again.")
    changes, unchanged, warnings = changes_of(document, agent.secrets)
    plan_id = agent.plan_store.keep(
        KeptPlan(
            identity=identity,
            steps=steps_of(document),
            files=frozen.files,
            refresh=refresh,
            usd_per_hour=usd_per_hour,
            made_s=agent.plan_store.clock(),
        )
    )
    return PreviewAnswer(
        plan_id=plan_id,
        stack=stack,
        headline=headline(stack, changes),
        changes=sorted(changes, key=lambda change: (change.op not in _LOSES, change.type not in CAPACITY_TYPES)),
        unchanged=unchanged,
        is_disruptive=is_disruptive(changes),
        usd_per_hour_now=usd_per_hour_now,
        usd_per_hour=round(usd_per_hour, 4),
        said=untrusted("the program and the engine", agent.mask("\n".join(warnings))),
        valid_for_s=VALID_S,
        allowed=agent.permissions.allows("up"),
        budget=await _budget(agent, stack, usd_per_hour) if agent.permissions.allows("up") else "",
        edited=list(edited),
    )


async def _budget(agent: AgentContext, stack: str, usd_per_hour: float) -> str:
    """Return the counted amounts, or the sentence with which `up` will refuse."""
    try:
        await asyncio.to_thread(agent.spending.require, stack, usd_per_hour)
    except CommandRefusedError as error:
        return str(error)
    return agent.spending.sentence()


async def _previewed(agent: AgentContext, frozen: FrozenProject, *, refresh: bool) -> Mapping[str, object]:
    """Return the engine's preview in JSON. Raises ScriptError with the engine's error message."""
    stack = frozen.stack
    argv = [runner.pulumi(), "preview", "--json", "--stack", stack, "--non-interactive"]
    with agent.place():
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
    raise ScriptError(
        _locked(stack, text) or f"The preview of stack {stack} failed: {_shortened(text) or result.reason}"
    )


def is_disruptive(changes: Sequence[ResourceChange]) -> bool:
    """Return whether a serving resource is replaced or deleted."""
    return any(change.type in CAPACITY_TYPES and change.op not in {"create", "update", "read"} for change in changes)


async def _up(agent: AgentContext, context: Context[Any, Any], plan_id: str) -> UpAnswer:
    kept = agent.plan_store.find(plan_id)
    stack = kept.identity.stack
    agent.runs.claim(stack)
    await asyncio.to_thread(agent.spending.require, stack, kept.usd_per_hour)
    await asyncio.to_thread(_require_unlocked, stack)
    with private_folder() as folder:
        # The engine runs in a copy whose hash is in the plan, so later edits do not affect the run.
        frozen = await asyncio.to_thread(freeze, stack, folder / "project")
        _check(agent, plan_id, await asyncio.to_thread(identity_of, frozen), frozen)
        await report(context, 0, len(kept.steps), "comparing with the plan")
        differing = differences(kept.steps, steps_of(await _previewed(agent, frozen, refresh=kept.refresh)))
        if differing:
            raise CommandRefusedError(
                f"{plan_id} is stale: the planned steps have changed: {shortened_differences(differing)}. "
                "Run preview again and review the new plan."
            )
        now = await asyncio.to_thread(identity_of, frozen)
        # No other call runs between the check of the plan, the check of the limits and the count.
        agent.plan_store.check(plan_id, now)
        before = agent.spending.counted(stack)
        most = max(kept.usd_per_hour, agent.spending.price_of(stack) or 0.0)  # a failed run can leave either
        agent.spending.reserve(stack, kept.usd_per_hour, counted=most)
        agent.plan_store.take(plan_id, now)
        log = EventLog(path=folder / "events", plain=partial(progress_text, agent.secrets), steps=len(kept.steps))
        root, message = runner.project_folder(), _message(plan_id)

        async def look() -> None:
            """Forward the engine's events as progress."""
            for event in log.fresh():
                await report(context, event.done, log.steps or None, event.text, step=event.step)

        try:
            result = await run_program(
                [
                    *(runner.pulumi(), "up", "--yes", "--skip-preview", "--suppress-outputs", "--non-interactive"),
                    *(["--refresh"] if kept.refresh else []),
                    *("--message", message, "--event-log", str(log.path), "--stack", stack),
                ],
                secrets=agent.secrets,
                watch=look,
                folder=frozen.folder,
            )
        finally:
            edited = frozen.edited(root)
            settings_lines = frozen.bring_back_engine_lines(
                root
            )  # even after a cancelled call, because the state has the salt
        await look()
    text = "\n".join([result.out, *result.said])
    ok = result.exit_code == ExitCode.DONE
    locked = None if ok else _locked(stack, text)
    if locked:
        agent.spending.settles(stack, before)
        raise CommandRefusedError(locked)
    if ok:
        agent.spending.settles(stack, kept.usd_per_hour)
    return UpAnswer(
        ok=ok,
        stack=stack,
        plan_id=plan_id,
        reason=None if ok else untrusted("the engine", _shortened(runner.first_error(text, result.exit_code))),
        said=untrusted("the engine", _shortened("\n".join(result.out.splitlines()[-_LAST_LINES:]))),
        next=_next(stack, text, edited, ok=ok),
        usd_per_hour=round(kept.usd_per_hour, 4),
        spent_usd=agent.spending.spent_usd(),
        budget=agent.spending.sentence(),
        edited=list(edited),
        settings_lines=list(settings_lines),
    )


def _check(agent: AgentContext, plan_id: str, now: PlanIdentity, frozen: FrozenProject) -> None:
    """Refuse a plan that is no longer valid, and name the files that changed. Raises CommandRefusedError."""
    before = agent.plan_store.find(plan_id).files
    changed = sorted(path for path in {*before, *frozen.files} if before.get(path) != frozen.files.get(path))
    try:
        agent.plan_store.check(plan_id, now)
    except CommandRefusedError as error:
        if not changed:
            raise
        shown = ", ".join(changed[:_MOST_FILES])
        rest = f" and {len(changed) - _MOST_FILES} more" if len(changed) > _MOST_FILES else ""
        raise CommandRefusedError(f"{error} Changed files: {shown}{rest}.") from None


def _message(plan_id: str) -> str:
    """Return the message for the update's history. The copy has no git folder from which the engine could read the commit."""
    with contextlib.suppress(CommandRefusedError, OSError):
        changed = " with changes" if git("status", "--porcelain", "--untracked-files=no") else ""
        return f"{plan_id} of commit {git('rev-parse', '--short=12', 'HEAD')}{changed}"
    return plan_id


def _next(stack: str, text: str, edited: Sequence[str], *, ok: bool) -> str:
    if ok and edited:
        return f"Check it with smoke or status of stack {stack}. Some files changed during the update and are not deployed. Run preview to see their effect."
    if ok:
        return f"Check it with smoke or status of stack {stack}."
    hint = runner.recover_hint(stack, text)
    return f"Read the reason, pass it to recognise_failure, check the logs of stack {stack}, then preview again.{hint}"


def _require_unlocked(stack: str) -> None:
    """Refuse while another run changes the stack, because its state and any plan of it are in flux. Raises CommandRefusedError."""
    found = stack_locks(stack)
    if found:
        raise CommandRefusedError(_locked_words(stack, found))


def _locked(stack: str, text: str) -> str | None:
    """Return the sentence about a locked stack; None if it is not locked."""
    if not is_lock_error(text):
        return None
    lines = [line[:_LOCK_CHARACTERS] for line in text.splitlines() if ": created by " in line][:_MOST_LOCKS]
    return _locked_words(stack, parse_locks("\n".join(lines)))


def _locked_words(stack: str, locks: Sequence[StackLock]) -> str:
    return (
        f"Stack {stack} is {locked(locks)}: another agent or user is changing it. Nothing was done. Wait for it to finish, "
        "then preview again. If that process is gone, scripts.recover removes its lock."
    )


def progress_text(secrets: Sequence[str], text: str) -> str:
    """Return one message of the engine as the client may read it: without secrets and escapes, and not too long."""
    return shortened(text, secrets, _PROGRESS_CHARACTERS)


def _shortened(text: str) -> str:
    return "\n".join(line[:_MOST_CHARACTERS] for line in text.splitlines())
