"""Guard of `teardown`, for which the user types the stack's name and a code each time.

A client could fill in the name, which is in the question. The code is shown only on a terminal, and counts once.
"""

from typing import Annotated, Any

from mcp.server.mcpserver import (
    AcceptedElicitation,
    CancelledElicitation,
    Context,
    DeclinedElicitation,
    Elicit,
    ElicitationResult,
    Resolve,
)
from mcp.types import ClientCapabilities
from pydantic import BaseModel, Field

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine import runner
from gemma_serving.scripts.agent.codes import VALID_S, code_shelf
from gemma_serving.scripts.agent.context import Answer
from gemma_serving.scripts.agent.tools import ToolCall


class TypedName(BaseModel):
    """The user's input."""

    stack_name: str = Field(description="Name of the stack to delete, typed by you.")
    code: str = Field(description="Code that the command shows on your terminal.")


async def prompt_user(stack: str, keep_bucket: bool, context: Context[Any, Any]) -> Elicit[TypedName]:
    """Ask for the stack's name and the code of this deletion. The server hides the tool from a client that cannot prompt."""
    if not can_prompt(context.client_capabilities):
        raise CommandRefusedError(
            "Your client cannot prompt the user, so this server deletes nothing. "
            f"The user can run `gemma teardown {stack}`."
        )
    return Elicit(
        f"DELETE stack {stack!r}? An assistant requests this. It deletes the server, its capacity and the stack's other resources"
        f"{', but keeps the bucket' if keep_bucket else ', INCLUDING THE BUCKET and its weights'}. This cannot be undone. "
        f"To delete it, run `gemma agent code {stack}` in your own terminal, in {runner.project_folder()}, and type the stack's name and the "
        "code shown there. Decline to keep the stack.",
        TypedName,
    )


Typed = Annotated[ElicitationResult[TypedName], Resolve(prompt_user)]
"""The user's input, or their refusal."""


async def delete_typed(call: ToolCall) -> Answer:
    """Delete a stack whose name and code the user typed for this deletion."""
    call.agent.runs.claim(call.stack)  # a refusal does not use up a code
    _require_typed(call.stack, call.typed, keeps_bucket=call.given["keep_bucket"])
    return await call.run()


def can_prompt(client: ClientCapabilities | None) -> bool:
    """Return whether the client can prompt the user for text. One with only `url` cannot."""
    asks = client.elicitation if client is not None else None
    return asks is not None and (asks.form is not None or asks.url is None)


def _require_typed(
    stack: str,
    typed: AcceptedElicitation[TypedName] | DeclinedElicitation | CancelledElicitation,
    *,
    keeps_bucket: bool,
) -> None:
    """Raise CommandRefusedError unless the user typed this name and the code for this deletion."""
    if not isinstance(typed, AcceptedElicitation):
        raise CommandRefusedError(f"Stack {stack} was not deleted: the user declined.")
    if typed.data.stack_name != stack:
        raise CommandRefusedError(
            f"Stack {stack} was not deleted: the user typed {typed.data.stack_name[:60]!r}, which is another name."
        )
    if not code_shelf().take(stack, typed.data.code, keeps_bucket=keeps_bucket):
        raise CommandRefusedError(
            f"Stack {stack} was not deleted: the code does not belong to this deletion {'without' if keeps_bucket else 'with'} the bucket, was used, "
            f"or is older than {VALID_S // 60} minutes. The user has to run `gemma agent code {stack}` in their own terminal."
        )
