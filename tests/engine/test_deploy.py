"""A deployment with the real CLI: a commit that passes is kept, one that fails is rolled back, and what changed by hand is found."""

import json
import subprocess

import pytest
import requests

STACK = "tpu-v6e1"
ZONES = ("us-east5-a", "us-east5-b", "europe-west4-a", "southamerica-west1-a")
CAPACITY = "gcp-tpu:index:QueuedResource"

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
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
    git(workspace, "commit", "--quiet", "--message", message)
    return git(workspace, "rev-parse", "HEAD")


def change(workspace, old, new):
    path = workspace.folder / "project" / f"Pulumi.{STACK}.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return lambda: path.write_text(text)


def good_commit(workspace):
    return workspace.pulumi("stack", "tag", "get", "gemma-serving:good-commit", "--stack", STACK).out.strip()


def post(workspace, path, body):
    url = f"{workspace.environment['LOCALCLOUD_URL']}/{path}"
    answer = requests.post(url, json=body, headers=workspace.identity, timeout=20)
    assert answer.ok, answer.text
    return answer.json()


def grant(workspace, account_id, roles):
    """Make a service account with roles on the project, wait until they take effect, and return its address."""
    account, project = (
        f"{account_id}@local-project.iam.gserviceaccount.com",
        "cloudresourcemanager/v1/projects/local-project",
    )
    post(workspace, "iam/v1/projects/local-project/serviceAccounts", {"accountId": account_id})
    policy = post(workspace, f"{project}:getIamPolicy", {"options": {"requestedPolicyVersion": 3}})
    bindings = [{"role": role, "members": [f"serviceAccount:{account}"]} for role in roles]
    changed = {**policy, "version": 3, "bindings": [*policy.get("bindings", []), *bindings]}
    post(workspace, f"{project}:setIamPolicy", {"policy": changed})
    workspace.advance(600)
    return account


@pytest.fixture(scope="module")
def deployed(workspace):
    """The stack, deployed by its first commit."""
    (workspace.folder / "project" / ".gitignore").write_text(".venv\n__pycache__/\nout*/\nresults/\n.work/\n")
    git(workspace, "init", "--quiet")
    first = commit(workspace, "one")
    workspace.run(
        "scripts/deploy/ci_deploy.sh", "out-1", environment={"STACK": STACK, "BENCH": "false"}, limit_s=DEPLOY_LIMIT_S
    )
    report = json.loads((workspace.folder / "project" / "out-1" / "deploy.json").read_text())
    assert report["outcome"] == "deployed"
    assert report["commit"] == first
    return first


def test_a_commit_that_passes_is_kept_as_the_last_good_one(workspace, deployed):
    assert good_commit(workspace) == deployed


@pytest.mark.long
def test_a_tunnel_that_gcloud_refuses_keeps_the_commit_and_rolls_nothing_back(workspace, deployed, tmp_path):
    """The credential of a job on GitHub, without the variable with which deploy.yml makes gcloud impersonate the account."""
    account = "ci-deploy@local-project.iam.gserviceaccount.com"
    url = f"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
    credentials = tmp_path / "gha-creds-1.json"
    credentials.write_text(json.dumps({"type": "external_account", "service_account_impersonation_url": url}))
    grant(workspace, "ci-deploy", ("roles/tpu.admin", "roles/compute.viewer"))
    unverified = commit(workspace, "not verified")
    found = workspace.script(
        "deploy",
        *("--stack", STACK, "--no-bench", "--out", "out-unverified", "--json"),
        environment={"CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE": str(credentials)},
        expect=1,
        limit_s=DEPLOY_LIMIT_S,
    )
    assert (found.json["outcome"], found.json["commit"]) == ("not verified", unverified)
    assert "before it opened" in found.err
    assert "ERROR: gcloud crashed (AttributeError)" in found.err
    assert f"`git checkout {deployed}`" in found.json["reason"]
    assert good_commit(workspace) == deployed


@pytest.mark.long
def test_a_failed_check_brings_the_last_good_commit_back(workspace, deployed):
    """The new length is deployed and serves; the threshold that nothing meets fails the smoke checks."""
    served = workspace.served_length(STACK)
    change(workspace, f"maxModelLen: {served}", f"maxModelLen: {served // 2}")
    change(workspace, "config:\n", "config:\n  gemma-serving:smoke: { minDecodeTokPerS: 100000000 }\n")
    second = commit(workspace, "two")
    failed = workspace.script(
        "deploy", "--stack", STACK, "--no-bench", "--out", "out-2", "--json", expect=1, limit_s=DEPLOY_LIMIT_S
    )
    assert failed.json["outcome"] == "rolled back"
    assert failed.json["commit"] == second
    assert failed.json["rolled_back_to"] == deployed
    assert "cannot bring back TPU capacity" in failed.err
    assert workspace.served_length(STACK) == served
    assert good_commit(workspace) == deployed
    assert len(git(workspace, "worktree", "list").splitlines()) == 1
    assert (workspace.folder / "project" / "out-2" / "smoke-rolled-back.xml").is_file()


