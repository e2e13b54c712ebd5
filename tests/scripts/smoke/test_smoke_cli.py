import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.smoke.__main__ import COMMAND, _progress
from gemma_serving.scripts.smoke.checks import AGENT_CHECKS, CHECKS
from tests.scripts.terminal import Terminal

ROOT = Path(__file__).parents[3]
SERVER = ("--url", "http://127.0.0.1:9", "--model", "m")


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.smoke", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_stdout_has_only_json(served, capsys):
    code = run_command(COMMAND, ["--url", served.url, "--agent", "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    report = json.loads(said.out)
    assert report["model"] == "simulated/tiny", "the first that the server lists"
    assert report["passed"] is True
    assert report["simulated"] == "vllm"
    assert [check["name"] for check in report["checks"]] == [check.name for check in (*CHECKS, *AGENT_CHECKS)]


def test_an_interruption_ends_at_once_with_what_is_known():
    process = start("--url", "http://127.0.0.1:9", "--model", "m", "--ready-budget-s", "600", "--json")
    assert process.stderr is not None
    process.stderr.readline()  # it waits for the server
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    report = json.loads(output)
    assert report["interrupted"] is True
    assert {check["verdict"] for check in report["checks"]} == {"not run"}


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_an_interruption_in_the_middle_of_a_check_leaves_a_whole_report_and_no_traceback(served, number):
    served.plant({"silent": True})
    process = start("--url", served.url, "--model", "simulated/tiny", "--json")
    assert process.stderr is not None
    assert any("chat" in line for line in process.stderr), "the first check that asks the model"
    os.killpg(process.pid, number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "never retrieved" not in errors
    report = json.loads(output)
    assert report["interrupted"] is True
    verdicts = [check["verdict"] for check in report["checks"]]
    assert verdicts[0] == "passed"
    assert verdicts[-1] == "not run"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--url", "http://localhost:9", "--model", "m"], "Use 127.0.0.1"),
        (["--url", "nonsense", "--model", "m"], "--url is 'nonsense'"),
        ([*SERVER, "--features", '{"image": 2}'], "--features has an unknown key: image."),
        ([*SERVER, "--features", '{"images": "2"}'], "images is '2'; it must be a whole number"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(words, message, capsys):
    assert run_command(COMMAND, words) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_progress_takes_one_line_of_a_terminal(columns, monkeypatch):
    """A longer one would be wrapped, and the next could replace its last line only."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stderr", Terminal())
    _progress("waiting for the server " * 20)
    shown = sys.stderr.getvalue().removeprefix("\r\033[K")
    assert shown.startswith("smoke: waiting for the server")
    assert len(shown) == columns - 1
