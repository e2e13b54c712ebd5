"""`preview` and `up`: a change is a plan that somebody could read, and only that plan runs."""

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
from engine.locks import StackLock, is_lock_error, parse_locks, stack_locks
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
"""Of one line of the engine: an error can hold a whole start-up script, and a stranger's words."""
_LAST_LINES: Final = 40
_PROGRESS_CHARACTERS: Final = 300
"""Of one message of progress."""
_LOSES: Final = frozenset({"replace", "create-replacement", "delete"})
"""Operations that come first: an answer that is too long is cut at its end."""
_PREVIEW_GRACE_S: Final = 30.0
"""After SIGINT. A preview has no state to write."""
_MOST_FILES: Final = 10
"""That a refusal names."""
_MOST_LOCKS, _LOCK_CHARACTERS = 20, 2000
"""Of the lines about locks that are read: the search takes the square of a long word."""


class PreviewAnswer(Frozen):
    """What `up` would do. `plan_id` names exactly this."""

    plan_id: str = Field(description="Give this to up.")
    stack: str = Field(description="Name of the stack.")
    headline: str = Field(description="What the changes do to what runs, in one sentence.")
    changes: list[ResourceChange] = Field(description="Each resource that changes, with what differs.")
    unchanged: int = Field(description="Number of resources that stay as they are.")
    is_disruptive: bool = Field(description="Whether the TPU capacity or the service is replaced or deleted.")
    usd_per_hour_now: float | None = Field(
        description="The most that the deployed stack costs an hour; null if it is not deployed."
    )
    usd_per_hour: float = Field(
        description="The most that the stack then costs an hour, with all instances that it may have."
    )
    said: UntrustedText = Field(description="What the program and the engine said, such as findings.")
    valid_for_s: float = Field(description="Seconds until the plan is too old.")
    allowed: bool = Field(description="Whether this server may run it with up.")
    budget: str = Field(default="", description="What counts against the ceilings, or why up would refuse.")
    edited: list[str] = Field(
        default_factory=list[str], description="Files that changed while the preview ran: this plan does not have them."
    )


class UpAnswer(Frozen):
    """How an update ended."""

    ok: bool = Field(description="Whether it was deployed.")
    stack: str = Field(description="Name of the stack.")
    plan_id: str = Field(description="The plan that ran.")
    reason: UntrustedText | None = Field(description="Why it failed.")
    said: UntrustedText = Field(description="The last lines of the engine.")
    next: str = Field(description="What to do next.")
    usd_per_hour: float = Field(description="The most that the stack costs an hour.")
    spent_usd: float | None = Field(description="What this agent's deployments cost in the last 24 hours.")
    budget: str = Field(default="", description="What counts against the ceilings.")
    edited: list[str] = Field(
        default_factory=list[str],
        description="Files that changed in the folder after the plan was made. The changes are not deployed.",
    )
    settings_lines: list[str] = Field(
        default_factory=list[str], description="What the engine added to the stack's settings file, for a person."
    )


