"""The process that deletes a service: at the limit, when the server ends in any way, and never what a user deployed."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine import runner
from gemma_serving.engine.runner import PulumiFailedError
from gemma_serving.scripts.agent import keeper
from gemma_serving.scripts.agent.keeper import Keepers
from gemma_serving.scripts.stack.unfinished_teardown import LIMITS, forget
from tests.polling import LIMIT_S, until

ROOT = Path(__file__).parents[3]
STACK = "l4-qat"
HOURS = 2.0
SERVER = f"""
import sys, time
from gemma_serving.scripts.agent.keeper import Keepers
keepers = Keepers()
keepers.keep("{STACK}", {HOURS})
print("kept", flush=True)
time.sleep(600)
"""
TEARDOWN = """
import os, sys
from pathlib import Path
with Path("calls").open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
fails = Path("fails")
if fails.exists():
    if fails.read_text() == "once":
        fails.unlink()
    sys.exit(1)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project whose `teardown` only writes down its options."""
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\n")
    (tmp_path / "gemma_serving").symlink_to(ROOT / "gemma_serving")
    (tmp_path / "packages").symlink_to(ROOT / "packages")
    folder = tmp_path / "scripts" / "teardown"
    folder.mkdir(parents=True)
    for path, text in (
        (folder.parent / "__init__.py", ""),
        (folder / "__init__.py", ""),
        (folder / "__main__.py", TEARDOWN),
    ):
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(runner, "project_folder", lambda: tmp_path)
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}")  # without a stack
    monkeypatch.setattr("gemma_serving.scripts.stack.unfinished_teardown.project_folder", lambda: tmp_path)
    return tmp_path


def calls(project):
    path = project / "calls"
    return path.read_text().splitlines() if path.exists() else []


def ended(project):
    until(lambda: not (project / LIMITS / STACK).exists(), "the end of the limit")
    return calls(project)


DELETED = [f"--stack {STACK} --yes --keep-bucket"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_is_killed_leaves_a_process_that_deletes_the_stack(project, number):
    """Also if the client kills the process group of its server."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], cwd=project, stdout=subprocess.PIPE, process_group=0)
    assert server.stdout.readline() == b"kept\n"
    assert calls(project) == []
    os.killpg(server.pid, number)
    server.wait()
    assert ended(project) == DELETED


def test_the_limit_ends_it_while_the_server_runs(project):
    keepers = Keepers()
    keepers.keep(STACK, 1 / 3600)
    assert ended(project) == DELETED
    until(lambda: not keepers.has(STACK), "its end")


def test_a_change_of_the_stack_does_not_extend_the_limit(project):
    keepers = Keepers()
    keepers.keep(STACK, HOURS)
    process = keepers._started[STACK]
    assert keepers.has(STACK)
    keepers.keep(STACK, 2 * HOURS)
    assert keepers._started[STACK] is process
    forget(STACK)
    process.wait(LIMIT_S)


def test_a_stack_that_a_user_deployed_or_deleted_is_left_alone(project):
    keepers = Keepers()
    keepers.keep(STACK, HOURS)
    forget(STACK)  # as `gemma up` and `gemma teardown` do
    process = keepers._started[STACK]
    assert process.wait(LIMIT_S) == 0
    assert not keepers.has(STACK)
    assert calls(project) == []


def test_two_servers_do_not_limit_one_stack(project):
    first = Keepers()
    first.keep(STACK, HOURS)
    with pytest.raises(
        CommandRefusedError, match=f"Another assistant in this folder enforces a limit of stack {STACK}"
    ):
        Keepers().keep(STACK, HOURS)
    Keepers().resume()
    time.sleep(keeper.POLL_S * 2)  # a second process would act within one interval
    assert calls(project) == []
    forget(STACK)
    first._started[STACK].wait(LIMIT_S)


def test_the_next_server_deletes_what_a_killed_process_left(project):
    first = Keepers()
    first.keep(STACK, HOURS)
    first._started[STACK].kill()
    first._started[STACK].wait()
    assert not first.has(STACK)
    (project / "fails").touch()
    second = Keepers()
    second.resume()
    until(lambda: calls(project) == DELETED, "an attempt")
    assert (project / LIMITS / STACK).exists()
    second._started[STACK].kill()
    second._started[STACK].wait()


def test_a_deletion_that_fails_is_tried_again(project, monkeypatch):
    (project / "fails").write_text("once")
    (project / LIMITS).mkdir(parents=True)
    (project / LIMITS / STACK).touch()
    monkeypatch.setattr(runner, "query", lambda _words: "[]")
    monkeypatch.setattr(keeper, "RETRY_S", 0.0)
    assert keeper.main(STACK, 0.0, 0.0)
    assert calls(project) == DELETED * 2
    assert not (project / LIMITS / STACK).exists()


def history(*updates):
    rows = [
        {"kind": kind, "message": message, "startTime": f"2026-11-27T1{hour}:00:00.000Z"}
        for kind, message, hour in updates
    ]
    return lambda words: json.dumps(rows) if words[:2] == ["stack", "history"] else pytest.fail("another question")


BEGAN_S = datetime(2026, 11, 27, 15, tzinfo=UTC).timestamp()
OURS = ("update", "plan-0123456789abcdef", 6)


@pytest.mark.parametrize(
    ("updates", "is_deleted"),
    [
        ([OURS], True),
        ([OURS, ("update", "", 4)], True),  # staging, or a user's earlier deployment
        ([], True),  # the engine was killed before it wrote its history
        ([("resource-import", "", 7), OURS], True),
        ([("update", "", 7), OURS], False),
        ([OURS, ("update", "by hand", 5)], False),
    ],
)
def test_a_stack_that_a_user_deployed_elsewhere_since_then_stays(project, monkeypatch, updates, is_deleted):
    """The file of the limit is in the folder of the assistant. The backend's history knows all users."""
    (project / LIMITS).mkdir(parents=True)
    (project / LIMITS / STACK).touch()
    monkeypatch.setattr(runner, "query", history(*updates))
    assert keeper.main(STACK, 0.0, BEGAN_S)
    assert calls(project) == (DELETED if is_deleted else [])
    assert not (project / LIMITS / STACK).exists()


def test_an_unknown_history_deletes_nothing_and_is_read_again(project, monkeypatch):
    (project / LIMITS).mkdir(parents=True)
    (project / LIMITS / STACK).touch()
    answers = iter([PulumiFailedError("Pulumi is not logged in.", ""), None])

    def query(_words):
        if error := next(answers):
            raise error
        return "[]"

    monkeypatch.setattr(runner, "query", query)
    monkeypatch.setattr(keeper, "RETRY_S", 0.0)
    assert keeper.main(STACK, 0.0, BEGAN_S)
    assert calls(project) == DELETED
