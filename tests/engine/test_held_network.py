"""A stack with Direct VPC is torn down, deployed again and finished while Google holds its network: the real engine and the real commands."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.engine.conftest import open_workspace, until

STACK = "l4-12b-qat"
HELD = re.compile(r"Held by Google until about \d\d:\d\d, \$0: subnetwork gemma-l4-12b-qat, network gemma-l4-12b-qat\.")
NETWORKS = ["gcp:compute/network:Network", "gcp:compute/subnetwork:Subnetwork"]

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A cloud whose two hours are longer than the test: 20 minutes."""
    with open_workspace(tmp_path_factory.mktemp("workspace"), "--speed", "6") as opened:
        opened.configure(STACK, **{"cloudRun.directVpc": True})
        yield opened


def deploy(workspace):
    """Deploy the stack with its weights: the first `up` makes the state, `stage_model` the bucket."""
    workspace.script("up", "--stack", STACK, "--yes", expect=None)
    workspace.stage(STACK)
    workspace.script("up", "--stack", STACK, "--yes")


def networks(workspace):
    return sorted(item["type"] for item in workspace.resources(STACK, "gcp:compute/"))


def test_a_held_network_is_kept_used_again_and_deleted(workspace, subtests):
    deploy(workspace)
    with subtests.test("right after"):
        done = workspace.script("teardown", "--stack", STACK, "--yes")
        assert HELD.search(done.out)
        assert "pulumi destroy" not in done.text
        assert networks(workspace) == NETWORKS
        assert len([item for item in workspace.resources(STACK) if item["custom"]]) <= 4  # and a provider
    with subtests.test("killed in the held time, and again without a question"):
        waiting = workspace.begin(sys.executable, "-m", "scripts.teardown", "--stack", STACK, "--wait")
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(8)
        os.killpg(waiting.pid, signal.SIGKILL)
        assert HELD.search(workspace.script("teardown", "--stack", STACK).out)
        assert re.search(
            r"Deleted\. Google holds its network until about \d\d:\d\d, \$0\.", workspace.script("gemma").out
        )
        receipt = workspace.script("teardown", "--all", "--json").json
        assert (receipt["clean"], [item["kind"] for item in receipt["held"]]) == (True, ["subnetwork", "network"])
    with subtests.test(
        "deployed again in the held time, and destroyed by the engine, which prints what is left and what ends it"
    ):
        deploy(workspace)
        command, *lines = json.loads(workspace.pulumi("stack", "output", "destroy", "--json", "--stack", STACK).out)
        said = workspace.pulumi(*command.split()[1:], "--yes", "--stack", STACK, expect=None).text
        assert all(line in said for line in lines)
        assert "is already being used by" in said
        left = {item["type"] for item in workspace.resources(STACK) if item["custom"]} - {"pulumi:providers:gcp"}
        assert left == {*NETWORKS, "gcp:storage/bucket:Bucket"}
        workspace.script("teardown", "--stack", STACK, "--yes")
    with subtests.test("after it, named by the commands that read, and deleted by a teardown alone"):
        workspace.advance(2 * 3600)
        planted = workspace.folder / "project" / ".work" / "teardown" / f"{STACK}-begun.json"
        names = workspace.made("gemma-l4-12b-qat")
        planted.write_text(json.dumps({"held": names, "projects": ["local-project"], "until": "2026-01-01T00:00:00Z"}))
        released = f"Deleted. Google has released its network: `gemma teardown {STACK}` deletes it, $0."
        for command in ((), ("status", STACK)):
            said = workspace.script("gemma", *command, expect=None)
            assert released in " ".join(said.text.split()), said.text
        assert workspace.script("teardown", "--stack", STACK, expect=2).err.endswith("Pass --yes to confirm.\n")
        assert workspace.made("gemma-l4-12b-qat") == names
        killed = workspace.begin(sys.executable, "-m", "scripts.teardown", "--stack", STACK, "--yes")
        until(lambda: killed.poll() is not None or not workspace.made("/subnetworks/gemma-"), "the first deletion")
        os.killpg(killed.pid, signal.SIGKILL)
        workspace.script("teardown", "--stack", STACK, "--yes")
        assert workspace.made("gemma-l4-12b-qat") == []
        assert json.loads(workspace.state(STACK))["checkpoint"]["latest"].get("resources", []) == []
