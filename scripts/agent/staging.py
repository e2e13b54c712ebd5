"""Guard of `stage_weights`: it copies from a source that the user allowed, to the stack's own bucket."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from mcp.server.mcpserver import Context, Elicit

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine import runner
from gemma_serving.planning import planner
from gemma_serving.planning.units import MONTH_H
from gemma_serving.scripts.agent.consent import Approval, approval, require_consent
from gemma_serving.scripts.agent.context import AgentContext, Answer
from gemma_serving.scripts.agent.tools import ToolCall
from gemma_serving.scripts.stack.settings import require_staged, stack_settings

_BUCKET_FOLDER: Final = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/(?!\.\.?(/|$))[\w.-]+)*/?", re.ASCII)
_STORAGE: Final = "bucket_usd_per_gib_month"
_DEFAULT_BRANCH: Final = "main"
"""Branch of the hub that only the model's owners write. The hub also has the commits that anyone proposed, by their hash."""


def parse_sources(given: Sequence[str]) -> frozenset[str]:
    """Return the sources of --stage-from. Raises CommandRefusedError for one that is not a bucket folder."""
    for source in given:
        if not _BUCKET_FOLDER.fullmatch(source):
            raise CommandRefusedError(f"--stage-from is {source!r}. Write gs://BUCKET/FOLDER.")
    return frozenset(source.rstrip("/") for source in given)


def prompt_for_staging(agent: AgentContext) -> Callable[..., Awaitable[Elicit[Approval] | Approval]]:
    """Return the function that asks whether weights may be copied."""

    async def prompt(
        stack: str, origin: str | None, revision: str | None, code: str | None, context: Context[Any, Any]
    ) -> Elicit[Approval] | Approval:
        question = await asyncio.to_thread(_question, agent, stack, origin, revision)
        if agent.runs.active(stack, None):
            return Approval(approve=False)  # the guard names the work that changes the stack
        return approval(context, stack, question, code)

    return prompt


async def stage_allowed(call: ToolCall) -> Answer:
    """Stage weights of the stack's owners, or of a source that the user allowed, after the user said yes."""
    question = await asyncio.to_thread(_question, call.agent, call.stack, call.given["origin"], call.given["revision"])
    call.agent.runs.claim(call.stack)
    require_consent(call, question)
    return await call.run()


def _question(agent: AgentContext, stack: str, origin: str | None, revision: str | None) -> str:
    """Return the question about a copy. Raises CommandRefusedError for one that is not allowed, and PlanningError."""
    from gemma_serving.stacks.planned import to_question  # noqa: PLC0415 - loads Pulumi's SDK

    _require_revision(stack, revision)
    _require_source(agent, origin)
    settings = stack_settings(stack)
    require_staged(stack, settings)
    bill = planner.plan(to_question(settings, runner.project_folder())).running.bill
    stored = next((part.usd for part in bill if part.price is not None and part.price.key == _STORAGE), 0.0)
    return (
        f"COPY weights of stack {stack!r}? An assistant requests this. It copies {settings.model} from {origin or 'the Hugging Face hub'} to "
        f"bucket {settings.bucket_name(stack)}, which it creates if there is none, and writes their hash to Pulumi.{stack}.yaml. "
        f"A running server does not change. Cost: ${stored / MONTH_H:,.4f} per hour (${stored:,.2f} per month) of storage "
        "until the bucket is deleted, no maximum. Decline to copy nothing."
    )


def _require_revision(stack: str, revision: str | None) -> None:
    """Reject a revision that neither the model's owners nor the user have chosen. Raises CommandRefusedError."""
    if revision in {None, _DEFAULT_BRANCH} or revision == stack_settings(stack).model_revision:
        return
    raise CommandRefusedError(
        f"revision is {str(revision)[:80]!r}, and anyone can propose a commit to the hub. Allowed: {_DEFAULT_BRANCH}, or modelRevision of the "
        "stack. Only the user can choose another, with modelRevision in the stack's file."
    )


def _require_source(agent: AgentContext, source: str | None) -> None:
    """Reject a source that the user did not allow. Raises CommandRefusedError."""
    if source is not None and source.rstrip("/") not in agent.stage_from:
        named = ", ".join(sorted(agent.stage_from)) or "none"
        raise CommandRefusedError(
            f"origin is {source[:80]!r}, which the user who started this server did not allow. Allowed: {named}, or the hub. "
            "Only the user can allow another, with --stage-from gs://BUCKET/FOLDER."
        )
