"""Drafters and adapters beside the model: one command stages them, the server reads its own copies, and nothing is left."""

import json

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.long]

ADAPTER = "rubenbalbastre/procurement-function-calling-gemma-4-E2B-it-sft"
DRAFTER = "google/gemma-4-E2B-it-assistant"


SERVERS = {"gcp:cloudrunv2/service:Service", "gcp-tpu:index:QueuedResource"}


@pytest.mark.parametrize(
    ("stack", "part", "root"), [("l4-e2b-lora", ADAPTER, "/mnt/models"), ("tpu-v6e1", DRAFTER, "/mnt/models")]
)
def test_a_stack_serves_its_staged_part_and_leaves_nothing(workspace, stack, part, root):
    workspace.pulumi("stack", "init", stack)
    if stack == "tpu-v6e1":
        # FIT05: with 256 sequences the drafter's start-up needs 34 GiB per chip.
        drafter = {"speculative": {"method": "draft-model", "drafter": part}, "maxNumSeqs": 16}
        workspace.configure(stack, weights="bucket", **{f"vllm.{key}": value for key, value in drafter.items()})
    report = json.loads(workspace.script("stage_model", "--stack", stack, "--json").out.splitlines()[-1])
    [staged] = report["parts"]
    assert (staged["name"], staged["copied"] > 0) == (part, True)
    again = json.loads(workspace.script("stage_model", "--stack", stack, "--json").out.splitlines()[-1])
    assert (again["copied"], again["parts"][0]["copied"]) == (0, 0)
    workspace.up(stack)
    words = json.dumps([one for one in workspace.resources(stack) if one["type"] in SERVERS])
    assert f"{root}/{staged['prefix']}" in words
    assert part not in words, "the server would ask the hub"
    assert "HF_HUB_OFFLINE" in words
    workspace.assert_no_changes(stack)
    assert workspace.served_length(stack) > 0
    features = workspace.outputs(stack)["features"]
    assert features["adapters"] == (["procurement"] if part == ADAPTER else [])
    assert (features["speculation"], features["draftTokens"]) == (
        ("none", 0) if part == ADAPTER else ("draft-model", 3)
    )
    refused = workspace.script("stage_model", "--stack", stack, "--remove", staged["prefix"], "--yes", expect=2)
    assert "is served by" in refused.err
    workspace.teardown(stack)
