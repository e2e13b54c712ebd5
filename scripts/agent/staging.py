"""`stage_weights`: a copy into a folder of its own, from a source that the person named, and no run of the engine without a plan."""

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from pydantic import Field

from contracts.errors import CommandRefusedError
from contracts.fields import as_mapping
from engine.private_folders import private_folder
from scripts.agent.command_tools import Argument, CommandCall, command_tool
from scripts.agent.context import AgentContext, CommandAnswer
from scripts.agent.hints import CHANGES
from scripts.agent.plans import KeptPlan, PlanId
from scripts.agent.read_tools import STACK_OF_CALL
from scripts.agent.untrusted import Frozen
from scripts.cli.frozen import freeze
from scripts.cli.plan_identity import identity_of
from scripts.cli.settings import stack_settings
from scripts.stage_model.face import creation_steps, has_bucket

_BUCKET_FOLDER: Final = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/(?!\.\.?(/|$))[\w.-]+)*/?", re.ASCII)
_REFERENCE: Final = "refs/"
"""Beginning of a reference of the hub, such as a proposal of anybody: refs/pr/1."""


class StagingAnswer(Frozen):
    """What was staged, or what has to be created first."""

    staged: bool = Field(description="Whether the weights are in the bucket.")
    plan_id: str | None = Field(description="Plan that creates the bucket; call again with it. Absent once staged.")
    creates: list[str] = Field(description="What that plan creates. It changes and deletes nothing.")
    setting: str | None = Field(description="Lines of the stack's file that a person writes, so that up serves this.")
    next: str = Field(description="What to do next.")
    command: CommandAnswer | None = Field(description="How scripts.stage_model ended.")


def parse_sources(given: Sequence[str]) -> frozenset[str]:
    """Return the sources of --stage-from. Raises CommandRefusedError for one that is no folder of a bucket."""
    for source in given:
        if not _BUCKET_FOLDER.fullmatch(source):
            raise CommandRefusedError(f"--stage-from is {source!r}; write gs://BUCKET/FOLDER.")
    return frozenset(source.rstrip("/") for source in given)


@command_tool(
    "stage_model",
    {
        "stack": STACK_OF_CALL,
        "revision": Argument(help="Branch, tag or commit of the hub. Default: modelRevision of the stack, then main."),
        "source": Argument(
            option="origin", help="gs://BUCKET/FOLDER instead of the hub, of those that the person named."
        ),
        "plan_id": Argument(
            option="plan", kind=PlanId, help="Plan of an earlier call, if the bucket does not exist yet."
        ),
    },
    hint=CHANGES,
    change="stage",
)
async def stage_weights(call: CommandCall) -> StagingAnswer:
    """Copy the stack's weights into a folder of its own in its bucket: nothing that a running server reads is changed or deleted.

    If the bucket does not exist, the first call returns a plan that creates it, and the second one, with its plan_id, creates it and
    copies. No settings file is written: show the person `setting`, the lines to write before preview and up serve these weights.
    """
    agent, stack, plan_id = call.agent, call.given["stack"], call.given["plan_id"]
    _require_source(agent, call.given["source"], call.given["revision"])
    if plan_id is None and not await asyncio.to_thread(_has_bucket, stack):
        with agent.place():
            return _answer_of_plan(await asyncio.to_thread(_creation, agent, stack))
    if plan_id is not None:
        await asyncio.to_thread(_take, agent, stack, plan_id)
    return _answer_of_copy(await call.answer(*(["--no-create"] if plan_id is None else []), "--no-bind"))


def _require_source(agent: AgentContext, source: str | None, revision: str | None) -> None:
    """Refuse a source that the person did not name. Raises CommandRefusedError."""
    if revision is not None and revision.startswith(_REFERENCE):
        raise CommandRefusedError(
            f"revision is {revision[:80]!r}, which can be a proposal of anybody; it must be a branch, tag or commit."
        )
    if source is None:
        return
    if not _BUCKET_FOLDER.fullmatch(source):
        raise CommandRefusedError(
            f"source is {source[:80]!r}; it must be gs://BUCKET/FOLDER. Folders of this machine are for people."
        )
    if source.rstrip("/") not in agent.stage_from:
        named = ", ".join(sorted(agent.stage_from)) or "none"
        raise CommandRefusedError(
            f"source is {source[:80]!r}, which the person who started this server did not name; named: {named}. Leave it out for the hub. A "
            f"person can start the server with --stage-from {source[:80]}. No argument changes that."
        )


def _has_bucket(stack: str) -> bool:
    """Return whether the command needs no engine: the bucket is there, or it refuses the stack anyway."""
    settings = stack_settings(stack)
    if settings.weights != "bucket" or settings.bucket.existing is not None:
        return True
    return has_bucket(stack, settings)


def _creation(agent: AgentContext, stack: str) -> KeptPlan:
    """Preview the creation of the bucket, and keep it."""
    with private_folder() as folder:
        frozen = freeze(stack, folder / "project")
        identity = identity_of(frozen)
        steps = creation_steps(frozen)
    made_s = agent.creations.clock()
    plan = KeptPlan(identity=identity, steps=steps, refresh=False, usd_per_hour=0.0, made_s=made_s)
    agent.creations.keep(plan)
    return plan


def _take(agent: AgentContext, stack: str, plan_id: str) -> None:
    """Use a plan up. The command compares it with what the engine would do at that moment. Raises CommandRefusedError."""
    with private_folder() as folder:
        agent.creations.take(plan_id, identity_of(freeze(stack, folder / "project")))


def _answer_of_plan(plan: KeptPlan) -> StagingAnswer:
    return StagingAnswer(
        staged=False,
        plan_id=plan.plan_id,
        creates=[f"{step.name} ({step.type})" for step in plan.steps],
        setting=None,
        next="The bucket does not exist. Show the person what is created, then call stage_weights again with this plan_id.",
        command=None,
    )


def _answer_of_copy(command: CommandAnswer) -> StagingAnswer:
    written = as_mapping((command.document or {}).get("setting"))
    lines = [
        f"gemma-serving:{key}: {value}" if value is not None else f"without gemma-serving:{key}"
        for key, value in written.items()
    ]
    following = (
        "A person writes the lines of `setting` into the stack's file (command.said has each `pulumi config set`); then preview and up."
        if command.ok
        else "Read the reason in command.said."
    )
    return StagingAnswer(
        staged=command.ok, plan_id=None, creates=[], setting="\n".join(lines) or None, next=following, command=command
    )
