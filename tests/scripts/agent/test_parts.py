"""Programs and their end, the skill, the start."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from mcp.client.client import Client

from gemma_serving.engine.backend import memory
from gemma_serving.scripts.agent import programs
from gemma_serving.scripts.agent.permissions import CHANGES
from gemma_serving.scripts.agent.programs import run_program
from gemma_serving.scripts.agent.tool_server import build
from gemma_serving.scripts.stack.old_limits import old_limits
from tests.polling import until

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


WORKS = """
import os, signal, sys, time
def told(number, _frame):
    write(signal.Signals(number).name)
    if number == {last}:
        time.sleep(0.3)
        write("ended")
        sys.exit(130)
def write(word):
    with open(sys.argv[1], "a") as file:
        file.write(word + "\\n")
signal.signal(signal.SIGINT, told)
signal.signal(signal.SIGTERM, told)
write("works " + str(os.getpid()))
while True:
    time.sleep(0.05)
"""
"""A program that writes down the signals that it gets, and ends at the last one."""


@pytest.mark.parametrize(
    ("last", "expected"), [(signal.SIGINT, ["SIGINT", "ended"]), (signal.SIGTERM, ["SIGINT", "SIGTERM", "ended"])]
)
def test_a_cancelled_call_interrupts_its_program_and_waits_for_its_end(tmp_path, monkeypatch, last, expected):
    monkeypatch.setattr(programs, "INTERRUPT_GRACE_S", 1.0)
    file = tmp_path / "told"

    async def unheard(_lines):
        pass

    async def cancelled():
        argv = [*python(WORKS.replace("{last}", str(int(last)))), str(file)]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: run_program(argv, watch=unheard))
            with anyio.fail_after(60):
                while not file.exists() or "works" not in file.read_text():  # noqa: ASYNC110 - a file
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
    words = "active allowed cause code document finding metrics note restart run budget missing set summarize tunnel"
    assert called - tools <= set(f"{figures} {words}".split())


# The start.


def test_each_limit_in_hours_of_an_earlier_commit_is_named_once(monkeypatch, tmp_path):
    """Only a record that only this user can have written is one, and its name becomes part of a printed command."""
    monkeypatch.chdir(tmp_path)
    records = memory()
    for stack in ("l4-qat", "of-others", "x;y", "tpu"):
        records.write(f"limit-{stack}.json", "{}")
    records.path("limit-of-others.json").chmod(0o666)
    said = "An assistant deployed stack {0} with a limit in hours, which nothing enforces any more. To delete the stack, run `gemma teardown {0}`."
    assert [*old_limits("tpu")] == [said.format("tpu")]
    assert [*old_limits()] == [said.format("l4-qat")]
    assert [*old_limits()] == []
    assert records.stacks("limit-") == ["of-others", "x;y"]


NOT_AT_START = ("aiohttp", "google", "grpc", "pulumi", "pulumi_gcp", "requests")
"""Packages that take long to import, and that only some calls need."""


def test_the_start_imports_no_package_that_only_some_calls_need():
    """A client waits for it, Codex for 10 s: these take about 0.5 s of a processor, a third of the start."""
    script = f"import sys, gemma_serving.scripts.agent.tool_server; print([name for name in {NOT_AT_START} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# How a server ends: SIGTERM and Ctrl-C while a call runs, the client still there. The command that runs gets what Ctrl-C sends.


ROOT = Path(__file__).parents[3]
LIMIT_S = 120
SERVER = """
import sys
import gemma_serving.scripts.agent.context as workbench
workbench.product_program = lambda *_: [sys.executable, "-c", sys.argv[1], sys.argv[2]]
from gemma_serving.scripts.agent.__main__ import COMMAND
from gemma_serving.scripts.cli.command import run_command
sys.exit(run_command(COMMAND, sys.argv[3:]))
"""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "status", "arguments": {}}}
LEFT = {
    "jsonrpc": "2.0",
    "id": 3,
    "method": "tools/call",
    "params": {"name": "smoke", "arguments": {"stack": "l4-qat"}},
}


@pytest.fixture
def server(tmp_path):
    started = []

    def start(*options):
        words = [str(tmp_path / "told"), "--audit", str(tmp_path / "audit"), *options]
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, WORKS.replace("{last}", str(int(signal.SIGINT))), *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended_by(process, number, told):
    """Send a signal when the command works, and return the client's messages and the server's last output."""
    until(lambda: told.exists() and told.read_text(), "the command works", process=process)
    process.send_signal(number)
    process.wait(LIMIT_S)
    return re.sub(r" \d+", "", told.read_text()).split(), process.stderr.read()


@pytest.mark.parametrize(
    ("number", "message", "recorded"),
    [
        (signal.SIGTERM, LEFT, ["begun", "left", "cancelled"]),
        pytest.param(signal.SIGINT, CALL, ["begun", "left", "cancelled"], marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_a_server_whose_client_keeps_its_input_open(server, tmp_path, number, message, recorded):
    """Also work whose call was answered long ago."""
    process = server("--allow", "smoke", "--answer-within", "0")
    for each in (INITIALIZE, READY, message):
        process.stdin.write(json.dumps(each) + "\n")
        process.stdin.flush()
    if message is LEFT:
        answer = next(line for line in process.stdout if json.loads(line).get("id") == LEFT["id"])
        assert json.loads(answer)["result"]["structuredContent"]["running"]
    heard, said = ended_by(process, number, tmp_path / "told")
    assert heard == ["works", "SIGINT", "ended"]
    assert process.returncode == 130, said
    assert "interrupted. Running work was interrupted as by Ctrl-C" in said
    assert ("stopping smoke of stack l4-qat" in said) == (message is LEFT)
    assert outcomes(tmp_path) == recorded


def outcomes(tmp_path):
    return [json.loads(line)["outcome"] for line in (tmp_path / "audit").read_text().splitlines()]
