"""Weights that a service is bound to, and a bucket that outlives its stack, through the real engine."""

import json

import pytest

from tests.safetensors_files import safetensors

STACK = "l4-qat"
VARIABLE = "GEMMA_SERVING_WEIGHTS"

pytestmark = [pytest.mark.engine, pytest.mark.long]


def revision(workspace):
    """The variable of the running service, and its newest revision."""
    listed = workspace.get("run", "v2/projects/local-project/locations/us-east4/services")["services"]
    [service] = listed
    env = service["template"]["containers"][0].get("env", [])
    bound = next((item["value"] for item in env if item["name"] == VARIABLE), None)
    return bound, service["latestReadyRevision"]


def set_key(workspace, key, value):
    workspace.pulumi("config", "set", "--path", f"gemma-serving:{key}", value, "--stack", STACK)


def stage(workspace, weights):
    """Stage a checkpoint of a folder. The simulated server knows its size by the name of the bucket's folder."""
    checkpoint = workspace.folder / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "config.json").write_text("{}")
    (checkpoint / "model.safetensors").write_bytes(safetensors(weights))
    done = workspace.script("stage_model", "--stack", STACK, "--from", checkpoint, "--json")
    return json.loads(done.out.splitlines()[-1])


def test_other_weights_are_a_new_revision_and_a_kept_bucket_is_taken_over(workspace):
    workspace.pulumi("stack", "init", STACK)
    set_key(workspace, "bucket.retainOnDestroy", "true")
    stage(workspace, b"\0" * 64)
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK)
    first = revision(workspace)
    assert first[0] is not None
    # The same weights again change nothing ...
    stage(workspace, b"\0" * 64)
    workspace.pulumi("preview", "--expect-no-changes", "--stack", STACK)
    # ... other weights of the same names are another revision.
    report = stage(workspace, b"\1" * 64)
    assert (report["copied"], report["kept"]) == (1, 1)
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK)
    second = revision(workspace)
    assert second[0] == report["manifest"] != first[0]
    assert second[1] != first[1]
    # Settings that name other weights than are staged stop before the service changes.
    set_key(workspace, "bucket.manifest", "0" * 64)
    refused = workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK, expect=1)
    assert "Set it to the staged hash, or stage the other weights" in refused.text
    assert revision(workspace) == second
    set_key(workspace, "bucket.manifest", report["manifest"])

    receipt = json.loads(workspace.script("teardown", "--stack", STACK, "--yes", "--json").out.splitlines()[-1])
    assert (receipt["clean"], receipt["left"]) == (True, [])
    [kept] = receipt["kept"]
    assert kept["name"] == f"projects/_/buckets/{report['bucket']}"
    again = workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK, expect=1)
    assert (
        f"is kept from an earlier deployment of this stack. Run `python -m scripts.recover --stack {STACK}`"
        in again.text
    )
    workspace.script("recover", "--stack", STACK, "--yes")
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK)
    assert revision(workspace)[0] == report["manifest"]
    workspace.pulumi("preview", "--expect-no-changes", "--stack", STACK)
    workspace.script("teardown", "--stack", STACK, "--yes", "--include-retained", "--json")
    assert [item for item in workspace.admin("resources")["resources"] if item["kind"] == "buckets"] == []
