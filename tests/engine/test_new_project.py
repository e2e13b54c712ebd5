"""A stack in an empty project: APIs off and then late, no quota, a login without a role, accounts and grants that take effect late.

The commands that the project prints are executed as a shell does; nothing here knows them. gcloud is the local cloud's, with the login of the
project's owner. Durations at Google's documented worst: `BUILT_IN["empty-project"]` in packages/localcloud/world/scenario.py.
"""

import itertools
import re

import pytest

from tests.engine.conftest import open_workspace

TPU, CLOUD_RUN = "tpu-v6e1-e4b", "l4-12b-qat"
ROUNDS = 8

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def new_project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new")
    with open_workspace(folder, "--scenario", "empty-project") as workspace:
        # The login is the key file of a service account, as in CI; the access token would be the same account's.
        del workspace.environment["GOOGLE_OAUTH_ACCESS_TOKEN"]
        yield workspace


def execute(workspace, command):
    """Execute a printed command as a shell does, and return its exit code."""
    return workspace.run("bash", "-c", command, expect=None).code


def refusal(workspace, *command):
    """Return what `preview` or `up` says when Google refuses its first call."""
    refused = workspace.pulumi(*command, "--stack", TPU, expect=None)
    assert refused.code != 0
    assert "Traceback" not in refused.text
    assert "has not been used in project" not in refused.text
    assert f"python -m scripts.doctor --stack {TPU}" in refused.text
    return refused.text


def test_one_sentence_says_that_the_login_may_not_use_the_project(new_project):
    """The rest of the module lives in the project that the commands have fixed."""
    new_project.pulumi("stack", "init", TPU)
    text = refusal(new_project, "up", "--yes", "--skip-preview")
    assert "Cannot read project local-project" in text
    assert "Caller does not have required permission to use project local-project" in text
    # Where the API was off, the owner enables it first: a role is granted through it.
    unlocked = new_project.script("doctor", "--stack", TPU, expect=None).out
    for pattern in (r"gcloud services enable cloudresourcemanager\S+ .*", r"gcloud projects .*serviceUsageConsumer.*"):
        assert execute(new_project, re.search(pattern, unlocked)[0]) == 0
        new_project.advance(120)


def test_one_sentence_says_that_the_login_may_not_read_the_project(new_project):
    text = refusal(new_project, "preview")
    assert "Cannot read project local-project" in text
    assert "'resourcemanager.projects.get' denied" in text


@pytest.mark.parametrize("stack", [TPU, pytest.param(CLOUD_RUN, marks=pytest.mark.long)])
def test_a_stack_comes_up_stays_free_of_drift_and_goes(new_project, stack):
    if stack == CLOUD_RUN:
        new_project.pulumi("stack", "init", stack)
    assert len(follow_the_doctor(new_project, stack)) > 3
    came_up = new_project.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
    assert "Waiting up to" in came_up.text
    assert new_project.served_length(stack) > 0
    new_project.pulumi("preview", "--refresh", "--expect-no-changes", "--stack", stack)
    assert new_project.script("teardown", "--stack", stack, "--yes", "--json").json["clean"] is True


def follow_the_doctor(workspace, stack):
    """Execute what the doctor prints, in its order, until it prints nothing more, and return the commands. Google takes minutes to make it effective."""
    codes = {}
    for _ in itertools.repeat(None, ROUNDS):
        seen = workspace.script("doctor", "--stack", stack, expect=None)
        if seen.code == 0:
            break
        commands = [
            line.strip() for line in seen.out.partition("Fix, in this order:\n")[2].splitlines() if line[:2] == "  "
        ]
        assert commands, seen.text
        for command in commands:
            codes.setdefault(command, []).append(execute(workspace, command))
        workspace.advance(240)
    assert seen.code == 0, seen.text
    # A command that was refused, because another had not taken effect yet, was printed and executed again.
    assert all(0 in ended for ended in codes.values()), codes
    return list(codes)
