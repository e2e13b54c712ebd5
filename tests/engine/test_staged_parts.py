"""Drafters, adapters and a chat template beside the model: one command stages them, the server reads its own copies, and nothing is left."""

import json

import pytest

from tests.cloud.test_template_age import APRIL, JULY

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


@pytest.mark.parametrize("stack", ["l4-qat", "tpu-v6e1-e4b"])
def test_a_stack_serves_the_chat_template_of_the_project_and_an_edited_one_only_when_it_is_staged(workspace, stack):
    """The simulated server exits at a path that its container does not have, as vLLM does."""
    template = workspace.folder / "project" / "chat" / "tools.jinja"
    template.parent.mkdir(exist_ok=True)
    template.write_text(JULY)
    workspace.pulumi("stack", "init", stack)
    workspace.configure(stack, weights="bucket", **{"vllm.thinking": {"template": "./chat/tools.jinja"}})
    workspace.script("stage_model", "--stack", stack)
    template.write_text(APRIL)
    refused = workspace.up(stack, expect=1)
    assert "No weights are staged in gs://" in refused.text
    assert "tools.jinja-" in refused.text
    report = workspace.script("stage_model", "--stack", stack, "--json").json
    [part] = report["parts"]
    assert (part["name"], part["copied"], part["template"], report["copied"]) == ("./chat/tools.jinja", 1, "2026-04", 0)
    planned = workspace.script("plan", "--stack", stack).out
    assert "MOD08" in planned
    assert "lacks Google's fix of 9 July 2026" in " ".join(planned.split())
    workspace.up(stack)
    words = json.dumps([one for one in workspace.resources(stack) if one["type"] in SERVERS])
    assert f"--chat-template=/mnt/models/{part['prefix']}/tools.jinja" in words
    workspace.assert_no_changes(stack)
    assert workspace.script("smoke", "--stack", stack, "--json").json["passed"] is True
    workspace.teardown(stack)
