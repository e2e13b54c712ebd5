"""Guard of `stage_weights`: it copies from a source that the user allowed, to the stack's own bucket."""

import re
from collections.abc import Sequence
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.scripts.agent.context import AgentContext, Answer
from gemma_serving.scripts.agent.tools import ToolCall
from gemma_serving.scripts.stack.settings import stack_settings

_BUCKET_FOLDER: Final = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/(?!\.\.?(/|$))[\w.-]+)*/?", re.ASCII)
_DEFAULT_BRANCH: Final = "main"
"""Branch of the hub that only the model's owners write. The hub also has the commits that anyone proposed, by their hash."""


def parse_sources(given: Sequence[str]) -> frozenset[str]:
    """Return the sources of --stage-from. Raises CommandRefusedError for one that is not a bucket folder."""
    for source in given:
        if not _BUCKET_FOLDER.fullmatch(source):
            raise CommandRefusedError(f"--stage-from is {source!r}. Write gs://BUCKET/FOLDER.")
    return frozenset(source.rstrip("/") for source in given)


async def stage_allowed(call: ToolCall) -> Answer:
    """Stage weights of the stack's owners, or of a source that the user allowed."""
    _require_revision(call.stack, call.given["revision"])
    _require_source(call.agent, call.given["origin"])
    call.agent.runs.claim(call.stack)
    return await call.run()


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
