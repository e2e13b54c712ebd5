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
        workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
    workspace.change_scenario({"iam": {"id_token_life_s": TOKEN_LIFE_S}})
    yield workspace
    workspace.change_scenario({"iam": {"id_token_life_s": None}})


@pytest.mark.parametrize("stack", STACKS)
def test_the_openai_sdk_works_for_longer_than_a_token_lives(deployed, stack):
    said = deployed.script("connect", "--stack", stack, "--port", "0", "--", sys.executable, CLIENT, 3 * TOKEN_LIFE_S)
    answer = json.loads(said.out.strip().splitlines()[-1])
    assert answer["whole"]
    assert answer["completion"]
    assert answer["streamed"]
    assert answer["tool"] == "get_weather"


def test_without_the_proxy_a_token_that_has_ended_is_refused(deployed):
    """Planted: the same requests with one token, so that the test above cannot pass by a cloud that admits anybody."""
    program = (
        "import sys, time, requests\n"
        "from scripts.cli.access import fetch_id_token\n"
        "url = sys.argv[1]\n"
        "headers = {'Authorization': 'Bearer ' + fetch_id_token(url)}\n"
        "first = requests.get(url + '/v1/models', headers=headers, timeout=60).status_code\n"
        "time.sleep(float(sys.argv[2]))\n"
        "print(first, requests.get(url + '/v1/models', headers=headers, timeout=60).status_code)\n"
    )
    url = deployed.outputs(STACKS[0])["endpoint"]
    said = deployed.run(sys.executable, "-c", program, url, TOKEN_LIFE_S + 2)
    assert said.out.split() == ["200", "401"]
