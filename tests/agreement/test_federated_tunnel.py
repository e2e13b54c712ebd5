"""A tunnel from GitHub: gcloud refuses OS Login with a federation's credential, and the deploy job gets in as docs/ci.md sets it up."""

import json
import shutil
import subprocess

import pytest

from localcloud.environment import inherited_variables
from localcloud.running.shims import gcloud, gcloud_login
from localcloud.running.shims.gcloud import CommandError, CrashError
from localcloud.tests.conftest import PROJECT_POLICY, grant
from localcloud.tests.server import gcloud_commands
from tests.agreement.test_tunnel_rights import (
    NODE,
    PROJECT,
    SERVER_POLICY,
    node,
)
from tests.tools.ci_page import WORKFLOWS, account_grants, page_commands

__all__ = ["node"]

CI_DEPLOY = "ci-deploy@local-project.iam.gserviceaccount.com"
TOKEN_URL = f"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{CI_DEPLOY}:generateAccessToken"
(STEP,) = (step for step in WORKFLOWS["deploy.yml"]["jobs"]["deploy"]["steps"] if step.get("name") == "Smoke")
(AUTH,) = (step for step in WORKFLOWS["deploy.yml"]["jobs"]["deploy"]["steps"] if step.get("name") == "Authenticate")


def own_roles(account):
    """Return the roles that the page grants an account on itself."""
    grants = [
        command for command in page_commands() if command[:3] == ["iam", "service-accounts", "add-iam-policy-binding"]
    ]
    itself = f"--member=serviceAccount:{account}@"
    return {
        word.removeprefix("--role=")
        for command in grants
        if command[3].startswith(f"{account}@") and any(word.startswith(itself) for word in command)
        for word in command
        if word.startswith("--role=")
    }


@pytest.fixture
def job(node, tmp_path, monkeypatch):
    """The project as docs/ci.md sets it up, without the rights of ci-deploy on itself, and the environment of a job that has authenticated."""
    node.ok("POST", f"/iam/v1/{PROJECT}/serviceAccounts", {"accountId": "ci-deploy"})
    member = f"serviceAccount:{CI_DEPLOY}"
    for role, expression in account_grants("ci-deploy").items():
        if role.startswith("projects/"):
            continue  # a tunnel creates nothing
        grant(node, PROJECT_POLICY, role, expression, member=member)
    grant(node, SERVER_POLICY, "roles/iam.serviceAccountUser", member=member)
    assert AUTH["with"]["service_account"] == "${{ vars.GCP_DEPLOY_SERVICE_ACCOUNT }}"
    # What google-github-actions/auth writes and exports.
    credentials = tmp_path / "gha-creds-1.json"
    credentials.write_text(json.dumps({"type": "external_account", "service_account_impersonation_url": TOKEN_URL}))
    monkeypatch.setenv(gcloud_login.CREDENTIALS, str(credentials))
    monkeypatch.delenv(gcloud_login.IMPERSONATED, raising=False)
    return node


def smoke_step(monkeypatch):
    """Set the variables of the Smoke step that gcloud reads."""
    assert gcloud_login.IMPERSONATED in STEP["env"]
    for name, value in STEP["env"].items():
        if name.startswith("CLOUDSDK_"):
            monkeypatch.setenv(name, value.replace("${{ vars.GCP_DEPLOY_SERVICE_ACCOUNT }}", CI_DEPLOY))


def log_in(node_name=NODE):
    gcloud.log_in(node_name, gcloud._login(""))


def test_the_credential_of_a_federation_opens_no_tunnel(job):
    with pytest.raises(
        CrashError, match=r"^gcloud crashed \(AttributeError\): 'NoneType' object has no attribute 'id'\n"
    ):
        log_in()