def add_changing_tools(server: MCPServer[Any], agent: AgentContext) -> None:
    """Register the tools. `up` is there only where the person allowed it."""

    @server.tool(annotations=ASKS)
    async def preview(
        *,
        context: Context[Any, Any],
        stack: Stack,
        refresh: Annotated[bool, Field(description="Compare with Google first: finds what changed there.")] = False,
    ) -> PreviewAnswer:
        """Ask the engine what `up` would change, and keep that as a plan. Nothing is changed.

        The plan holds for an hour, as long as program, settings, backend, state and image stay as they
        are. Show the person the headline, each change before and after, and both prices before up.
        """
        with sentences(agent):
            return await _preview(agent, context, stack, refresh=refresh)

    if agent.permissions.allows("up"):

        @server.tool(annotations=CHANGES)
        async def up(
            *,
            context: Context[Any, Any],
            plan_id: Annotated[PlanId, Field(description="Of the answer of preview.")],
        ) -> UpAnswer:
            """Deploy exactly what a plan of `preview` says. A plan that does not hold any more is refused.

            It can take hours: then the answer has `running: true`, the work continues, and wait returns its end. Only cancel stops it, as
            Ctrl-C does: the next preview and up continue from there.
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
        raise ScriptError(f"{' and '.join(changed).capitalize()} while the preview ran; make another one.")
    changes, unchanged, warnings = changes_of(document, agent.secrets)
    plan_id = agent.plan_store.keep(
        KeptPlan(
            identity=identity,
            steps=steps_of(document, agent.secrets),
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
    """Return what is counted, or the sentence with which `up` would refuse."""
    try:
        await asyncio.to_thread(agent.spending.require, stack, usd_per_hour)
    except CommandRefusedError as error:
        return str(error)
    return agent.spending.sentence()


async def _previewed(agent: AgentContext, frozen: FrozenProject, *, refresh: bool) -> Mapping[str, object]:
    """Return the engine's preview in JSON. Raises ScriptError with the engine's words."""
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
    """Whether what serves is replaced or deleted."""
    return any(change.type in CAPACITY_TYPES and change.op not in {"create", "update", "read"} for change in changes)


async def _up(agent: AgentContext, context: Context[Any, Any], plan_id: str) -> UpAnswer:
    kept = agent.plan_store.find(plan_id)
    stack = kept.identity.stack
    agent.runs.claim(stack)
    await asyncio.to_thread(agent.spending.require, stack, kept.usd_per_hour)
    await asyncio.to_thread(_require_unlocked, stack)
    with private_folder() as folder:
        # The engine runs in a copy whose hash is in the plan: an edit that comes later reaches no run.
        frozen = await asyncio.to_thread(freeze, stack, folder / "project")
        _check(agent, plan_id, await asyncio.to_thread(identity_of, frozen), frozen)
        await report(context, 0, len(kept.steps), "comparing with the plan")
        differing = differences(kept.steps, steps_of(await _previewed(agent, frozen, refresh=kept.refresh)))
        if differing:
            raise CommandRefusedError(
                f"{plan_id} is stale: the engine would do something else now: {shortened_differences(differing)}. "
                "Make a new one with preview, and read it."
            )
        now = await asyncio.to_thread(identity_of, frozen)
        # No other call runs between the check of the plan, the check of the ceilings and the count.
        agent.plan_store.check(plan_id, now)
        before = agent.spending.counted(stack)
        most = max(kept.usd_per_hour, agent.spending.price_of(stack) or 0.0)  # a run that fails may leave either
        agent.spending.reserve(stack, kept.usd_per_hour, counted=most)
        agent.plan_store.take(plan_id, now)
        log = EventLog(path=folder / "events", plain=partial(progress_text, agent.secrets), steps=len(kept.steps))
        root, message = runner.project_folder(), _message(plan_id)

        async def look() -> None:
            """Pass the engine's events on as progress."""
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
            settings_lines = frozen.bring_back_engine_lines(root)  # also after a cancelled call: the state has the salt
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
    """Refuse a plan that does not hold any more, and name the files that changed. Raises CommandRefusedError."""
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
    """Return what the update's history says: the copy has no git folder from which the engine could read the commit."""
    with contextlib.suppress(CommandRefusedError, OSError):
        changed = " with changes" if git("status", "--porcelain", "--untracked-files=no") else ""
        return f"{plan_id} of commit {git('rev-parse', '--short=12', 'HEAD')}{changed}"
    return plan_id


def _next(stack: str, text: str, edited: Sequence[str], *, ok: bool) -> str:
    if ok and edited:
        return f"Check it with smoke or status of stack {stack}. Files changed meanwhile and are not deployed: preview shows what they would do."
    if ok:
        return f"Check it with smoke or status of stack {stack}."
    hint = runner.recover_hint(stack, text)
    return f"Read the reason, ask recognise_failure about it, look at logs of stack {stack}, then preview again.{hint}"


def _require_unlocked(stack: str) -> None:
    """Refuse while somebody else changes the stack: its state is on the move, and a plan of it too. Raises CommandRefusedError."""
    found = stack_locks(stack)
    if found:
        raise CommandRefusedError(_locked_words(stack, found))


def _locked(stack: str, text: str) -> str | None:
    """Return the sentence about a stack that somebody else changes; None if it is not locked."""
    if not is_lock_error(text):
        return None
    lines = [line[:_LOCK_CHARACTERS] for line in text.splitlines() if ": created by " in line][:_MOST_LOCKS]
    return _locked_words(stack, parse_locks("\n".join(lines)))


def _locked_words(stack: str, locks: Sequence[StackLock]) -> str:
    holders = ", ".join(sorted({lock.holder for lock in locks})) or "another run"
    return (
        f"Stack {stack} is locked by {holders}: another agent or person is changing it. Nothing was done. Wait until it has ended, "
        "then preview again; if that process is gone, scripts.recover ends its lock."
    )


def progress_text(secrets: Sequence[str], text: str) -> str:
    """Return one message of the engine as the client may read it: without secrets and escapes, and not too long."""
    return shortened(text, secrets, _PROGRESS_CHARACTERS)


def _shortened(text: str) -> str:
    return "\n".join(line[:_MOST_CHARACTERS] for line in text.splitlines())
