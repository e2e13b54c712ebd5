"""After any crash and with any state, one command leaves nothing of a stack: the real engine, killed in the middle of its work."""

import json
import os
import re
import signal

import pytest

from tests.engine.conftest import ALICE, CAPACITY, until
from tests.engine.terminal import take_down, typed

STACK = "tpu-v6e4"
ZONE = "us-east5-a"
FIGURES = re.compile(rf"\d+m?\d*s?/24h {ZONE} WAITING")
GRANTS, SUBNETWORK = "cloudresourcemanager.projects.setIamPolicy", "compute.subnetworks.insert"

pytestmark = [pytest.mark.engine, pytest.mark.long]


def kill(process):
    """Kill the engine, and wait until its children have followed it."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    def is_over():
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    until(is_over, "the end of the engine's children", 60)


def teardown(workspace, expect=0, **options):
    return workspace.script("teardown", "--stack", STACK, "--yes", "--json", expect=expect, **options)


def status(workspace):
    (found,) = workspace.script("status", "--stack", STACK, "--json").json["stacks"]
    return found


def assert_nothing_left(workspace):
    assert workspace.made(f"gemma-{STACK}") == []
    left = json.dumps(workspace.policy())
    assert (f"gemma-{STACK}" in left, ALICE in left) == (False, False)


@pytest.fixture
def stack(workspace):
    """The stack, with a member of the tunnel; its settings, the faults and the stock are as they were afterwards."""
    restore = workspace.edit(STACK)
    workspace.configure(STACK, **{"tpu.tunnelMembers": [ALICE]})
    workspace.pulumi("stack", "init", STACK, expect=None)
    yield workspace
    restore()
    workspace.change_scenario({"faults": []})
    workspace.stock(None, ZONE, accelerator="v6e-4")


def test_a_request_in_a_zone_that_the_settings_no_longer_name_is_found(stack):
    """The request would get its capacity later, and cost money: it is deleted also if the state is protected and its owner gone."""
    stack.stock(0, ZONE, accelerator="v6e-4")
    stack.wait_for_capacity(STACK)
    words = ("up", "--yes", "--skip-preview", "--non-interactive", "--stack", STACK)
    with typed(stack, stack.engine, *words, lines=60) as shown:
        # The engine's table leaves no room in 80 columns, so that the pages name --non-interactive.
        shown.until(lambda it: FIGURES.search(it.unwrapped), "the wait")
        first = next(line for line in shown.screen.display if re.search(rf"/24h {ZONE}", line))
        assert CAPACITY in first, "the figures do not stand on the first line"
        until(lambda: status(stack)["waits"], "a wait in the status")
        waiting = status(stack)
        assert waiting["cloud"]["state"] in {"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"}
        assert waiting["cloud"]["place"] == ZONE
        assert any(f"process {shown.process.pid}" in wait for wait in waiting["waits"])
        assert waiting["next_command"] == f"gemma status {STACK} --watch"
        refused = teardown(stack, expect=2)
        assert f"process {shown.process.pid}" in refused.err
        assert stack.made("/queuedResources/")
        kill(shown.process)
    killed = status(stack)
    assert any("no longer running" in wait for wait in killed["waits"])
    assert killed["next_command"] == f"gemma up {STACK}"
    nothing = stack.script("logs", "--stack", STACK)
    assert (nothing.out, "no logs of stack" in nothing.err) == ("", True)
    stack.configure(STACK, **{"tpu.zones": ["us-east5-b"]})
    stored = json.loads(stack.state(STACK))
    for resource in stored["checkpoint"]["latest"]["resources"]:
        resource["protect"] = True
    stack.state_file(STACK).write_text(json.dumps(stored))
    done = teardown(stack)
    assert "removing stale lock" in done.err
    assert (done.json["clean"], done.json["destroyed"] > 10) == (True, True)
    assert_nothing_left(stack)
    assert stack.resources(STACK) == []


@pytest.mark.parametrize("loss", ["deleted", "none", "cut in half", "no engine"])
def test_what_a_crash_left_of_a_half_made_network_and_grants_is_found_without_the_state_and_without_the_engine(
    stack, loss
):
    """The grants of a project are made one after the other, in any order: the first one hangs."""
    hang = {"count": 99, "action": "hang", "when": "after", "hang_s": 600}
    stack.change_scenario({"faults": [{"method": method, **hang} for method in (GRANTS, SUBNETWORK)]})
    process = stack.begin_up(STACK)
    until(lambda: ALICE in json.dumps(stack.policy()) and stack.made(f"/subnetworks/gemma-{STACK}"), "subnet and grant")
    stack.change_scenario({"faults": []})
    kill(process)
    text = stack.state(STACK)
    if loss == "deleted":
        stack.state_file(STACK).unlink()
    elif loss == "cut in half":
        stack.state_file(STACK).write_text(text[: len(text) // 2])
    if loss in {"deleted", "cut in half"}:
        refused = teardown(stack, expect=1).json
        assert {item["kind"] for item in refused["leaked"]} >= {"subnetwork", "IAM grant"}
        assert (refused["deleted"], {*refused["left"]}) == ([], {item["name"] for item in refused["leaked"]})
        done = take_down(stack, STACK)
    else:
        done = teardown(stack, environment={"PATH": "/usr/bin:/bin"} if loss == "no engine" else {}).json
    assert {"subnetwork", "IAM grant"} <= {item["kind"] for item in done["deleted"]}
    assert done["leaked"] == []
    assert_nothing_left(stack)
    if loss == "cut in half":
        stack.pulumi("stack", "export", "--stack", STACK)
        assert any("was truncated. It is now empty" in line for line in done["warnings"])


@pytest.mark.parametrize("how", ["gemma teardown", "pulumi destroy"])
def test_the_second_queued_resource_in_a_state_of_a_former_version_is_deleted_too(stack, how):
    """Former versions renewed a run with ID-b, which `renewalName` names beside ID until one of the two is deleted."""
    stack.up(STACK)
    stored = json.loads(stack.state(STACK))
    (outputs,) = (one["outputs"] for one in stored["checkpoint"]["latest"]["resources"] if one["type"] == CAPACITY)
    name, node = outputs["name"], outputs["nodeName"]
    body = {key: stack.get("tpu", f"v2alpha1/{name}")[key] for key in ("tpu", "provisioningModel", "runDuration")}
    body["tpu"]["nodeSpec"][0]["nodeId"] += "-b"
    path, _, identifier = name.rpartition("/")
    stack.call("POST", f"tpu/v2alpha1/{path}", body, queuedResourceId=f"{identifier}-b")
    until(lambda: f"{node}-b" in stack.made("/nodes/"), "the second node")
    outputs |= {"renewalName": f"{name}-b", "renewalState": "ACTIVE"}
    stack.state_file(STACK).write_text(json.dumps(stored))
    refused = " ".join(stack.script("up", "--stack", STACK, "--yes", expect=1).err.split())
    assert (
        f"A former version requested {name}-b beside {name}, to renew its run. Run `gemma teardown {STACK}`, which deletes"
        in refused
    )
    assert {f"{name}-b", name} <= {*stack.made("/queuedResources/")}
    if how == "gemma teardown":
        assert teardown(stack).json["clean"]
    else:
        stack.pulumi("destroy", "--yes", "--skip-preview", "--stack", STACK)
    assert_nothing_left(stack)
    assert stack.resources(STACK) == []
