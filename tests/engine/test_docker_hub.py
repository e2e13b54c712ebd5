"""An account of Docker Hub: Artifact Registry pulls with it, and its token is in no state, preview or message. With the real CLI."""

import base64

import pytest

from gemma_serving.contracts.staged_weights import STAGING_VARIABLE
from tests.engine.conftest import FAILURE, PROJECT

STACK = "l4-qat"
CANARY = "dckr_pat_canaryCANARYcanary"
SECRET = "projects/local-project/secrets/docker-hub"
TARGETS = tuple(
    f"--target=**{kind}"
    for kind in (
        ":Provider::gcp",
        ":ServiceIdentity::artifact-registry",
        ":SecretIamMember::docker-hub-token",
        ":Repository::image",
    )
)

pytestmark = [pytest.mark.engine, pytest.mark.long]


def add_token(workspace, token):
    """Store a token as the settings page says, with gcloud's requests."""
    if not workspace.made(SECRET):
        body = {"replication": {"automatic": {}}}
        workspace.post(f"secretmanager/v1/projects/{PROJECT}/secrets?secretId=docker-hub", body)
    data = base64.b64encode(token.encode()).decode()
    workspace.post(f"secretmanager/v1/{SECRET}:addVersion", {"payload": {"data": data}})


def up(workspace, version, *, expect):
    account = {"username": "someone", "tokenSecret": f"{SECRET}/versions/{version}"}
    workspace.configure(STACK, dockerHub=account)
    environment = {STAGING_VARIABLE: "1"}  # the targets have no server, as in stage_model
    return workspace.pulumi("up", "--yes", "--stack", STACK, *TARGETS, environment=environment, expect=expect)


def test_the_repository_pulls_with_the_account_and_the_token_is_nowhere(workspace):
    accounts = {"images": {"docker_hub_accounts": {"someone": CANARY}}, "iam": {"lag_s": 120}}
    workspace.change_scenario(accounts)
    add_token(workspace, "a wrong token")
    add_token(workspace, CANARY)
    workspace.pulumi("stack", "init", STACK)
    refused = up(workspace, 1, expect=FAILURE)
    assert "Upstream credentials are not valid" in refused.text
    assert "gemma-serving:dockerHub. Check that username is the account, and that tokenSecret is" in refused.text
    done = up(workspace, 2, expect=0)
    (repository,) = workspace.resources(STACK, "gcp:artifactregistry/repository:Repository")
    credentials = repository["inputs"]["remoteRepositoryConfig"]["upstreamCredentials"]["usernamePasswordCredentials"]
    assert (credentials["username"], credentials["passwordSecretVersion"]) == ("someone", f"{SECRET}/versions/2")
    for text in (workspace.state(STACK), refused.text, done.text):
        assert CANARY not in text
    workspace.pulumi("preview", "--expect-no-changes", "--stack", STACK, *TARGETS)
    workspace.script("teardown", "--stack", STACK, "--yes")
