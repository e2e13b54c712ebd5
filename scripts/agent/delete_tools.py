"""`teardown`: a person types the stack's name and a code, each time. No argument of a model stands in for that, and no answer counts twice.

The name stands in the question, so a client could answer with it by itself. The code is shown on a terminal only.
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
    """What the person types."""

    stack_name: str = Field(description="The name of the stack to delete, typed by you.")
    code: str = Field(description="The code that the command shows on your terminal.")


def add_teardown(server: MCPServer[Any], agent: AgentContext) -> None:
    """Register the tool where it is allowed. The server does not list it to a client that cannot ask a person."""
    if not agent.permissions.allows("teardown"):
        return

    answered: Counter[str] = Counter()
    """Questions about each stack that were answered. An answer that is sent again was given to another question."""

    async def ask_a_person(stack: str, keep_bucket: bool, context: Context[Any, Any]) -> Elicit[TypedName]:
        with sentences(agent):
            agent.require("teardown")
            if not can_ask(context.client_capabilities):
                raise CommandRefusedError(
                    "Your client cannot ask a person, so this server deletes nothing: run scripts.teardown by hand."
                )
        return Elicit(
            f"An assistant asks to DELETE stack {stack!r} with its server and its capacity"
            f"{', and keeps its bucket' if keep_bucket else ' and with its BUCKET and the weights in it'}. This cannot be undone. "
            f"To delete it, run `{command(stack)}` in your own terminal, in {runner.project_folder()}, and type the stack's name and the "
            f"code that it shows. Decline to keep the stack. (Question {answered[stack] + 1} about this stack.)",
            TypedName,
        )

    @server.tool(name=TOOL, annotations=DELETES)
    async def teardown(
        *,
        context: Context[Any, Any],
        stack: Stack,
        keep_bucket: Annotated[bool, Field(description="Keep the bucket with the weights.")] = True,
        typed: Annotated[ElicitationResult[TypedName], Resolve(ask_a_person)],
    ) -> CommandAnswer:
        """Delete a stack: what it made and what carries its labels. A person is asked to type its name and a code each time.

        The code is shown on the person's own terminal only. The bucket with the weights is kept unless `keep_bucket` is false.
        """
        answered[stack] += 1
        with sentences(agent):
            agent.require("teardown")
            agent.runs.claim(stack)  # a refusal uses up no code
            _require_typed(stack, typed, keeps_bucket=keep_bucket)
            words = option_words("teardown", {"stack": stack, "yes": True, "keep_bucket": keep_bucket})
            answer = await agent.answer(context, "teardown", *words)
            if answer.ok:
                agent.spending.ends(stack)
            return answer


def can_ask(client: ClientCapabilities | None) -> bool:
    """Whether the client says that it can ask a person for a text. An empty capability means that; one with only `url` does not."""
    asks = client.elicitation if client is not None else None
    return asks is not None and (asks.form is not None or asks.url is None)


def command(stack: str) -> str:
    """Return the command that shows a person the code."""
    return f"python -m scripts.agent code --stack {stack}"


def plan_store() -> CodeShelf:
    """Return where this project's codes are."""
    return CodeShelf(folder=runner.project_folder() / FOLDER)


def _require_typed(
    stack: str,
    typed: AcceptedElicitation[TypedName] | DeclinedElicitation | CancelledElicitation,
    *,
    keeps_bucket: bool,
) -> None:
    """Refuse if no person typed exactly this name and the code for this deletion. Raises CommandRefusedError."""
    if not isinstance(typed, AcceptedElicitation):
        raise CommandRefusedError(f"Stack {stack} was not deleted: the person did not agree.")
    if typed.data.stack_name != stack:
        raise CommandRefusedError(
            f"Stack {stack} was not deleted: the person typed {typed.data.stack_name[:60]!r}, which is another name."
        )
    why = plan_store().take(stack, typed.data.code, keeps_bucket=keeps_bucket)
    if why is not None:
        raise CommandRefusedError(
            f"Stack {stack} was not deleted: {why}. A person has to run `{command(stack)}` in their own terminal, within "
            f"{VALID_S // 60} minutes before they answer."
        )
