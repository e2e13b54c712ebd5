"""Run a task with a driver on a local cloud, and judge it."""

import sys
from dataclasses import dataclass
from typing import Any

import anyio
from mcp import types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.evals.drivers import Driver
from tests.evals.tasks import LIMIT_S, EvalTask, Transcript


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a task ended. `wrong` is empty if it passed."""

    task: str
    wrong: tuple[str, ...]
    transcript: Transcript


async def _decline(_context: Any, _question: Any) -> types.ElicitResult:
    """The person of every evaluation: nothing is deleted."""
    return types.ElicitResult(action="decline")


def evaluate(workspace: Any, task: EvalTask, driver: Driver) -> Verdict:
    """Prepare the task, let the driver do it, and judge what it did."""
    options = ["--allow", task.allow] if task.allow else []
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "scripts.agent", *options],
        env={**workspace.environment, "GOOGLE_CLOUD_PROJECT": "local-project"},
        cwd=str(workspace.folder / "project"),
    )

    async def work() -> Transcript:
        way = stdio_client(server)
        async with Client(way, read_timeout_seconds=LIMIT_S, elicitation_callback=_decline) as client:
            return await driver(client, task)

    with task.prepared(workspace):
        done = anyio.run(work)
        return Verdict(task=task.name, wrong=tuple(task.judge(workspace, done)), transcript=done)
