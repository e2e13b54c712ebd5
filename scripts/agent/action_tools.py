"""Tools that send load or write results. Each exists only if the user allowed it."""

import re
from pathlib import Path
from typing import Annotated, Any, Final

from mcp.server.mcpserver import Context, MCPServer
from pydantic import Field

from contracts.errors import CommandRefusedError
from engine import runner
from scripts.agent.command_tools import Argument, CommandCall, command_tool
from scripts.agent.context import AgentContext, CommandAnswer, sentences
from scripts.agent.hints import ASKS, CHANGES
from scripts.agent.read_tools import STACK_OF_CALL
from scripts.agent.staging import stage_weights

RESULTS: Final = Path(".work") / "agent"
"""Folder of the project for benchmarks."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")

_Tokens = Annotated[int, Field(ge=1, le=262_144)]
"""The longest context of a checkpoint. A prompt is built in memory before it is sent."""

ResultName = Annotated[
    str, Field(description="Name of the results: letters, digits and -.", pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")
]


@command_tool("smoke", {"stack": STACK_OF_CALL}, hint=CHANGES, change="smoke")
async def smoke(call: CommandCall) -> CommandAnswer:
    """Check a deployed server's health, API and speed against the stack's thresholds. Sends about 20 requests."""
    return await call.answer()


@command_tool(
    "bench",
    {
        "stack": STACK_OF_CALL,
        "name": Argument(kind=ResultName, required=True, is_passed=False),
        "concurrency": Argument(
            kind=Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(max_length=12)],
            help="Requests in flight, one point each.",
        ),
        "input_tokens": Argument(kind=_Tokens, help="Tokens of a prompt."),
        "output_tokens": Argument(kind=_Tokens, help="Tokens of a completion."),
        "requests": Argument(kind=Annotated[int, Field(ge=1, le=10_000)], help="Requests of each point."),
    },
    hint=CHANGES,
    change="bench",
)
async def benchmark(call: CommandCall) -> CommandAnswer:
    """Measure a deployed server under load, and store the results under a name. Default: the quick sweep of 8 points."""
    return await call.answer("--out", str(_new_results(call.given["name"])))


def add_action_tools(server: MCPServer[Any], agent: AgentContext) -> None:
    """Register the allowed tools, and those that only read earlier results."""

    @server.tool(annotations=ASKS)
    async def compare_benchmarks(*, context: Context[Any, Any], before: ResultName, after: ResultName) -> CommandAnswer:
        """Compare two benchmarks by name, point by point."""
        with sentences(agent):
            folders = [str(_kept_results(name)) for name in (before, after)]
            return await agent.answer(context, "bench", "compare", *folders)

    for tool in (smoke, benchmark, stage_weights):
        if tool.change in agent.permissions.allowed:
            tool.add(server, agent)


def _folder(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise CommandRefusedError(f"{name[:60]!r} is not a valid results name. Use letters, digits and -.")
    return runner.project_folder() / RESULTS / name


def _new_results(name: str) -> Path:
    folder = _folder(name)
    if folder.exists():
        raise CommandRefusedError(f"Results named {name} already exist. Choose another name.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def _kept_results(name: str) -> Path:
    folder = _folder(name)
    if not folder.is_dir():
        found = sorted(path.name for path in folder.parent.glob("*")) if folder.parent.is_dir() else []
        raise CommandRefusedError(f"Results {name} not found. Existing results: {', '.join(found) or 'none'}.")
    return folder
