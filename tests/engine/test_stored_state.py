"""States that an earlier release made: the present code takes them over and replaces nothing."""

import shutil
from pathlib import Path

import pytest

STATES = Path(__file__).parents[1] / "fixtures" / "state"
SERVER = "gcp-tpu:index:QueuedResource::capacity"

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


def test_a_cloud_run_stack_of_an_earlier_release_changes_nothing(workspace):
    previewed = preview(workspace, "l4-qat")
    assert previewed["changeSummary"] == {"same": 17}
    assert changes(previewed) == {}


def test_a_tpu_stack_of_an_earlier_release_gets_a_new_script_at_most(workspace):
    previewed = preview(workspace, "tpu-v6e4")
    assert sum(previewed["changeSummary"].values()) == 34
    assert set(previewed["changeSummary"]) <= {"same", "update"}
    for urn, step in changes(previewed).items():
        assert (urn.endswith(SERVER), step["op"]) == (True, "update")
        assert set(step["detailedDiff"]) == {'metadata["startup-script"]'}
        old, new = step["oldState"]["inputs"], step["newState"]["inputs"]
        for inputs in (old, new):
            del inputs["metadata"]["startup-script"]
        # Later releases send the validity of the request. It counts for later requests only: no change is shown.
        assert new.pop("validUntilDurationS") == 3600
        assert "validUntilDurationS" not in old
        assert old == new
