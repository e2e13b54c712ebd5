"""What the engine says after kills, edited zones and a lost passphrase: the rows of docs/recovery.md that only the real CLI can prove."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.terminal import typed

STACK = "tpu-v6e1"
ZONES = ("us-east5-a", "us-east5-b")
INTERRUPTED = 130
WAITING = "us-east5-a WAITING (zone 1 of 2)"

pytestmark = [pytest.mark.engine, pytest.mark.long]


class Up:
    """A `pulumi up` whose output is read while it runs."""

    def __init__(self, workspace):
        self.text = ""
        self.process = workspace.begin_up(STACK, output=subprocess.PIPE)

    def until(self, words):
        """Read until the engine has said these words."""
        for line in self.process.stdout:
            self.text += line
            if words in line:
                return
        raise AssertionError(f"the engine never said {words}\n{self.text[-3000:]}")

    def end(self):
        """Read to the end, and return all that was said."""
        self.text += self.process.stdout.read()
        self.process.wait()
        return self.text

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def provider_process(workspace):
    """Return the number of our provider's process."""
    command = re.compile(re.escape(f"{workspace.folder}/project/packages/gcp-tpu") + r"\x00127\.0\.0\.1:\d+\x00$")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if command.search(path.read_text()):
                return int(path.parent.name)
        except OSError:
            continue
    raise AssertionError("no provider runs")


@pytest.fixture(scope="module")
def stack(workspace):
    """A stack with two zones that have no capacity."""
    workspace.pulumi("stack", "init", STACK)
    workspace.configure(STACK, **{"tpu.zones": list(ZONES)})
    workspace.wait_for_capacity(STACK)
    workspace.stock(0, *ZONES)
    return workspace


def test_a_request_in_a_zone_that_was_moved_away_from_is_found_after_kills(stack):
    first = Up(stack)
    first.until(WAITING)
    first.kill()
    refused = stack.up(STACK, expect=None)
    assert "the stack is currently locked by 1 lock(s)" in refused.text
    stack.pulumi("cancel", "--yes", "--stack", STACK)
    second = Up(stack)
    second.until(WAITING)
    os.kill(provider_process(stack), signal.SIGKILL)
    assert "exited prematurely" in second.end()
    assert "Attempting to deploy or update resources with 1 pending operations" in second.text
    restore = stack.edit(STACK)
    stack.configure(STACK, **{"tpu.zones": ["us-east5-b"]})
    shown = stack.script("teardown", "--stack", STACK, "--dry-run", expect=1)
    assert "TPU queued resource" in shown.out
    assert "us-east5-a" in shown.out
    restore()
    with typed(stack, sys.executable, "-m", "scripts.gemma", "up", STACK, "--yes") as shown:
        shown.until(lambda one: "(yes/no)" in one.text, "the question")
        shown.answer("yes\n")
        shown.until(lambda one: "WAITING" in one.text, "the wait")
        assert "imported queued resource locations/us-east5-a/" in shown.unwrapped
        assert shown.interrupt() == INTERRUPTED


def test_after_a_lost_passphrase_nothing_stays_and_the_stack_can_be_made_again(stack):
    """The stack may be the recovered one of the test before: `up` goes on with its request."""
    interrupted = Up(stack)
    interrupted.until(WAITING)
    os.killpg(interrupted.process.pid, signal.SIGINT)
    interrupted.until("press ^C again")
    os.killpg(interrupted.process.pid, signal.SIGINT)
    assert "^C received; terminating" in interrupted.end()
    lost = {"PULUMI_CONFIG_PASSPHRASE": "another"}
    refused = stack.script("up", "--stack", STACK, "--yes", expect=2, environment=lost)
    assert "PULUMI_CONFIG_PASSPHRASE is not the passphrase of the state" in " ".join(refused.err.split())
    done = stack.script("teardown", "--stack", STACK, "--yes", "--json", environment=lost)
    assert any("incorrect passphrase" in line for line in done.json["warnings"])
    assert (done.json["leaked"], done.json["unknown"], done.json["state"]) == ([], [], [])
    assert any("although the search read every list and found no resource" in line for line in done.json["warnings"])
    stack.pulumi("stack", "rm", "--preserve-config", "--yes", STACK, environment=lost)
    kept = [line for line in stack.settings(STACK).read_text().splitlines() if not line.startswith("encryptionsalt")]
    stack.settings(STACK).write_text("\n".join(kept))
    stack.pulumi("stack", "init", STACK, environment=lost)
    stack.pulumi("preview", "--stack", STACK, environment=lost)
    assert stack.made(f"gemma-{STACK}") == []
