"""A project whose APIs are off, as the local cloud's default world has it: one line refuses and is enough, and new grants are waited for.

Commands before their time are refused with exit code 2, one sentence and the command that comes first.
"""

import re

import pytest

from gemma_serving.stacks.apis import COMMON_APIS
from tests.engine.conftest import FAILURE, open_workspace
from tests.engine.test_new_grants import WAITS

STACK, TPU = "l4-12b-qat", "tpu-v6e1"
OFF = ("cloudresourcemanager", "iam", "artifactregistry", "secretmanager", "run", "compute")

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(scope="module")
def new_project(tmp_path_factory):
    with open_workspace(tmp_path_factory.mktemp("apis"), "--scenario", "new-project") as workspace:
        yield workspace


def printed(answer):
    """Return the commands that enable APIs in what a command printed, each once."""
    return list(dict.fromkeys(re.findall(r"gcloud services enable [^`\n]+", answer.text)))


def test_nothing_is_made_before_the_printed_line_and_then_the_same_up_comes_up(new_project):
    missing = new_project.script("smoke", "--stack", STACK, expect=2)
    assert (missing.out, f"smoke: Stack {STACK} does not exist in this backend. Run `gemma up" in missing.err) == (
        "",
        True,
    )
    first = new_project.script("gemma", "up", STACK, "--yes", expect=2)
    assert new_project.pulumi("stack", "ls", "--json").json == [], "a refused first `up` leaves no state"
    new_project.pulumi("stack", "init", STACK)
    previewed = new_project.pulumi("preview", "--stack", STACK)
    saved = ("save_token", "hfToken", "--secret", "token", "--stack", STACK)
    refused = [
        new_project.up(STACK, expect=FAILURE),
        new_project.script("stage_model", "--stack", STACK, expect=2),
        new_project.script(*saved, stdin="hf_0123456789abcdef", expect=2),
    ]
    (command,) = printed(previewed)
    assert (
        command == f"gcloud services enable {' '.join(f'{api}.googleapis.com' for api in OFF)} --project=local-project"
    )
    assert {*OFF} <= {*COMMON_APIS, "run", "compute"}
    assert [printed(answer) for answer in [first, *refused]] == [[command]] * 4
    # The engine's own: the stack, and the provider through which the program reads the state.
    assert {each["type"] for each in new_project.resources(STACK)} <= {"pulumi:pulumi:Stack", "pulumi:providers:pulumi"}
    assert printed(new_project.script("doctor", "--stack", STACK, expect=None)) == [command]

    new_project.change_scenario({"services": {"lag_s": 3000}})  # 15 s here
    new_project.run("bash", "-c", command)
    waited = new_project.script(*saved, stdin="hf_0123456789abcdef").err
    assert "waiting up to 300 s for secretmanager.googleapis.com" in waited
    new_project.configure(STACK, hfTokenSecret=None)
    unstaged = new_project.script("gemma", "up", STACK, "--yes", expect=2)
    assert re.search(r"^missing  weights: No weights are staged in$", unstaged.err, re.MULTILINE), unstaged.err
    assert "up: Project local-project is not ready" in unstaged.err
    assert f"Fix, in this order:\n  gemma stage_model {STACK}\n" in unstaged.err
    new_project.stage(STACK)
    undeployed = new_project.script("smoke", "--stack", STACK, expect=2)
    assert f"Stack {STACK} is not deployed. Run `gemma up {STACK}`." in undeployed.err
    (waited_s,) = {*WAITS.findall(new_project.up(STACK).text)}
    assert 0 < int(waited_s) <= 120, "new grants are waited for once, before the service"
    assert new_project.served_length(STACK) > 0
    new_project.assert_no_changes(STACK, "--refresh")
    assert new_project.resources(STACK, "projects/service") == []
    new_project.teardown(STACK)


def test_a_quota_of_zero_is_refused_before_anything_is_made(new_project):
    up = ("gemma", "up", TPU, "--yes")
    new_project.change_scenario({"services": {"lag_s": 0}})
    for command in printed(new_project.script(*up, expect=2)):
        new_project.run("bash", "-c", command)
    refused = new_project.script(*up, expect=2)
    assert "missing  quota of chips in us-east5-a: 0 chips, 1 needed" in refused.err
    assert "quotas preferences create --project=local-project --service=tpu.googleapis.com" in refused.err
    assert f"Nothing was changed. Run the commands below, then `gemma up {TPU}`." in refused.err
    assert TPU not in {row["name"] for row in new_project.pulumi("stack", "ls", "--json").json}
    assert new_project.made(TPU) == []
    assert "encryptionsalt" not in new_project.settings(TPU).read_text()
