"""A state from before 0.4 is refused before the first resource; the machine that runs and the bucket with weights stay as they are."""

import json

import pytest

from tests.engine.conftest import FAILURE

STACK = "tpu-v6e1"
PLACE = "tpu/v2alpha1/projects/local-project/locations/us-east5-a"
OBJECTS = f"storage/storage/v1/b/local-project-gemma-{STACK}-models/o"

pytestmark = [pytest.mark.engine, pytest.mark.long]


def with_former_api(state):
    """Return a state with an API as a resource of the stack, which only versions before 0.4 wrote."""
    resources = state["deployment"]["resources"]
    (provider,) = [each for each in resources if each["type"] == "pulumi:providers:gcp"]
    properties = {"project": "local-project", "service": "iam.googleapis.com", "disableOnDestroy": False}
    former = {
        "urn": f"urn:pulumi:{STACK}::gemma-serving::gcp:projects/service:Service::iam",
        "type": "gcp:projects/service:Service",
        "custom": True,
        "id": "local-project/iam.googleapis.com",
        "inputs": properties,
        "outputs": properties,
        "parent": resources[0]["urn"],
        "provider": f"{provider['urn']}::{provider['id']}",
    }
    return {**state, "deployment": {**state["deployment"], "resources": [*resources, former]}}


def in_cloud(workspace):
    """Return the machine and the files of the bucket, with all that Google shows of them."""
    return workspace.get("", f"{PLACE}/nodes"), workspace.get("", OBJECTS)


def test_a_former_state_is_refused_and_its_machine_and_bucket_stay(workspace):
    workspace.configure(STACK, weights="bucket")
    workspace.pulumi("stack", "init", STACK)
    workspace.pulumi("preview", "--stack", STACK)  # a new stack has no resources to read
    workspace.stage(STACK)
    workspace.up(STACK)
    before = in_cloud(workspace)
    assert [node["state"] for node in before[0]["nodes"]] == ["READY"]
    assert len(before[1]["items"]) > 1
    assert workspace.outputs(STACK)["state"] == "ACTIVE"

    exported = workspace.pulumi("stack", "export", "--stack", STACK).json
    former = workspace.folder / "former.json"
    former.write_text(json.dumps(with_former_api(exported)))
    workspace.pulumi("stack", "import", "--stack", STACK, "--file", former)
    workspace.configure(STACK, **{"vllm.maxModelLen": 8192})
    stored = resources(workspace)
    for command in (("preview",), ("up", "--yes", "--skip-preview")):
        refused = workspace.pulumi(*command, "--stack", STACK, expect=FAILURE)
        assert "`git checkout 5f021563`" in " ".join(refused.text.split())
        assert "Traceback" not in refused.text
    assert in_cloud(workspace) == before
    assert resources(workspace) == stored


def resources(workspace):
    """Return the ids in the state by URN, without the engine's own resources, which every run writes."""
    stored = workspace.resources(STACK)
    return {
        each["urn"]: each.get("id")
        for each in stored
        if each["type"] not in {"pulumi:providers:pulumi", "pulumi:pulumi:Stack"}
    }
