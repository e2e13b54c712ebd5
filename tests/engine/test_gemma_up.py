"""`gemma up` in a terminal of 80 columns, after a failure of Google's and while it waits. tests/engine/test_new_project.py has the rest."""

import re
import sys

import pytest

from tests.engine.conftest import CAPACITY
from tests.engine.terminal import typed

FAILED = "tpu-v6e4-e4b"
OTHER = "tpu-v6e1-e4b"

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_after_a_500_recover_stands_first_and_repairs_the_stack(workspace):
    workspace.pulumi("stack", "init", FAILED)
    lost = {"method": "iam.projects.serviceAccounts.create", "status": 500, "when": "after", "count": 30}
    up = (sys.executable, "-m", "scripts.gemma", "up", FAILED, "--yes")
    for faults in ([lost], []):
        workspace.change_scenario({"faults": faults})
        failed = workspace.run(*up, expect=1)
        last = failed.err.splitlines()[-1]
        assert last.startswith(f"up: Run `gemma recover {FAILED}` first, because Google may have")
        assert f"Run `gemma recover {FAILED}`, then `gemma up {FAILED}`. " in failed.err
    workspace.script("recover", "--stack", FAILED, "--yes")
    workspace.run(*up)
    workspace.teardown(FAILED)


def test_the_wait_is_shown_in_a_second_terminal_too_and_an_interrupt_keeps_the_request_in_the_state(workspace):
    workspace.pulumi("stack", "init", OTHER)
    workspace.wait_for_capacity(OTHER)
    workspace.stock(0)
    watch = (sys.executable, "-m", "scripts.status", "--stack", OTHER, "--watch", "--interval", "1")
    with typed(workspace, sys.executable, "-m", "scripts.gemma", "up", OTHER, "--yes") as shown:
        shown.until(lambda it: re.search(r"/24h us-east5-a WAITING", it.text), "the wait")
        first = shown.line_with("QueuedResource")
        assert re.match(r"\d+:\d\d:\d\d \d+ of \d+: creating ", first), first
        with typed(workspace, *watch, lines=60) as second:
            second.until(lambda it: "us-east5-a: WAITING" in it.unwrapped, "the wait")
            assert "WAITING" in second.line_with(f"{OTHER} ")
            assert second.interrupt() == 130
            assert "Traceback" not in second.text
        assert shown.interrupt() == 130, shown.text
        assert "and cost $1.35/h. Run `gemma up" in " ".join(shown.text.split())
    assert len(workspace.resources(OTHER, CAPACITY)) == 1
    workspace.pulumi("destroy", "--yes", "--skip-preview", "--stack", OTHER)
