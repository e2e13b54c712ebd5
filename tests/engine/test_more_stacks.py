"""Every further stack is planned and lives: up with the real CLI on the local cloud, the server answers, teardown leaves nothing."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DRIVEN_ELSEWHERE = {"tpu-v6e4", "l4-qat"}
STACKS = sorted(
    {path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in ROOT.glob("Pulumi.*.yaml")} - DRIVEN_ELSEWHERE
)

pytestmark = pytest.mark.engine


def settings(stack):
    config = yaml.safe_load((ROOT / f"Pulumi.{stack}.yaml").read_text())["config"]
    return {key.partition(":")[2]: value for key, value in config.items()}


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_lives_and_leaves_nothing(workspace, stack):
    wanted = settings(stack)
    plan = workspace.script("plan", "--stack", stack, "--json").json
    assert plan["verdict"] == "fits"
    workspace.pulumi("stack", "init", stack)
    if wanted["weights"] == "bucket":
        workspace.stage_nothing(stack)
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
    assert workspace.served_length(stack) == wanted["vllm"]["maxModelLen"]
    assert workspace.script("teardown", "--stack", stack, "--yes", "--json").json["clean"] is True