def test_an_instance_refuses_it_in_other_words(job, monkeypatch):
    shown = {"accessToken": "t", "metadata": {"items": [{"key": "enable-oslogin", "value": "TRUE"}]}}
    monkeypatch.setattr(gcloud, "_call", lambda *_, **__: shown)
    with pytest.raises(CrashError, match="SSH using federated workforce identities is not yet generally available"):
        log_in(NODE.replace("nodes", "instances"))


def test_who_may_not_make_its_own_tokens_cannot_impersonate_itself(job, monkeypatch):
    smoke_step(monkeypatch)
    with pytest.raises(CommandError, match="Failed to impersonate"):
        log_in()


def test_the_smoke_step_opens_the_tunnel_with_the_rights_of_the_page(job, monkeypatch):
    smoke_step(monkeypatch)
    assert own_roles("ci-deploy") == {"roles/iam.serviceAccountTokenCreator"}
    for role in own_roles("ci-deploy"):
        grant(job, f"/iam/v1/{PROJECT}/serviceAccounts/{CI_DEPLOY}", role, member=f"serviceAccount:{CI_DEPLOY}")
    log_in()


def test_every_step_that_opens_a_tunnel_impersonates():
    """The commands that open one, where a job has authenticated: the smoke checks, the benchmark and others."""
    opening = ("gemma smoke", "gemma bench", "gemma connect", "gemma chat")
    found = {
        (name, step["name"]): gcloud_login.IMPERSONATED in step.get("env", {})
        for name, flow in WORKFLOWS.items()
        for job in flow["jobs"].values()
        if any(str(step.get("uses", "")).startswith("google-github-actions/auth@") for step in job.get("steps", ()))
        for step in job.get("steps", ())
        if any(command in step.get("run", "") for command in opening)
    }
    assert found == {("deploy.yml", "Smoke"): True}


def test_a_command_of_the_local_cloud_inherits_no_real_credential(monkeypatch):
    names = {gcloud_login.CREDENTIALS, gcloud_login.IMPERSONATED, gcloud_login.ACCOUNT}
    for name in names:
        monkeypatch.setenv(name, "real")
    assert names & inherited_variables().keys() == set()


REAL = """
import sys
root = sys.argv[1]
sys.path[:0] = [root + "/lib", root + "/lib/third_party"]
from types import SimpleNamespace
from googlecloudsdk.calliope import base
from googlecloudsdk.command_lib.util.ssh import ssh
from googlecloudsdk.core import properties
properties.VALUES.core.account.Set("a@b.iam.gserviceaccount.com")
ssh.IsThirdPartyUser = lambda: True
items = [SimpleNamespace(key="enable-oslogin", value="TRUE")]
project = SimpleNamespace(name="p", commonInstanceMetadata=SimpleNamespace(items=items))
for track in (base.ReleaseTrack.ALPHA, base.ReleaseTrack.GA):
    try:
        ssh.GetOsloginState(None, project, "u", "ssh-rsa k", None, track, instance_enable_oslogin=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.long
def test_the_words_are_those_of_the_real_gcloud(tmp_path):
    """Where gcloud is installed: its own functions, with a credential that it counts as a third party's."""
    found = gcloud_commands.installed() if shutil.which("gcloud") else None
    if found is None:
        pytest.skip("gcloud with its alpha track is not installed")
    token = tmp_path / "token"
    token.write_text("x")
    done = subprocess.run(
        [found.python, "-S", "-c", REAL, found.root],
        env=gcloud_commands.clean(
            CLOUDSDK_CONFIG=str(tmp_path), CLOUDSDK_AUTH_ACCESS_TOKEN_FILE=str(token), CLOUDSDK_CORE_DISABLE_PROMPTS="1"
        ),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    said = [line.partition(": ") for line in done.stdout.splitlines()]
    for (kind, _, words), ours in zip(said, (gcloud_login.NO_INSTANCE, gcloud_login.NOT_IN_GA), strict=True):
        assert ours.startswith(f"gcloud crashed ({kind}): {words}\n"), words
