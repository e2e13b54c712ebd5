"""Guard of `teardown`, for which the user types the stack's name and a code each time.

A client could fill in the name, which is in the question. The code is shown only on a terminal, and counts once.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server.mcpserver import Context, Elicit
from pydantic import BaseModel, Field

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine import runner
from gemma_serving.scripts.agent.codes import VALID_S, code_shelf
from gemma_serving.scripts.agent.consent import accepted, can_prompt, note_question
from gemma_serving.scripts.agent.context import AgentContext, Answer
from gemma_serving.scripts.agent.tools import ToolCall


class TypedName(BaseModel):
    """The user's input."""

    stack_name: str = Field(description="Name of the stack to delete, typed by you.")
    code: str = Field(description="Code that the command shows on your terminal.")


def prompt_for_deletion(_agent: AgentContext) -> Callable[..., Awaitable[Elicit[TypedName]]]:
    """Return the function that asks for the stack's name and the code of this deletion."""

    async def prompt(stack: str, keep_bucket: bool, context: Context[Any, Any]) -> Elicit[TypedName]:
        if not can_prompt(context.client_capabilities):  # the server hides the tool from such a client
            raise CommandRefusedError(
                "Your client cannot prompt the user, so this server deletes nothing. "
                f"The user can run `gemma teardown {stack}`."
            )
        question = _question(stack, keeps_bucket=keep_bucket)
        note_question(stack, question)
        return Elicit(question, TypedName)

    return prompt


def _question(stack: str, *, keeps_bucket: bool) -> str:
    return (
        f"DELETE stack {stack!r}? An assistant requests this. It deletes the server, its capacity and the stack's other resources"
        f"{', but keeps the bucket' if keeps_bucket else ', INCLUDING THE BUCKET and its weights'}. This cannot be undone. "
        f"To delete it, run `gemma agent code {stack}` in your own terminal, in {runner.project_folder()}, and type the stack's name and the "
        "code shown there. Decline to keep the stack."
    )


async def delete_typed(call: ToolCall) -> Answer:
    """Delete a stack whose name and code the user typed for this deletion."""
    call.agent.runs.claim(call.stack)  # a refusal does not use up a code
    _require_typed(call.stack, call.typed, keeps_bucket=call.given["keep_bucket"])
    return await call.run()


def _require_typed(stack: str, typed: object, *, keeps_bucket: bool) -> None:
    """Raise CommandRefusedError unless the user typed this name and the code for this deletion."""
    answer = accepted(typed)
    if not isinstance(answer, TypedName):
        raise CommandRefusedError(f"Stack {stack} was not deleted: the user declined.")
    if answer.stack_name != stack:
        raise CommandRefusedError(
            f"Stack {stack} was not deleted: the user typed {answer.stack_name[:60]!r}, which is another name."
        )
    if not code_shelf().take(stack, answer.code, _question(stack, keeps_bucket=keeps_bucket)):
        raise CommandRefusedError(
            f"Stack {stack} was not deleted: the code does not belong to this deletion {'without' if keeps_bucket else 'with'} the bucket, was used, "
            f"or is older than {VALID_S // 60} minutes. The user has to run `gemma agent code {stack}` in their own terminal."
        )
