"""How a server ends: SIGTERM and Ctrl-C while a call runs, the client still there. The command that runs gets what Ctrl-C sends."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from engine.private_folders import remove_left_folders

ROOT = Path(__file__).parents[3]
LIMIT_S = 120
SERVER = """
import sys
import scripts.agent.context as workbench
workbench.script = lambda *_: [sys.executable, "-c", sys.argv[1], sys.argv[2]]
from scripts.agent.__main__ import COMMAND
from scripts.cli.command import run_command
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
    end = time.monotonic() + LIMIT_S
    while not (told.exists() and told.read_text()):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(number)
    process.wait(LIMIT_S)
    return re.sub(r" \d+", "", told.read_text()).split(), process.stderr.read()


@pytest.mark.parametrize(
    ("number", "message", "recorded"),
    [
        (signal.SIGTERM, LEFT, ["begun", "left", "cancelled"]),
        pytest.param(signal.SIGINT, CALL, ["begun", "cancelled"], marks=pytest.mark.long),
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


def test_a_killed_server_leaves_a_folder_that_the_next_one_removes(server, tmp_path, monkeypatch):
    """Its command goes on and writes there: the folder stays until the command has ended."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "gemma-private-not-ours").mkdir()
    (tmp_path / "tmp" / "gemma-private-link").symlink_to(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    process = server()
    for message in (INITIALIZE, READY, CALL):
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
    ended_by(process, signal.SIGKILL, tmp_path / "told")
    (left,) = (path.parent for path in (tmp_path / "tmp").glob("gemma-private-*/.in-use"))
    assert remove_left_folders() == 0  # the command still works
    assert list(left.glob("files/said"))
    command = int((tmp_path / "told").read_text().split()[1])
    os.kill(command, signal.SIGINT)
    end = time.monotonic() + LIMIT_S
    while not remove_left_folders():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert sorted(path.name for path in (tmp_path / "tmp").iterdir()) == [
        "gemma-private-link",
        "gemma-private-not-ours",
    ]
    assert (tmp_path / "told").exists()


def outcomes(tmp_path):
    return [json.loads(line)["outcome"] for line in (tmp_path / "audit").read_text().splitlines()]
