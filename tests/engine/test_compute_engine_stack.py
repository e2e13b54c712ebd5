"""A TPU stack on Compute Engine with the real CLI: Ctrl-C in the wait, a change in place, the tunnel, a lost state, and nothing left.

tests/agreement/test_compute.py has an instance that is gone.
"""

import json
import signal
import subprocess

import pytest

from tests.engine.conftest import ALICE, CAPACITY, LIMIT_S, PROJECT, until
from tests.engine.terminal import come_back

STACK = "tpu-v6e1"

pytestmark = [pytest.mark.engine, pytest.mark.long]


def instances(workspace):
    scopes = workspace.get("compute", f"compute/v1/projects/{PROJECT}/aggregated/instances")["items"]
    return {item["name"]: item for scope in scopes.values() for item in scope["instances"]}


def queued(workspace):
    (found,) = workspace.resources(STACK, CAPACITY)
    return found


def ids(found):
    return {name: item["id"] for name, item in found.items()}


def metadata(item):
    return {pair["key"]: pair["value"] for pair in item["metadata"]["items"]}


@pytest.fixture(scope="module")
def interrupted(workspace):
    """An `up` without capacity, interrupted while its instance is PENDING: the instance, and what the state knew."""
    workspace.pulumi("stack", "init", STACK)
    workspace.configure(STACK, **{"tpu.api": "compute-engine", "tpu.tunnelMembers": [ALICE]})
    workspace.wait_for_capacity(STACK, "2h")  # the most that Compute Engine takes
    workspace.stock(0)
    up = workspace.begin_up(STACK, output=subprocess.PIPE)
    until(lambda: any(item["status"] == "PENDING" for item in instances(workspace).values()), "an instance")
    up.send_signal(signal.SIGINT)
    said, _ = up.communicate(timeout=LIMIT_S)
    assert up.returncode != 0, said
    waiting, known = instances(workspace), queued(workspace)
    workspace.stock(None)
    return waiting, known, said


def test_an_interrupted_wait_is_in_the_state(interrupted):
    waiting, known, said = interrupted
    (item,) = waiting.values()
    assert item["status"] == "PENDING"
    assert known["outputs"]["name"].endswith(f"/instances/{item['name']}")
    # Ctrl-C can come before the first look at what was made.
    assert known["outputs"]["state"] in {"UNKNOWN", "WAITING_FOR_RESOURCES"}
    assert "kept in the state" in said


@pytest.fixture(scope="module")
def deployed(workspace, interrupted):
    return workspace.up(STACK)


def test_up_goes_on_and_serves(workspace, deployed):
    (item,) = instances(workspace).values()
    assert item["status"] == "RUNNING"
    assert item["machineType"].endswith("/ct6e-standard-1t")
    assert "accessConfigs" not in item["networkInterfaces"][0]
    found = queued(workspace)["outputs"]
    assert (found["state"], found["phase"], found["nodeState"]) == ("ACTIVE", "ready", "READY")
    outputs = workspace.outputs(STACK)
    assert outputs["deadline"] == item["resourceStatus"]["scheduling"]["terminationTimestamp"]
    workspace.assert_no_changes(STACK, "--refresh")


def test_the_tunnel_goes_through_gclouds_general_track(workspace, deployed):
    assert workspace.outputs(STACK)["tunnel"]["argv"][:3] == ["gcloud", "compute", "ssh"]
    assert workspace.script("smoke", "--stack", STACK, "--json").json["passed"] is True


def test_a_flag_changes_in_place(workspace, deployed):
    before = instances(workspace)
    workspace.configure(STACK, **{"vllm.maxModelLen": 4096})
    assert set(workspace.pulumi("preview", "--json", "--stack", STACK).json["changeSummary"]) <= {"same", "update"}
    workspace.up(STACK)
    after = instances(workspace)
    assert ids(before) == ids(after)
    assert all(metadata(before[name]) != metadata(after[name]) for name in before)
    assert workspace.served_length(STACK) == 4096
    workspace.assert_no_changes(STACK)


def test_a_lost_state_is_built_again_from_what_exists(workspace, deployed):
    stored = json.loads(workspace.state(STACK))
    stored["checkpoint"]["latest"]["resources"] = []
    workspace.state_file(STACK).write_text(json.dumps(stored))
    before = instances(workspace)
    come_back(workspace, STACK)
    assert queued(workspace)["id"].endswith(f"/queuedResources/{next(iter(before))}")
    assert ids(instances(workspace)) == ids(before)


def test_teardown_leaves_nothing_and_says_so(workspace, deployed):
    found = workspace.script("teardown", "--stack", STACK, "--dry-run", "--json", expect=None).text
    assert "/instances/" in found
    workspace.teardown(STACK)
    assert instances(workspace) == {}
    assert workspace.made("gemma-tpu-v6e1") == []
