"""Weights that a service is bound to, and a bucket that no replacement empties and that outlives its stack, through the real engine."""

import json

import pytest

from tests.engine.conftest import FAILURE
from tests.safetensors_files import safetensors

STACK = "l4-qat"
VARIABLE = "GEMMA_SERVING_WEIGHTS"

pytestmark = [pytest.mark.engine, pytest.mark.long]


def revision(workspace):
    """The variable of the running service, and its newest revision."""
    (service,) = workspace.get("run", "v2/projects/local-project/locations/us-east4/services")["services"]
    env = service["template"]["containers"][0].get("env", [])
    bound = next((item["value"] for item in env if item["name"] == VARIABLE), None)
    return bound, service["latestReadyRevision"]


def objects(workspace, folder):
    """The objects of a folder of the stack's bucket, with their generations."""
    path = f"storage/v1/b/local-project-gemma-{STACK}-models/o?prefix={folder}/"
    return {item["name"]: item["generation"] for item in workspace.get("storage", path).get("items", [])}


def bucket_of(workspace):
    """The stack's bucket and who may read it."""
    path = f"storage/v1/b/local-project-gemma-{STACK}-models"
    return workspace.get("storage", path), workspace.get("storage", f"{path}/iam?optionsRequestedPolicyVersion=3")


def stage(workspace, weights):
    """Stage a checkpoint of a folder. The simulated server knows its size by the name of the bucket's folder."""
    checkpoint = workspace.folder / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "config.json").write_text("{}")
    (checkpoint / "model.safetensors").write_bytes(safetensors(weights))
    done = workspace.script("stage_model", "--stack", STACK, "--from", checkpoint, "--json")
    return json.loads(done.out.splitlines()[-1])


def assert_nothing_replaces_the_bucket(workspace, folder, served):
    """Another region is refused by the program, and by staging for it: weights and grants stay."""
    before, second = bucket_of(workspace), revision(workspace)
    workspace.configure(STACK, **{"cloudRun.region": "us-central1"})
    refused = workspace.up(STACK, expect=1)
    said = 'gemma-serving:cloudRun.region = "us-central1": stack l4-qat is deployed in us-east4'
    assert said in " ".join(refused.text.split())
    assert "unable to replace" not in refused.text
    staged = workspace.script("stage_model", "--stack", STACK, "--from", workspace.folder / "checkpoint", expect=2)
    assert said in staged.err
    assert (bucket_of(workspace), revision(workspace)) == (before, second)
    assert objects(workspace, folder) == served
    workspace.configure(STACK, **{"cloudRun.region": "us-east4"})


def assert_old_folders_go(workspace, old, new):
    """The folder that serves stays, and the other one is deleted."""
    listed = json.loads(workspace.script("stage_model", "--stack", STACK, "--list", "--json").out)["folders"]
    assert {folder["name"]: bool(folder["served_by"]) for folder in listed} == {
        old: False,
        new: True,
    }
    workspace.script("stage_model", "--stack", STACK, "--remove", new, "--yes", expect=2)
    workspace.script("stage_model", "--stack", STACK, "--remove", old, "--yes")
    assert objects(workspace, old) == {}
    assert len(objects(workspace, new)) == 3


def test_other_weights_are_a_new_revision_and_a_kept_bucket_is_taken_over(workspace):
    workspace.pulumi("stack", "init", STACK)
    workspace.configure(STACK, **{"bucket.retainOnDestroy": True})
    stage(workspace, b"\0" * 64)
    workspace.up(STACK)
    first = revision(workspace)
    assert first[0] is not None
    # The same weights again change nothing ...
    kept = stage(workspace, b"\0" * 64)
    workspace.assert_no_changes(STACK)
    served = objects(workspace, kept["prefix"])
    assert len(served) == 3
    # ... other weights of the same names are another revision.
    report = stage(workspace, b"\1" * 64)
    assert (report["copied"], report["kept"]) == (2, 0)
    # The revision that runs reads the folder that it read before.
    assert objects(workspace, kept["prefix"]) == served
    workspace.up(STACK)
    second = revision(workspace)
    assert second[0] == report["manifest"] != first[0]
    assert second[1] != first[1]
    # Settings that name other weights than are staged stop before the service changes.
    workspace.configure(STACK, **{"bucket.manifest": f"sha256:{'0' * 64}"})
    refused = workspace.up(STACK, expect=1)
    assert "No weights are staged in" in refused.text
    assert revision(workspace) == second
    workspace.configure(STACK, **{"bucket.manifest": f"sha256:{report['manifest']}"})

    assert_nothing_replaces_the_bucket(workspace, kept["prefix"], served)
    assert_old_folders_go(workspace, kept["prefix"], report["prefix"])

    receipt = json.loads(workspace.script("teardown", "--stack", STACK, "--yes", "--json").out.splitlines()[-1])
    assert (receipt["clean"], receipt["leaked"]) == (True, [])
    [kept] = receipt["retained"]
    assert kept["name"] == f"projects/_/buckets/{report['bucket']}"
    again = workspace.up(STACK, expect=1)
    assert (
        f"was retained by an earlier deployment of this stack. Run `gemma up {STACK}`, which imports it" in again.text
    )
    workspace.script("up", "--stack", STACK, "--yes")
    assert revision(workspace)[0] == report["manifest"]
    workspace.assert_no_changes(STACK)
    # The engine keeps the weights by Pulumi's own rule, unless the settings let them go.
    workspace.configure(STACK, **{"bucket.retainOnDestroy": None})
    workspace.up(STACK)
    refused = " ".join(destroyed(workspace, expect=FAILURE).text.split())
    assert "cannot be deleted because it is protected" in refused
    assert "pulumi state unprotect" in refused
    assert len(objects(workspace, report["prefix"])) == 3
    workspace.configure(STACK, **{"bucket.protect": False})
    workspace.up(STACK)
    destroyed(workspace)
    assert [item for item in workspace.admin("resources")["resources"] if item["kind"] == "buckets"] == []


def destroyed(workspace, **options):
    """Destroy the stack by hand, and again once Google has released its network."""
    destroy = ("destroy", "--yes", "--skip-preview", "--stack", STACK)
    workspace.pulumi(*destroy, expect=None)
    workspace.advance(3 * 3600)
    return workspace.pulumi(*destroy, **options)
