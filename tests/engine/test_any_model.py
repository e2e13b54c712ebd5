"""A stack with a model that the planner does not know lives as any other: its config.json beside the settings is enough."""

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STACK = "other"
SETTINGS = """\
config:
  gemma-serving:target: tpu
  gemma-serving:model: org/other-8b
  gemma-serving:modelConfig: models/other-8b/config.json
  gemma-serving:image: vllm-tpu
  gemma-serving:vllm:
    maxModelLen: 8192
  gemma-serving:tpu:
    acceleratorType: v6e-1
    zones: [us-east5-b]
    maxRunDuration: 4h
"""

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_a_model_of_its_config_is_planned_previewed_served_and_taken_down(workspace):
    project = workspace.folder / "project"
    shutil.copytree(ROOT / "tests" / "fixtures" / "models" / "other-8b", project / "models" / "other-8b")
    workspace.settings(STACK).write_text(SETTINGS)
    plan = workspace.script("plan", "--stack", STACK, "--json").json
    assert (plan["verdict"], plan["model"]) == ("fits", "org/other-8b")
    workspace.change_scenario({"hub": {"repositories": {"org/other-8b": "public"}}})
    workspace.pulumi("stack", "init", STACK)
    preview = workspace.pulumi("preview", "--stack", STACK)
    assert "MOD01: org/other-8b is planned from its config.json as 8.03 billion parameters in bf16" in preview.text
    workspace.up(STACK)
    assert workspace.served_length(STACK) == 8_192
    workspace.teardown(STACK)
