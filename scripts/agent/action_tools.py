"""Tools that send load or write results, and that read earlier results."""

import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from contracts.errors import CommandRefusedError
from engine import runner
from scripts.agent.command_tools import Argument, CommandCall, Own, command_tool, plain_tool
from scripts.agent.context import ASKS, CHANGES, CommandAnswer
from scripts.agent.read_tools import STACK_OF_CALL

RESULTS: Final = Path(".work") / "agent"
"""Folder of the project for benchmarks."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")

_Tokens = Annotated[int, Field(ge=1, le=262_144)]
"""The longest context of a checkpoint. A prompt is built in memory before it is sent."""

ResultName = Annotated[
    str, Field(description="Name of the results: letters, digits and -.", pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")
]


smoke: Final = plain_tool(
    "smoke",
    {"stack": STACK_OF_CALL},
    "Check a deployed server's health, API and speed against the stack's thresholds. Sends about 20 requests.",
    hint=CHANGES,
    change="smoke",
)


@command_tool(
    "bench",
    {
        "stack": STACK_OF_CALL,
        "name": Own(kind=ResultName, required=True),
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
async def benchmark(call: CommandCall) -> CommandAnswer:
    """Measure a deployed server under load. The results get a name. Default: the quick sweep of 8 points."""
    return await call.answer("--out", str(_new_results(call.given["name"])))


@command_tool(
    "bench",
    {name: Own(kind=ResultName, required=True) for name in ("before", "after")},
    hint=ASKS,
)
async def compare_benchmarks(call: CommandCall) -> CommandAnswer:
    """Compare two benchmarks by name, point by point."""
    return await call.answer("compare", *(str(_kept_results(call.given[name])) for name in ("before", "after")))


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
