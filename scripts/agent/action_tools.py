"""Tools that send load or compare results, and those that wait for the work of a call, or stop it."""

import re
from pathlib import Path
from typing import Annotated, Final

from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine import runner
from gemma_serving.scripts.agent.command_tools import Argument, CommandCall, CommandTool, Own, command_tool
from gemma_serving.scripts.agent.context import ASKS, CHANGES, Answer
from gemma_serving.scripts.agent.permissions import LONGEST_WAIT_S
from gemma_serving.scripts.agent.read_tools import STACK_OF_CALL

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
STOPS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
_HANDLE: Final = Own(
    "The `run` of an answer with `running: true`. status lists them.",
    Annotated[str, Field(pattern=r"^run-[0-9a-f]{1,16}$")],
    required=True,
)
_NAMED: Final = Own("Name of the results: letters, digits and -.", str, required=True)
_Tokens = Annotated[int, Field(ge=1, le=262_144)]
"""The longest context of a checkpoint. A prompt is built in memory before it is sent."""

smoke: Final = CommandTool(
    name="smoke",
    command="smoke",
    takes={"stack": STACK_OF_CALL},
    description="Check a deployed server's health, API and speed against the stack's thresholds. Sends about 20 requests.",
    hint=CHANGES,
    change="smoke",
)


@command_tool(
    "bench",
    {
        "stack": STACK_OF_CALL,
        "name": _NAMED,
        "concurrency": Argument(
            "Requests in flight, one point each.",
            Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(max_length=12)],
        ),
        "input_tokens": Argument("Tokens of a prompt.", _Tokens),
        "output_tokens": Argument("Tokens of a completion.", _Tokens),
        "requests": Argument("Requests of each point.", Annotated[int, Field(ge=1, le=10_000)]),
    },
    hint=CHANGES,
    change="bench",
)
async def benchmark(call: CommandCall) -> Answer:
    """Measure a deployed server under load. The results get a name. Default: the quick sweep of 8 points."""
    name = call.given["name"]
    folder = _folder(name)
    if folder.exists():
        raise CommandRefusedError(f"Results named {name} already exist. Choose another name.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    return await call.answer("--out", str(folder))


@command_tool("bench", {"before": _NAMED, "after": _NAMED}, hint=ASKS)
async def compare_benchmarks(call: CommandCall) -> Answer:
    """Compare two benchmarks by name, point by point."""
    return await call.answer("compare", *(str(_folder(call.given[name])) for name in ("before", "after")))


def _folder(name: str) -> Path:
    """Return the folder of a benchmark's results. Raises CommandRefusedError for another name."""
    if not _NAME.fullmatch(name):
        raise CommandRefusedError(f"{name[:60]!r} is not a valid results name. Use letters, digits and -.")
    return runner.project_folder() / ".work" / "agent" / name


@command_tool(
    "",
    {
        "run": _HANDLE,
        "seconds": Own(
            "Maximum wait in seconds. Default: less than most clients allow.",
            Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)],
        ),
    },
    hint=ASKS,
)
async def wait(call: CommandCall) -> CallToolResult:
    """Wait for work that continues after its call and return its answer, or its state if it takes longer.

    Waiting has no effect on the work. Call it as often as you like.
    """
    answer = await call.agent.runs.wait(call.context, call.given["run"], call.given["seconds"])
    return CallToolResult.model_validate(answer)


@command_tool("", {"run": _HANDLE}, hint=STOPS)
async def cancel(call: CommandCall) -> CallToolResult:
    """Stop work of this server as Ctrl-C does. The engine finishes the operations in progress.

    Confirm with the user first: the resources created so far remain and cost money.
    """
    return CallToolResult.model_validate(await call.agent.runs.cancel(call.given["run"]))
