"""`wait` and `cancel`: wait for detached work, or stop it."""

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
        description="The `run` of an answer with `running: true`. status lists them.", pattern=r"^run-[0-9a-f]{1,16}$"
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
            Field(
                description="Maximum wait in seconds. Default: less than most clients allow.", ge=0, le=LONGEST_WAIT_S
            ),
        ] = None,
    ) -> Annotated[CallToolResult, dict[str, Any]]:
        """Wait for work that continues after its call and return its answer, or its state if it takes longer.

        Waiting has no effect on the work, and neither does a cancelled wait. Call it as often as you like.
        """
        with sentences(agent):
            return _result(await agent.runs.wait(context, run, seconds))

    @server.tool(annotations=STOPS)
    async def cancel(run: Handle) -> Annotated[CallToolResult, dict[str, Any]]:
        """Stop work of this server as Ctrl-C does. The engine finishes the operations in progress, writes its state and releases its lock.

        Ask the user first, because the resources created so far remain and cost money.
        """
        with sentences(agent):
            return _result(await agent.runs.cancel(run))


def _result(answer: dict[str, Any]) -> CallToolResult:
    found, ending = CallToolResult.model_validate(answer), ENDING.get()
    if found.is_error and ending is not None:
        ending.failed = True  # the work failed; the wait itself succeeded
    return found
