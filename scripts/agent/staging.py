"""Tool `stage_weights`: it copies from a source that the user allowed, and runs the engine only for a plan."""

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from contracts.errors import CommandRefusedError
from contracts.fields import as_mapping
from engine.atomic_file import private_folder
from scripts.agent.command_tools import Argument, CommandCall, command_tool
from scripts.agent.context import CHANGES, AgentContext, Answer, PlanId, ShownPlan
from scripts.agent.read_tools import STACK_OF_CALL
from scripts.cli.frozen import freeze
from scripts.cli.settings import stack_settings
from scripts.stage_model.face import creation_steps, has_bucket

_BUCKET_FOLDER: Final = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/(?!\.\.?(/|$))[\w.-]+)*/?", re.ASCII)
_REFERENCE: Final = "refs/"
"""Prefix of special hub references, such as refs/pr/1, which anyone can propose."""
_TOOL: Final = "stage_weights"


def parse_sources(given: Sequence[str]) -> frozenset[str]:
    """Return the sources of --stage-from. Raises CommandRefusedError for one that is not a bucket folder."""
    for source in given:
        if not _BUCKET_FOLDER.fullmatch(source):
            raise CommandRefusedError(f"--stage-from is {source!r}. Write gs://BUCKET/FOLDER.")
    return frozenset(source.rstrip("/") for source in given)


@command_tool(
    "stage_model",
    {
        "stack": STACK_OF_CALL,
        "revision": Argument("Branch, tag or commit of the hub. Default: modelRevision of the stack, then main."),
        "source": Argument(
            "gs://BUCKET/FOLDER instead of the hub, from the sources that the user allowed.", option="origin"
        ),
        "plan_id": Argument("Plan of an earlier call, if the bucket does not exist yet.", PlanId, option="plan"),
    },
    hint=CHANGES,
    change="stage",
)
async def stage_weights(call: CommandCall) -> Answer:
    """Copy the stack's weights to a new folder of its bucket.

    Without a bucket, the first call returns a plan, and a second call with its plan_id creates the bucket and copies.
    No settings file is written: show the user `setting`, the lines to add before preview and up serve these weights.
    """
    agent, stack, plan_id = call.agent, call.given["stack"], call.given["plan_id"]
    _require_source(agent, call.given["source"], call.given["revision"])
    if plan_id is not None:
        agent.find_plan(plan_id, _TOOL, (stack,))
        del agent.shown[plan_id]
        return _answer_of_copy(await call.answer("--no-bind"))
    if await asyncio.to_thread(_has_bucket, stack):
        return _answer_of_copy(await call.answer("--no-create", "--no-bind"))
    return await asyncio.to_thread(_creation, agent, stack)


def _require_source(agent: AgentContext, source: str | None, revision: str | None) -> None:
    """Reject a source that the user did not allow. Raises CommandRefusedError."""
    if revision is not None and revision.startswith(_REFERENCE):
        raise CommandRefusedError(
            f"revision is {revision[:80]!r}, which anyone can propose; it must be a branch, tag or commit."
        )
    if source is not None and source.rstrip("/") not in agent.stage_from:
        named = ", ".join(sorted(agent.stage_from)) or "none"
        raise CommandRefusedError(
            f"source is {source[:80]!r}, which the user who started this server did not allow. Allowed: {named}, or the hub. "
            "Only the user can allow another, with --stage-from gs://BUCKET/FOLDER."
        )


def _has_bucket(stack: str) -> bool:
    """Return whether the command needs no engine run, or refuses the stack anyway."""
    settings = stack_settings(stack)
    return settings.weights != "bucket" or settings.bucket.existing is not None or has_bucket(stack, settings)


def _creation(agent: AgentContext, stack: str) -> Answer:
    """Preview the creation of the bucket, which the command compares with its own preview."""
    with private_folder() as folder:
        frozen = freeze(stack, folder / "project")
        steps = creation_steps(frozen)
    plan_id = frozen.plan_id(steps)
    agent.shown[plan_id] = ShownPlan(plan_id=plan_id, tool=_TOOL, stack=stack, words=(stack,))
    return {
        "staged": False,
        "plan_id": plan_id,
        "creates": [f"{step.name} ({step.type})" for step in steps],
        "next": "Show the user what will be created, then call stage_weights again with this plan_id.",
    }


def _answer_of_copy(command: Answer) -> Answer:
    written = as_mapping(as_mapping(command["document"]).get("setting"))
    lines = [
        f"gemma-serving:{key}: {value}" if value is not None else f"without gemma-serving:{key}"
        for key, value in written.items()
    ]
    done = "The user adds the lines of `setting` to the stack's file. Then run preview and up."
    following = done if command["ok"] else "Read the reason in command.said."
    return {
        "staged": command["ok"],
        "setting": "\n".join(lines) or None,
        "next": following,
        "command": command,
    }
