"""What the engine says after kills, edited zones and a lost passphrase: the rows of docs/recovery.md that only the real CLI can prove."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

STACK = "tpu-v6e1"
ZONES = ("us-east5-a", "us-east5-b")
WAITING = "us-east5-a WAITING (zone 1 of 2)"

pytestmark = [pytest.mark.engine, pytest.mark.long]


class Up:
    """A `pulumi up` whose output is read while it runs."""

    def __init__(self, workspace):
        self.text = ""
        self.process = subprocess.Popen(
            [workspace.engine, "up", "--yes", "--skip-preview", "--non-interactive", "--stack", STACK],
            cwd=workspace.folder / "project",
            env=workspace.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

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
    text = settings(workspace).read_text()
    settings(workspace).write_text(re.sub(r"zones: \[.*]", f"zones: [{', '.join(ZONES)}]", text))
    workspace.wait_for_capacity(STACK)
    none = {"accelerator_types": ["v6e-1"], "flex_start": True, "capacity": {"v6e-1": 0}}
    workspace.change_scenario({"tpu": {"zones": dict.fromkeys(ZONES, none)}})
    return workspace


def settings(workspace):
    return workspace.folder / "project" / f"Pulumi.{STACK}.yaml"


def test_a_request_in_a_zone_that_was_moved_away_from_is_found_after_kills(stack):
    first = Up(stack)
    first.until(WAITING)
    first.kill()
    refused = stack.pulumi("up", "--yes", "--skip-preview", "--stack", STACK, expect=None)
    assert "the stack is currently locked by 1 lock(s)" in refused.text
    stack.pulumi("cancel", "--yes", "--stack", STACK)
    second = Up(stack)
    second.until(WAITING)
    os.kill(provider_process(stack), signal.SIGKILL)
    assert "exited prematurely" in second.end()
    assert "Attempting to deploy or update resources with 1 pending operations" in second.text
    text = settings(stack).read_text()
    settings(stack).write_text(text.replace("zones: [us-east5-a, us-east5-b]", "zones: [us-east5-b]"))
    shown = stack.script("teardown", "--stack", STACK, "--dry-run", expect=1)
    assert "TPU queued resource" in shown.out
    assert "us-east5-a" in shown.out
    report = stack.script("recover", "--stack", STACK, "--yes", "--json").json
    settings(stack).write_text(text)
    assert "queued resource" in {each["kind"] for each in report["imported"]}


def test_after_a_lost_passphrase_nothing_stays_and_the_stack_can_be_made_again(stack):
    """The stack may be the recovered one of the test before: `up` goes on with its request."""
    interrupted = Up(stack)
    interrupted.until(WAITING)
    os.killpg(interrupted.process.pid, signal.SIGINT)
    interrupted.until("press ^C again")
    os.killpg(interrupted.process.pid, signal.SIGINT)
    assert "^C received; terminating" in interrupted.end()
    lost = {"PULUMI_CONFIG_PASSPHRASE": "another"}
    refused = stack.script("recover", "--stack", STACK, "--yes", expect=1, environment=lost)
    assert "cannot be decrypted. Set PULUMI_CONFIG_PASSPHRASE" in refused.err
    done = stack.script("teardown", "--stack", STACK, "--yes", "--json", environment=lost)
    assert "incorrect passphrase" in done.err
    assert (done.json["leaked"], done.json["unknown"], done.json["state"]) == ([], [], [])
    assert any("although the search read every list and found no resource" in line for line in done.json["warnings"])
    stack.pulumi("stack", "rm", "--preserve-config", "--yes", STACK, environment=lost)
    kept = [line for line in settings(stack).read_text().splitlines() if not line.startswith("encryptionsalt")]
    settings(stack).write_text("\n".join(kept))
    stack.pulumi("stack", "init", STACK, environment=lost)
    stack.pulumi("preview", "--stack", STACK, environment=lost)
    assert not [row for row in stack.admin("resources")["resources"] if f"gemma-{STACK}" in row["name"]]
