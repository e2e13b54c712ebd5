"""The OpenAI SDK through `scripts.connect` on both targets, for longer than an identity token lives."""

import json
import sys
from pathlib import Path

import pytest

STACKS = ("l4-12b-qat", "tpu-v6e1")
TOKEN_LIFE_S = 4
CLIENT = Path(__file__).with_name("openai_client.py")

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def deployed(workspace):
    for stack in STACKS:
        workspace.pulumi("stack", "init", stack)
        if stack.startswith("l4"):
            workspace.stage(stack)
        workspace.up(stack)
    workspace.change_scenario({"iam": {"id_token_life_s": TOKEN_LIFE_S}})
    return workspace


@pytest.mark.parametrize("stack", STACKS)
def test_the_openai_sdk_works_for_longer_than_a_token_lives(deployed, stack):
    said = deployed.script("connect", "--stack", stack, "--port", "0", "--", sys.executable, CLIENT, 3 * TOKEN_LIFE_S)
    answer = json.loads(said.out.strip().splitlines()[-1])
    assert answer["whole"]
    assert answer["completion"]
    assert answer["streamed"]
    assert answer["tool"] == "get_weather"
