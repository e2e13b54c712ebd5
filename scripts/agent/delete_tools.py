"""Tool `teardown`, for which the user types the stack's name and a code each time. A model argument cannot replace that, and each answer counts once.

The name is part of the question, so a client could fill it in automatically. The code is shown only on a terminal.
"""

from collections import Counter
from typing import Annotated, Any, Final

from mcp.server.mcpserver import (
    AcceptedElicitation,
    CancelledElicitation,
    Context,
    DeclinedElicitation,
    Elicit,
    ElicitationResult,
    MCPServer,
    Resolve,
)
from mcp.types import ClientCapabilities
from pydantic import BaseModel, Field

from contracts.errors import CommandRefusedError
from engine import runner
from scripts.agent.codes import FOLDER, VALID_S, CodeShelf
from scripts.agent.command_tools import option_words
from scripts.agent.context import AgentContext, CommandAnswer, sentences
from scripts.agent.hints import DELETES
from scripts.agent.read_tools import Stack

TOOL: Final = "teardown"


class TypedName(BaseModel):
    """The user's input."""

    stack_name: str = Field(description="Name of the stack to delete, typed by you.")
    code: str = Field(description="Code that the command shows on your terminal.")


def add_teardown(server: MCPServer[Any], agent: AgentContext) -> None:
    """Register the tool if it is allowed. The server hides it from a client that cannot prompt the user."""
    if not agent.permissions.allows("teardown"):
        return

    answered: Counter[str] = Counter()
    """Number of answered questions by stack. An answer that is sent again belongs to an earlier question."""

    async def prompt_user(stack: str, keep_bucket: bool, context: Context[Any, Any]) -> Elicit[TypedName]:
        with sentences(agent):
            agent.require("teardown")
            if not can_prompt(context.client_capabilities):
                raise CommandRefusedError(
                    "Your client cannot prompt the user, so this server deletes nothing. Run scripts.teardown manually."
                )
        return Elicit(
            f"DELETE stack {stack!r}? An assistant requests this. It deletes the server, its capacity and the stack's other resources"
            f"{', but keeps the bucket' if keep_bucket else ', INCLUDING THE BUCKET and its weights'}. This cannot be undone. "
            f"To delete it, run `{command(stack)}` in your own terminal, in {runner.project_folder()}, and type the stack's name and the "
            f"code shown there. Decline to keep the stack. (Question {answered[stack] + 1} about this stack.)",
            TypedName,
        )

    @server.tool(name=TOOL, annotations=DELETES)
    async def teardown(
        *,
        context: Context[Any, Any],
        stack: Stack,
        keep_bucket: Annotated[bool, Field(description="Keep the bucket with the weights.")] = True,
        typed: Annotated[ElicitationResult[TypedName], Resolve(prompt_user)],
    ) -> CommandAnswer:
        """Delete a stack and all resources with its labels. The user is prompted for its name and a code each time.

        The code is shown only on the user's own terminal. The bucket with the weights is kept unless `keep_bucket` is false.
        """
        answered[stack] += 1
        with sentences(agent):
            agent.require("teardown")
            agent.runs.claim(stack)  # a refusal does not use up a code
            _require_typed(stack, typed, keeps_bucket=keep_bucket)
            words = option_words("teardown", {"stack": stack, "yes": True, "keep_bucket": keep_bucket})
            answer = await agent.answer(context, "teardown", *words)
            if answer.ok:
                agent.spending.ends(stack)
            return answer


def can_prompt(client: ClientCapabilities | None) -> bool:
    """Return whether the client can prompt the user for text. An empty capability means that; one with only `url` does not."""
    asks = client.elicitation if client is not None else None
    return asks is not None and (asks.form is not None or asks.url is None)


def command(stack: str) -> str:
    """Return the command that shows the code to the user."""
    return f"gemma agent code {stack}"


def plan_store() -> CodeShelf:
    """Return the store of this project's codes."""
    return CodeShelf(folder=runner.project_folder() / FOLDER)


def _require_typed(
    stack: str,
    typed: AcceptedElicitation[TypedName] | DeclinedElicitation | CancelledElicitation,
    *,
    keeps_bucket: bool,
) -> None:
    """Refuse unless the user typed exactly this name and the code for this deletion. Raises CommandRefusedError."""
    if not isinstance(typed, AcceptedElicitation):
        raise CommandRefusedError(f"Stack {stack} was not deleted: the user declined.")
    if typed.data.stack_name != stack:
        raise CommandRefusedError(
            f"Stack {stack} was not deleted: the user typed {typed.data.stack_name[:60]!r}, which is another name."
        )
    why = plan_store().take(stack, typed.data.code, keeps_bucket=keeps_bucket)
    if why is not None:
        raise CommandRefusedError(
            f"Stack {stack} was not deleted: {why}. The user has to run `{command(stack)}` in their own terminal, at most "
            f"{VALID_S // 60} minutes before they answer."
        )
