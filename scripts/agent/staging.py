"""Tool `stage_weights`: it copies from a source that the user allowed, to the stack's own bucket."""

import re
from collections.abc import Sequence
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.scripts.agent.command_tools import Argument, CommandCall, command_tool
from gemma_serving.scripts.agent.context import CHANGES, AgentContext, Answer
from gemma_serving.scripts.agent.read_tools import STACK_OF_CALL

_BUCKET_FOLDER: Final = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/(?!\.\.?(/|$))[\w.-]+)*/?", re.ASCII)
_REFERENCE: Final = "refs/"
"""Prefix of special hub references, such as refs/pr/1, which anyone can propose."""


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
    },
    hint=CHANGES,
    change="stage",
)
async def stage_weights(call: CommandCall) -> Answer:
    """Copy the stack's weights to a new folder of its bucket, which is created if it is missing, and write their hash to the stack's file.

    A running server does not change. Then run preview and up to serve these weights.
    """
    _require_source(call.agent, call.given["source"], call.given["revision"])
    call.agent.runs.claim(call.given["stack"])
    return await call.answer()


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