EDITS = {
    "waitPerZone: 30m": ("waitPerZone: 40m", None),
    "zones: [us-east5-a, ": ("allowReplaceActive: true\n    zones: [", "replace"),
    "maxNumBatchedTokens: 4096": ("maxNumBatchedTokens: 8192", "update"),
}


@pytest.mark.parametrize("old", EDITS)
@pytest.mark.long
def test_the_engine_agrees_with_what_the_comment_says_of_the_capacity(workspace, deployed, tmp_path, old):
    new, op = EDITS[old]
    git(workspace, "checkout", "--quiet", deployed, "--", ".")
    restore = change(workspace, old, new)
    workspace.script("preview", "run", "--stack", STACK, "--out", tmp_path)
    restore()
    found = json.loads((tmp_path / f"{STACK}.json").read_text())
    ops = {item["op"] for item in found["changes"] if item["type"] == CAPACITY}
    if op is None:
        assert not {"replace", "delete"} & ops
    else:
        assert op in ops


def test_the_roles_of_the_preview_account_are_enough_to_look_and_not_to_change(workspace, deployed, tmp_path):
    """The roles of docs/ci.md."""
    git(workspace, "checkout", "--quiet", deployed, "--", ".")
    account = grant(
        workspace,
        "ci-preview",
        (
            "roles/viewer",
            "roles/iam.securityReviewer",
            "roles/storage.objectViewer",
            "roles/serviceusage.serviceUsageConsumer",
        ),
    )
    token = post(workspace, "admin/tokens", {"email": account})["accessToken"]
    reader = {"GOOGLE_OAUTH_ACCESS_TOKEN": token, "GOOGLE_APPLICATION_CREDENTIALS": ""}
    workspace.script("preview", "run", "--stack", STACK, "--out", tmp_path, environment=reader)
    workspace.script("drift", "--stack", STACK, environment=reader)
    restore = change(workspace, "maxModelLen: 16384", "maxModelLen: 8192")
    refused = workspace.pulumi(
        "up", "--yes", "--skip-preview", "--stack", STACK, environment=reader, expect=None, limit_s=DEPLOY_LIMIT_S
    )
    restore()
    assert refused.code != 0
    assert "tpu.nodes.update" in refused.text, refused.text


def test_a_change_by_hand_is_drift_and_no_change_is_none(workspace, deployed):
    assert "No deployed stack differs" in workspace.script("drift", "--stack", STACK).out
    listed = [workspace.get("tpu", f"v2alpha1/projects/local-project/locations/{zone}/nodes") for zone in ZONES]
    (node,) = [node for found in listed for node in found.get("nodes", [])]
    patched = requests.patch(
        f"{workspace.environment['LOCALCLOUD_URL']}/tpu/v2alpha1/{node['name']}?updateMask=labels",
        json={"labels": {"by": "hand"}},
        headers=workspace.identity,
        timeout=10,
    )
    patched.raise_for_status()
    workspace.advance(600)
    before = workspace.state(STACK)
    found = workspace.script("drift", "--stack", STACK, expect=1)
    assert "is changed: `labels`" in found.out
    assert workspace.state(STACK) == before


@pytest.mark.long
def test_a_stack_that_was_never_deployed_is_no_drift(workspace):
    assert "No deployed stack differs" in workspace.script("drift", "--stack", "tpu-v6e4").out


def test_teardown_by_the_workflow_leaves_nothing(workspace, deployed):
    git(workspace, "checkout", "--quiet", "HEAD", "--", ".")
    script = "scripts/teardown/ci_teardown.sh"
    refused = workspace.run(script, "out-3/receipt.json", environment={"STACK": STACK, "CONFIRM": "tpu"}, expect=2)
    assert "nothing was deleted" in refused.err
    workspace.run(script, "out-3/receipt.json", environment={"STACK": STACK, "CONFIRM": STACK})
    assert json.loads((workspace.folder / "project" / "out-3" / "receipt.json").read_text())["clean"] is True


def test_a_closed_pull_request_without_a_preview_environment_has_nothing_to_take_down(workspace):
    done = workspace.run("scripts/teardown/ci_teardown.sh", "out-4/receipt.json", environment={"PULL_REQUEST": "7"})
    assert "The pull request has no preview environment." in done.out
