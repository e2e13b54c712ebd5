"""A stack in a project made a moment ago: APIs that are off, then answer late; accounts and grants that take effect late.

Durations at Google's documented worst: `BUILT_IN["new-project"]` in localcloud/world/scenario.py.
"""

import re
import shlex

import pytest

from tests.engine.conftest import open_workspace

TPU, CLOUD_RUN = "tpu-v6e1-e4b", "l4-12b-qat"

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def new_project(tmp_path_factory):
    with open_workspace(tmp_path_factory.mktemp("new"), "--scenario", "new-project") as workspace:
        yield workspace


def test_one_sentence_says_which_api_is_off_and_its_command_mends_that(new_project):
    """The rest of the module lives in the project that the command has mended."""
    new_project.pulumi("stack", "init", TPU)
    for command in (("preview",), ("up", "--yes", "--skip-preview")):
        refused = new_project.pulumi(*command, "--stack", TPU, expect=None)
        assert refused.code != 0
        assert "Traceback" not in refused.text
        assert "has not been used in project" not in refused.text
        assert "The Cloud Resource Manager API is off in project local-project" in refused.text
        assert f"python -m scripts.doctor --stack {TPU}" in refused.text
    command = shlex.split(re.search("`(gcloud services enable [^`]+)`", refused.text)[1])
    new_project.enable(*command[3:-2])
    new_project.advance(120)


@pytest.mark.parametrize("stack", [TPU, CLOUD_RUN])
def test_a_stack_comes_up_stays_free_of_drift_and_goes(new_project, stack):
    if stack == CLOUD_RUN:
        new_project.pulumi("stack", "init", stack)
        new_project.stage_nothing(stack)
    new_project.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
    assert new_project.served_length(stack) > 0
    new_project.pulumi("preview", "--refresh", "--expect-no-changes", "--stack", stack)
    assert new_project.script("teardown", "--stack", stack, "--yes", "--json").json["clean"] is True
