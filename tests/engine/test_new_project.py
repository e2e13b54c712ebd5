"""A stack in an empty project: APIs off and then late, no quota, a login without a role, accounts and grants that take effect late.

The commands that the project prints are executed as a shell does; nothing here knows them. gcloud is the local cloud's, with the login of the
project's owner. Durations at Google's documented worst: `empty-project` in packages/localcloud/world/data/scenarios.json.
The TPU stack comes up by `gemma up` in a terminal of 80 columns.
"""

import itertools
import re
import sys

import pytest

from tests.engine.conftest import FAILURE, open_workspace
from tests.engine.terminal import typed

TPU, CLOUD_RUN = "tpu-v6e1-e4b", "l4-12b-qat"
ROUNDS = 8
GEMMA = "from gemma_serving.scripts.gemma.first import first_lines; print(*first_lines(limit_s=120), sep=chr(10))"
"""The output of `gemma` on a machine that may be too busy for its own limit of seconds."""

pytestmark = [pytest.mark.engine, pytest.mark.long]


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
    text = workspace.pulumi(*command, "--stack", TPU, expect=FAILURE).text
    assert "Cannot read project local-project" in text
    assert "has not been used in project" not in text
    assert f"gemma doctor {TPU}" in text
    return text


def test_one_sentence_says_that_the_login_may_not_use_or_read_the_project(new_project):
    """The rest of the module lives in the project that the commands have fixed."""
    new_project.pulumi("stack", "init", TPU)
    text = refusal(new_project, "up", "--yes", "--skip-preview")
    assert "Caller does not have required permission to use project local-project" in text
    # Where the API was off, the owner enables it first: a role is granted through it.
    unlocked = new_project.script("doctor", "--stack", TPU, expect=None).out
    for pattern in (r"gcloud services enable cloudresourcemanager\S+ .*", r"gcloud projects .*serviceUsageConsumer.*"):
        assert execute(new_project, re.search(pattern, unlocked)[0]) == 0
        new_project.advance(120)
    assert "'resourcemanager.projects.get' denied" in refusal(new_project, "preview")


def assert_shown(shown, *parts):
    found = " ".join(shown.text.split())
    assert [part for part in parts if part not in found] == [], shown.text
    return found


def test_a_tpu_stack_comes_up_by_one_word_in_a_terminal_and_goes(new_project):
    assert len(follow_the_doctor(new_project, TPU)) > 3
    with typed(new_project, sys.executable, "-m", "scripts.gemma", "up", TPU, "--yes") as shown:
        assert shown.end() == 0, shown.text
        found = assert_shown(
            shown,
            "google/gemma-4-E4B-it fits on v6e-1.",
            "Costs $1.35/h",
            f"{TPU}: requests TPU capacity. New capacity can take hours or never arrive. The first start takes",
            "to create, 2 unchanged.",
            "Cost: $1.35/h, at most $5.40 for one run of 4 h, and ",
            "Limits: no guard is known, so maxAge is not enforced: project local-project has no account ci-guard",
            f'gemma chat {TPU} "Say hello."',
        )
        assert re.search(rf"{TPU} deployed in .+ s\. Zone: us-east5-a", found), shown.text
        assert "Traceback" not in found
        assert not re.search(r"\d+m\d\ds  ", shown.text), "the two lines of the wait are still on the screen"
    told = new_project.run(sys.executable, "-c", GEMMA).out
    assert re.search(
        rf"\(Google was not queried\):\n  {TPU}  \$1\.35/h until \d.*, when Google deletes the VM\nNext: gemma status\n",
        told,
    ), told
    assert new_project.served_length(TPU) > 0
    new_project.assert_no_changes(TPU, "--refresh")


def test_a_changed_flag_is_stated_with_the_restart_and_its_minutes_before_the_question(new_project):
    restore = new_project.edit(TPU, ("maxModelLen: 8192", "maxModelLen: 4096"))
    with typed(new_project, sys.executable, "-m", "scripts.gemma", "up", TPU) as shown:
        shown.until(lambda it: "(yes/no)" in it.text, "the question")
        assert_shown(
            shown,
            "--max-model-len: 8192 -> 4096, restarts in place, about",
            f"{TPU}: restarts the server on its node and keeps the capacity.",
            "Requests fail while the server restarts: about",
            "Cost: $1.35/h, as now, at most ",
        )
        assert shown.type("no\n") == 2, shown.text
        assert "up: Cancelled. No resource was changed." in shown.text
    restore()
    new_project.teardown(TPU)


def test_a_service_comes_up_stays_free_of_drift_and_goes(new_project):
    new_project.pulumi("stack", "init", CLOUD_RUN)
    assert len(follow_the_doctor(new_project, CLOUD_RUN)) > 3
    assert "Waiting up to" in new_project.up(CLOUD_RUN).text
    assert new_project.served_length(CLOUD_RUN) > 0
    new_project.assert_no_changes(CLOUD_RUN, "--refresh")
    new_project.teardown(CLOUD_RUN)


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
