"""Programs and their end, the skill, the start."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from mcp.client.client import Client

from gemma_serving.scripts.agent import programs
from gemma_serving.scripts.agent.permissions import CHANGES
from gemma_serving.scripts.agent.programs import run_program
from gemma_serving.scripts.agent.server import build

ROOT = Path(__file__).parents[3]


def python(text):
    return [sys.executable, "-c", text]


def test_a_program_tells_its_progress_and_its_end():
    heard = []

    async def hear(lines):
        heard.extend(lines)

    text = "import sys; print('{\"a\": \"hf_secret0123456789\"}'); print('one', file=sys.stderr); print('two', end='', file=sys.stderr); sys.exit(2)"
    found = anyio.run(lambda: run_program(python(text), watch=hear))
    assert heard == ["one", "two"]
    assert (found.exit_code, found.said) == (2, ("one", "two"))
    assert found.document == {"a": "[masked]"}
    assert "hf_secret" not in repr(found)


STUBBORN = """
import os, signal, sys, time
def told(number, _frame):
    print(signal.Signals(number).name, file=sys.stderr, flush=True)
    open(sys.argv[1], "a").write(signal.Signals(number).name + "\\n")
    if number == {last}:
        sys.exit(0)
signal.signal(signal.SIGINT, told)
signal.signal(signal.SIGTERM, told)
open(sys.argv[1], "a").write("ready " + str(os.getpid()) + "\\n")
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("last", "expected"), [(signal.SIGINT, ["SIGINT"]), (signal.SIGTERM, ["SIGINT", "SIGTERM"])])
def test_a_cancelled_call_interrupts_its_program_and_waits_for_its_end(tmp_path, monkeypatch, last, expected):
    monkeypatch.setattr(programs, "INTERRUPT_GRACE_S", 1.0)
    file = tmp_path / "told"

    async def unheard(_lines):
        pass

    async def cancelled():
        argv = [*python(STUBBORN.replace("{last}", str(int(last)))), str(file)]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: run_program(argv, watch=unheard))
            with anyio.fail_after(60):
                while not file.exists() or "ready" not in file.read_text():  # noqa: ASYNC110 - a file
                    await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()

    anyio.run(cancelled)
    pid, *signals = file.read_text().split("\n")[:-1]
    assert signals == expected
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.split()[1]), 0)


# Pages.


def test_the_skill_names_tools_that_exist(bench_of, audit):
    async def words():
        async with Client(build(bench_of(",".join(CHANGES)), audit), elicitation_callback=lambda *_: None) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            return tools, (await client.read_resource("gemma://pages/skill")).contents[0].text

    tools, skill = anyio.run(words)
    called = set(re.findall(r"`([a-z_]+)`", skill))
    assert called & tools >= {
        "plan",
        "preview",
        "up",
        "wait",
        "cancel",
        "logs",
        "doctor",
        "capacity",
        "teardown",
    }
    figures = "headline usd_per_hour usd_per_hour_now is_disruptive waiting_requests kv_use_share"
    words = "active allowed cause document finding metrics note restart run budget missing set summarize tunnel"
    assert called - tools <= set(f"{figures} {words}".split())


# The start.

NOT_AT_START = ("aiohttp", "google", "grpc", "pulumi", "pulumi_gcp", "requests")
"""Packages that take long to import, and that only some calls need."""


def test_the_start_imports_no_package_that_only_some_calls_need():
    """A client waits for it, Codex for 10 s: these take about 0.5 s of a processor, a third of the start."""
    script = f"import sys, gemma_serving.scripts.agent.server; print([name for name in {NOT_AT_START} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
