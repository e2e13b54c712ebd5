"""`wait` and `cancel`: come back to work that was left, or end it."""

from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult
from pydantic import Field

from scripts.agent.context import ENDING, AgentContext, sentences
from scripts.agent.hints import ASKS, STOPS
from scripts.agent.limits import LONGEST_WAIT_S

Handle = Annotated[
    str,
    Field(
        description="The `run` of an answer with `running: true`; status lists them.", pattern=r"^run-[0-9a-f]{1,16}$"
    ),
]


def add_waiting_tools(server: MCPServer[Any], agent: AgentContext) -> None:
    """Register the tools."""

    @server.tool(annotations=ASKS)
    async def wait(
        *,
        context: Context[Any, Any],
        run: Handle,
        seconds: Annotated[
            float | None,
            Field(description="Longest wait; without it, less than most clients allow.", ge=0, le=LONGEST_WAIT_S),
        ] = None,
    ) -> Annotated[CallToolResult, dict[str, Any]]:
        """Wait for work that continues after its call, and return its answer as its own tool would have; where it is if it takes longer.

        Waiting, and giving a wait up, changes nothing: the work continues. Call it again as often as you like.
        """
        with sentences(agent):
            return _result(await agent.runs.wait(context, run, seconds))

    @server.tool(annotations=STOPS)
    async def cancel(run: Handle) -> Annotated[CallToolResult, dict[str, Any]]:
        """Stop work of this server as Ctrl-C does: the engine finishes the calls that it has begun, writes its state and gives its lock up.

        Ask the person first: what was made so far remains, and costs money.
        """
        with sentences(agent):
            return _result(await agent.runs.cancel(run))


def _result(answer: dict[str, Any]) -> CallToolResult:
    found, ending = CallToolResult.model_validate(answer), ENDING.get()
    if found.is_error and ending is not None:
        ending.failed = True  # the work failed, and the wait for it was not refused
    return found
