"""The workflows with the real CLI: a stack is previewed and deployed, and what changed by hand is found."""

import json
import subprocess

import pytest
import requests

from tests.engine.accounts import acting_as, set_up
from tests.engine.conftest import CAPACITY, FAILURE, LIMIT_S
from tests.tools.ci_page import step_script

STACK = "tpu-v6e1"

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]
DEPLOY_LIMIT_S = 800


def git(workspace, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *identity, *arguments],
        cwd=workspace.folder / "project",
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip()


def commit(workspace, message):
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(workspace, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def accounts(workspace):
    """The accounts of docs/ci.md, by their names."""
    names = ("ci-deploy", "ci-preview", "ci-plan", "ci-teardown")
    return dict(zip(names, set_up(workspace, *names), strict=True))


def preview_of_workflow(workspace, account):
    """Run the job `preview` of deploy.yml."""
    with acting_as(workspace, account) as job:
        done = workspace.run("scripts/preview/ci_plan.sh", environment={**job, "STACK": STACK})
    return done.out


def up_of_workflow(workspace, account, **options):
    """Run the step `Deploy` of deploy.yml."""
    with acting_as(workspace, account) as job:
        command = ("bash", "-e", "-c", step_script("deploy.yml", "Deploy"))
        return workspace.run(*command, environment={**job, "STACK": STACK}, limit_s=DEPLOY_LIMIT_S, **options)


@pytest.fixture(scope="module")
def deployed(workspace, accounts):
    """The stack with an API key, deployed by its first commit, by the accounts of the workflow."""
    (workspace.folder / "project" / ".gitignore").write_text(".venv\n__pycache__/\nout*/\nresults/\n.work/\n")
    git(workspace, "init", "--quiet")
    workspace.pulumi("stack", "init", STACK)
    workspace.script("save_token", "apiKey", "--stack", STACK, "--generate")
    first = commit(workspace, "one")
    shown = preview_of_workflow(workspace, accounts["ci-plan"])
    assert "requests TPU capacity" in shown
    said = up_of_workflow(workspace, accounts["ci-deploy"]).text
    assert f"{STACK} deployed in " in said
    assert "Outputs:" not in said
    return first


def test_what_was_deployed_answers_and_a_second_preview_changes_nothing(workspace, deployed, accounts):
    with acting_as(workspace, accounts["ci-deploy"]) as job:
        workspace.run(
            "bash", "-e", "-c", step_script("deploy.yml", "Smoke"), environment={**job, "STACK": STACK}, limit_s=LIMIT_S
        )
    assert "0 resources will change" in preview_of_workflow(workspace, accounts["ci-plan"])


EDITS = {
    "waitPerZone: 30m": ("waitPerZone: 40m", None),
    "zones: [us-east5-a, ": ("allowReplaceActive: true\n    zones: [", "replace"),
    "maxNumBatchedTokens: 4096": ("maxNumBatchedTokens: 8192", "update"),
}


@pytest.mark.parametrize("old", EDITS)
def test_the_engine_agrees_with_what_the_comment_says_of_the_capacity(workspace, deployed, tmp_path, old):
    new, op = EDITS[old]
    git(workspace, "checkout", "--quiet", deployed, "--", ".")
    restore = workspace.edit(STACK, (old, new))
    workspace.script("preview", "run", "--stack", STACK, "--out", tmp_path)
    restore()
    found = json.loads((tmp_path / f"{STACK}.json").read_text())
    ops = {item["op"] for item in found["changes"] if item["type"] == CAPACITY}
    if op is None:
        assert not {"replace", "delete"} & ops
    else:
        assert op in ops


def test_a_pull_request_is_previewed_with_no_secret_by_an_account_that_can_change_nothing(
    workspace, deployed, accounts, tmp_path
):
    """As preview.yml does it: no passphrase, and the roles of docs/ci.md."""
    git(workspace, "checkout", "--quiet", deployed, "--", ".")
    settings = workspace.settings(STACK)
    no_passphrase = {"PULUMI_CONFIG_PASSPHRASE": "", "PULUMI_CONFIG_PASSPHRASE_FILE": ""}
    restore = workspace.edit(STACK, ("maxModelLen: 8192", "maxModelLen: 4096"))
    text = settings.read_text()
    with acting_as(workspace, accounts["ci-preview"]) as reader:
        job = {**reader, **no_passphrase}
        options = ("--stack", STACK, "--out", tmp_path)
        blind = workspace.script("preview", "run", *options, environment=job, expect=1)
        assert "passphrase" in (tmp_path / f"{STACK}.json").read_text(), blind.text
        seen = workspace.script("preview", "run", "--without-secrets", *options, environment=job)
        found = json.loads((tmp_path / f"{STACK}.json").read_text())
    assert settings.read_text() == text
    # The whole state was compared: the change is the one that was made, and no secret and no label differs.
    assert [(item["type"], item["op"]) for item in found["changes"]] == [(CAPACITY, "update")]
    assert found["unchanged"] > 25, found
    assert (found["without_secrets"], found["new_stack"]) == (True, False)
    assert "`pulumi preview` decrypted no secrets" in seen.out
    with acting_as(workspace, accounts["ci-plan"]) as reader:
        refused = workspace.up(STACK, environment=reader, expect=FAILURE, limit_s=DEPLOY_LIMIT_S)
        restore()
        assert "tpu.nodes.update" in refused.text
        assert drift(workspace, tmp_path, environment=reader) == []


def test_the_account_that_deploys_grants_what_the_stack_did_and_not_itself_more(workspace, deployed, accounts):
    member, path = f"serviceAccount:{accounts['ci-deploy']}", "cloudresourcemanager/v1/projects/local-project"
    headers = {
        "Authorization": f"Bearer {workspace.post('admin/tokens', {'email': accounts['ci-deploy']})['accessToken']}"
    }
    url = f"{workspace.environment['LOCALCLOUD_URL']}/{path}"
    policy = workspace.policy()
    granted = {
        binding["role"] for binding in policy["bindings"] if any("gemma-" in each for each in binding["members"])
    }
    assert granted == {"roles/logging.logWriter", "roles/monitoring.metricWriter"}
    for role in ("roles/owner", "roles/resourcemanager.projectIamAdmin"):
        bindings = [*policy["bindings"], {"role": role, "members": [member]}]
        body = {"policy": {**policy, "version": 3, "bindings": bindings}}
        assert requests.post(f"{url}:setIamPolicy", json=body, headers=headers, timeout=20).status_code == 403


def drift(workspace, folder, environment=None):
    """Run the step of drift.yml, and return the calls of a `gh` that knows no issue."""
    (folder / "gh").write_text('#!/bin/sh\ntest "$2" = list || printf "%s\\n" "$@" END >>"$CALLS"\n')
    (folder / "gh").chmod(0o755)
    calls = folder / "calls"
    calls.write_text("")
    path = {"PATH": f"{folder}:{workspace.environment['PATH']}", "CALLS": str(calls), "RUN_URL": "https://run"}
    command = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step_script("drift.yml", "Check"))
    print(workspace.run(*command, environment={**(environment or {}), **path}).text)
    return calls.read_text().split("END\n")[:-1]


