"""States that an earlier release made: the present code takes them over and replaces nothing."""

import shutil
from pathlib import Path

import pytest

STATES = Path(__file__).parents[1] / "fixtures" / "state"
SERVICE = "gcp:cloudrunv2/service:Service::vllm"
SERVER = "gcp-tpu:index:QueuedResource::capacity"
# The API through which the provider reads the project joined those that a stack enables; enabling it again is harmless.
NEW_API = "gcp:projects/service:Service::cloudresourcemanager"

pytestmark = pytest.mark.engine


def preview(workspace, stack):
    """Import a stored state with the settings of its time, and preview it without asking the cloud."""
    shutil.copy2(STATES / f"Pulumi.{stack}.yaml", workspace.folder / "project")
    workspace.pulumi("stack", "init", stack)
    workspace.pulumi("stack", "import", "--stack", stack, "--file", STATES / f"{stack}.json")
    return workspace.pulumi("preview", "--json", "--stack", stack).json


def changes(previewed):
    return {step["urn"]: step for step in previewed["steps"] if step["op"] != "same"}


@pytest.mark.parametrize("stack", ["tpu-v6e4", "l4-qat"])
def test_a_stored_state_holds_no_path_of_the_machine_that_made_it(stack):
    text = (STATES / f"{stack}.json").read_text()
    assert not [word for word in ("/root/", "/home/", "/tmp/", "/work/", "sourcePosition") if word in text]


def test_a_cloud_run_stack_of_an_earlier_release_loses_the_volume_that_cloud_run_refuses(workspace):
    """Earlier releases mounted a volume at /dev/shm, a disallowed path of Cloud Run. It goes in place; all else stays."""
    previewed = preview(workspace, "l4-qat")
    assert previewed["changeSummary"] == {"same": 16, "update": 1, "create": 1}
    found = changes(previewed)
    ((service, step),) = ((urn, step) for urn, step in found.items() if not urn.endswith(NEW_API))
    assert service.endswith(SERVICE)
    old, new = (step[state]["inputs"]["template"] for state in ("oldState", "newState"))
    assert old["volumes"].pop(0)["name"] == "shm"
    assert old["containers"][0]["volumeMounts"].pop(0)["mountPath"] == "/dev/shm"
    assert old == new
    old, new = (step[state]["inputs"] for state in ("oldState", "newState"))
    assert {**old, "template": None} == {**new, "template": None}


def test_a_tpu_stack_of_an_earlier_release_gets_a_new_script_at_most(workspace):
    previewed = preview(workspace, "tpu-v6e4")
    assert sum(previewed["changeSummary"].values()) == 34 + 1
    assert previewed["changeSummary"]["create"] == 1
    assert set(previewed["changeSummary"]) <= {"same", "update", "create"}
    for urn, step in changes(previewed).items():
        if urn.endswith(NEW_API):
            continue
        assert (urn.endswith(SERVER), step["op"]) == (True, "update")
        assert set(step["detailedDiff"]) == {'metadata["startup-script"]'}
        old, new = step["oldState"]["inputs"], step["newState"]["inputs"]
        for inputs in (old, new):
            del inputs["metadata"]["startup-script"]
        # Later releases send the validity of the request. It counts for later requests only: no change is shown.
        assert new.pop("validUntilDurationS") == 3600
        assert "validUntilDurationS" not in old
        assert old == new
