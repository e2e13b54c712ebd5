"""A project whose APIs are off, as the local cloud's default world has it: one line refuses and is enough, and new grants are waited for."""

import json
import re

import pytest

from stacks.apis import COMMON_APIS
from tests.engine.conftest import open_workspace
from tests.engine.test_new_grants import WAITS

STACK = "l4-12b-qat"
OFF = ("cloudresourcemanager", "iam", "artifactregistry", "secretmanager", "run")

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def new_project(tmp_path_factory):
    with open_workspace(tmp_path_factory.mktemp("apis"), "--scenario", "new-project") as workspace:
        workspace.pulumi("stack", "init", STACK)
        yield workspace


def printed(answer):
    """Return the commands that enable APIs in what a command printed, each once."""
    return list(dict.fromkeys(re.findall(r"gcloud services enable [^`\n]+", answer.text)))


def test_nothing_is_made_before_the_printed_line_and_then_the_same_up_comes_up(new_project):
    previewed = new_project.pulumi("preview", "--stack", STACK)
    staged = new_project.script("stage_model", "--stack", STACK, expect=2)
    saved = ("save_token", "hfToken", "--secret", "token", "--stack", STACK)
    refused = [
        new_project.pulumi("up", "--yes", "--skip-preview", "--stack", STACK, expect=None),
        staged,
        new_project.script(*saved, stdin="hf_0123456789abcdef", expect=2),
    ]
    assert refused[0].code != 0
    (command,) = printed(previewed)
    assert (
        command == f"gcloud services enable {' '.join(f'{api}.googleapis.com' for api in OFF)} --project=local-project"
    )
    assert {*OFF} <= {*COMMON_APIS, "run"}
    assert [printed(answer) for answer in refused] == [[command]] * 3
    assert [each["type"] for each in resources(new_project)] == ["pulumi:pulumi:Stack"]  # the engine's own
    assert printed(new_project.script("doctor", "--stack", STACK, expect=None)) == [command]

    new_project.change_scenario({"services": {"lag_s": 3000}})  # 15 s here
    new_project.run("bash", "-c", command)
    assert (
        "waiting up to 300 s for secretmanager.googleapis.com"
        in new_project.script(*saved, stdin="hf_0123456789abcdef").err
    )
    new_project.pulumi("config", "rm", "hfTokenSecret", "--stack", STACK)
    new_project.stage(STACK)
    up = ("up", "--yes", "--skip-preview", "--stack", STACK)
    (waited_s,) = {*WAITS.findall(new_project.pulumi(*up).text)}
    assert 0 < int(waited_s) <= 120, "new grants are waited for once, before the service"
    assert new_project.served_length(STACK) > 0
    assert not WAITS.search(new_project.pulumi(*up).text), "without a new grant nothing waits"
    new_project.pulumi("preview", "--refresh", "--expect-no-changes", "--stack", STACK)
    assert not any("projects/service" in each["type"] for each in resources(new_project))
    assert new_project.script("teardown", "--stack", STACK, "--yes", "--json").json["clean"] is True


def test_what_service_usage_does_not_say_blocks_nothing(new_project):
    fault = {"method": "serviceusage.services.batchGet", "count": 99, "status": 403}
    new_project.change_scenario({"faults": [fault]})
    previewed = new_project.pulumi("preview", "--stack", STACK)
    new_project.change_scenario({"faults": []})
    assert "Could not check which APIs are enabled in project local-project" in previewed.text
    assert "`pulumi up` will refuse" not in previewed.text


def resources(workspace):
    """Return the resources in the state, without the engine's own provider, through which the program reads the state."""
    stored = json.loads(workspace.state(STACK))["checkpoint"]["latest"].get("resources", [])
    return [each for each in stored if each["type"] != "pulumi:providers:pulumi"]