def test_a_change_by_hand_is_drift_and_no_change_is_none(workspace, deployed, tmp_path):
    assert drift(workspace, tmp_path) == []
    (node,) = workspace.made("/nodes/")
    workspace.call("PATCH", f"tpu/v2alpha1/{node}", {"labels": {"by": "hand"}}, updateMask="labels")
    workspace.advance(600)
    before = workspace.state(STACK)
    (issue,) = drift(workspace, tmp_path)
    assert issue.startswith("issue\ncreate\n")
    assert f"- `{STACK}` differs from its last deployment." in issue
    assert workspace.state(STACK) == before


def test_a_machine_that_google_took_is_deployed_again(workspace, deployed, accounts):
    (node,) = workspace.made("/nodes/")
    workspace.post("admin/preempt", {"node": node})
    said = up_of_workflow(workspace, accounts["ci-deploy"]).out
    assert "Nothing serves. The TPU VM was preempted or deleted before the planned end of its run at " in said
    assert "Resources: 1 to replace, " in said
    assert workspace.outputs(STACK)["state"] == "ACTIVE"
    assert len(workspace.made("/nodes/")) == 1


def test_teardown_by_the_workflow_leaves_nothing(workspace, deployed, accounts):
    git(workspace, "checkout", "--quiet", "HEAD", "--", ".")
    script = "scripts/teardown/ci_teardown.sh"
    refused = workspace.run(script, "out-3/receipt.json", environment={"STACK": STACK, "CONFIRM": "tpu"}, expect=2)
    assert "nothing was deleted" in refused.err
    with acting_as(workspace, accounts["ci-teardown"]) as job:
        workspace.run(script, "out-3/receipt.json", environment={**job, "STACK": STACK, "CONFIRM": STACK})
    assert json.loads((workspace.folder / "project" / "out-3" / "receipt.json").read_text())["clean"] is True
