"""The user's consent to a change: a form of the client, or a code of the user's terminal for clients that show none.

A form's answer is the client's word: its hooks can answer for the user. A code is shown on a terminal only, with the question that it approves.
"""

from typing import Any, cast

from mcp.server.mcpserver import AcceptedElicitation, Context, Elicit
from mcp.types import ClientCapabilities
from pydantic import BaseModel, Field

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine import runner
from gemma_serving.scripts.agent.codes import VALID_S, code_shelf
from gemma_serving.scripts.agent.runs import CURRENT
from gemma_serving.scripts.agent.tools import ToolCall


class Approval(BaseModel):
    """The user's answer to a question about a change."""

    approve: bool = Field(description="Yes to exactly this, at this price.")


def can_prompt(client: ClientCapabilities | None) -> bool:
    """Return whether the client can prompt the user for text. One with only `url` cannot."""
    asks = client.elicitation if client is not None else None
    return asks is not None and (asks.form is not None or asks.url is None)


def approval(context: Context[Any, Any], stack: str, question: str, code: str | None) -> Elicit[Approval] | Approval:
    """Return the question to the user, for which their terminal can create a code, or no approval if a code is given: the guard takes it.

    Raises CommandRefusedError for a client that cannot prompt.
    """
    if code is not None:
        return Approval(approve=False)
    note_question(stack, question)
    if not can_prompt(context.client_capabilities):
        raise CommandRefusedError(f"Your client cannot ask the user: {question} {_by_code(stack)}")
    return Elicit(question, Approval)


def is_open_question() -> bool:
    """Return whether the current call asked the user and changes nothing yet."""
    run = CURRENT.get()
    return run is not None and bool(run.question) and not run.changes_stack


def note_question(stack: str, question: str) -> None:
    """Store a question for the user's terminal and for its answer. Raises CommandRefusedError if it cannot be stored."""
    code_shelf().ask(stack, question)
    if run := CURRENT.get():
        run.question = question


def require_consent(call: ToolCall, question: str) -> None:
    """Raise CommandRefusedError unless the user approved this question, by a form or a code."""
    stack = call.stack
    if call.code is not None:
        if not code_shelf().take(stack, call.code, question):
            raise CommandRefusedError(
                f"The code does not belong to this question, was used, or is older than {VALID_S // 60} minutes. Nothing was changed. "
                f"Call {call.tool.name} without code. {_by_code(stack)}"
            )
        return
    answer = accepted(call.typed)
    if not (isinstance(answer, Approval) and answer.approve):
        raise CommandRefusedError(
            f"The user declined, so nothing was changed. If the client showed no question: {_by_code(stack)}"
        )
    run = CURRENT.get()
    if run is None or run.question != question:
        raise CommandRefusedError(
            f"The question changed while it was open, so nothing was changed. Call {call.tool.name} again."
        )


def accepted(response: object) -> object:
    """Return the data of a response; None if the user declined or closed the question."""
    return cast("AcceptedElicitation[BaseModel]", response).data if isinstance(response, AcceptedElicitation) else None


def _by_code(stack: str) -> str:
    return (
        f"Without a form, the user runs `gemma agent code {stack}` in their own terminal, in {runner.project_folder()}, and tells you "
        "the code: pass it as `code`."
    )
