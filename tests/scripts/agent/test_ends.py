"""How a server ends: SIGTERM and Ctrl-C while a call runs, the client still there. The command that runs gets what Ctrl-C sends."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.polling import until

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
WORKS = """
import os, signal, sys, time
def told(number, _frame):
    write(signal.Signals(number).name)
    time.sleep(0.3)
    write("ended")
    sys.exit(130)
def write(word):
    with open(sys.argv[1], "a") as file:
        file.write(word + "\\n")
signal.signal(signal.SIGINT, told)
write("works " + str(os.getpid()))
while True:
    time.sleep(0.05)
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
            [sys.executable, "-c", SERVER, WORKS, *words],
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
