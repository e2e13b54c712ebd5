"""`wait` and `cancel`: wait for detached work, or stop it."""

from typing import Annotated, Any, Final

from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field

from scripts.agent.command_tools import CommandCall, Own, command_tool
from scripts.agent.context import ASKS
from scripts.agent.permissions import LONGEST_WAIT_S

STOPS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
_HANDLE: Final = Own(
    "The `run` of an answer with `running: true`. status lists them.",
    Annotated[str, Field(pattern=r"^run-[0-9a-f]{1,16}$")],
    required=True,
)
_SECONDS: Final = Own(
    "Maximum wait in seconds. Default: less than most clients allow.",
    Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)],
)


@command_tool("", {"run": _HANDLE, "seconds": _SECONDS}, hint=ASKS)
async def wait(call: CommandCall) -> Annotated[CallToolResult, dict[str, Any]]:
    """Wait for work that continues after its call and return its answer, or its state if it takes longer.

    Waiting has no effect on the work, and neither does a cancelled wait. Call it as often as you like.
    """
    answer = await call.agent.runs.wait(call.context, call.given["run"], call.given["seconds"])
    return CallToolResult.model_validate(answer)


@command_tool("", {"run": _HANDLE}, hint=STOPS)
async def cancel(call: CommandCall) -> Annotated[CallToolResult, dict[str, Any]]:
    """Stop work of this server as Ctrl-C does. The engine finishes the operations in progress, writes its state and releases its lock.

    Ask the user first, because the resources created so far remain and cost money.
    """
    return CallToolResult.model_validate(await call.agent.runs.cancel(call.given["run"]))
