"""Tools that load or fill: each is there only where the person allowed it."""

import re
from pathlib import Path
from typing import Annotated, Any, Final

from mcp.server.mcpserver import Context, MCPServer
from pydantic import Field

from contracts.errors import CommandRefusedError
from engine import runner
from scripts.agent.hints import ASKS, CHANGES
from scripts.agent.reading import Stack
from scripts.agent.staging import add_staging
from scripts.agent.workbench import CommandAnswer, Workbench, option, sentences

RESULTS: Final = Path(".work") / "agent"
"""Folder of the project in which benchmarks lie."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")

_MOST_TOKENS: Final = 262_144
"""The longest context of a checkpoint. A prompt is made in memory before it is sent."""

ResultName = Annotated[
    str, Field(description="Name of the results: letters, digits and -.", pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")
]


def add_working_tools(server: MCPServer[Any], bench: Workbench) -> None:
    """Register the tools that are allowed, and those that only read what others left."""
    _add_comparison(server, bench)
    for change, add in (
        ("smoke", _add_smoke),
        ("bench", _add_bench),
        ("stage", add_staging),
    ):
        if change in bench.permissions.allowed:
            add(server, bench)


def _add_smoke(server: MCPServer[Any], bench: Workbench) -> None:
    @server.tool(annotations=CHANGES)
    async def smoke(*, context: Context[Any, Any], stack: Stack) -> CommandAnswer:
        """Check a deployed server's health, API and speed against the stack's thresholds. Sends about 20 requests."""
        with sentences(bench):
            bench.require("smoke")
            bench.purse.require_left()
            return await bench.answer(context, "smoke", *option("--stack", stack))


def _add_bench(server: MCPServer[Any], bench: Workbench) -> None:
    @server.tool(annotations=CHANGES)
    async def benchmark(
        *,
        context: Context[Any, Any],
        stack: Stack,
        name: ResultName,
        concurrency: Annotated[
            list[Annotated[int, Field(ge=1, le=4096)]] | None,
            Field(description="Requests in flight, a point each.", max_length=12),
        ] = None,
        input_tokens: Annotated[int | None, Field(description="Tokens of a prompt.", ge=1, le=_MOST_TOKENS)] = None,
        output_tokens: Annotated[int | None, Field(description="Tokens of an answer.", ge=1, le=_MOST_TOKENS)] = None,
        requests: Annotated[int | None, Field(description="Requests of each point.", ge=1, le=10_000)] = None,
    ) -> CommandAnswer:
        """Measure a deployed server under load, and keep the results under a name. Without figures: the quick sweep of 8 points."""
        with sentences(bench):
            bench.require("bench")
            bench.purse.require_left()
            words = [*option("--stack", stack), "--out", str(_new_results(name))]
            words += [*option("--input-tokens", input_tokens), *option("--output-tokens", output_tokens)]
            levels = ",".join(f"{level}" for level in concurrency or [])
            return await bench.answer(
                context, "bench", *words, *option("--concurrency", levels or None), *option("--requests", requests)
            )


def _add_comparison(server: MCPServer[Any], bench: Workbench) -> None:
    @server.tool(annotations=ASKS)
    async def compare_benchmarks(*, context: Context[Any, Any], before: ResultName, after: ResultName) -> CommandAnswer:
        """Compare two benchmarks by their names, point by point."""
        with sentences(bench):
            folders = [str(_kept_results(name)) for name in (before, after)]
            return await bench.answer(context, "bench", "compare", *folders)


def _folder(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise CommandRefusedError(f"{name[:60]!r} is no name of results; use letters, digits and -.")
    return runner.project_folder() / RESULTS / name


def _new_results(name: str) -> Path:
    folder = _folder(name)
    if folder.exists():
        raise CommandRefusedError(f"There are results of the name {name} already; choose another name.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def _kept_results(name: str) -> Path:
    folder = _folder(name)
    if not folder.is_dir():
        found = sorted(path.name for path in folder.parent.glob("*")) if folder.parent.is_dir() else []
        raise CommandRefusedError(f"There are no results of the name {name}; there are: {', '.join(found) or 'none'}.")
    return folder
