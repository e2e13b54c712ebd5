"""An account of Docker Hub: Artifact Registry pulls with it, and its token is in no state, preview or message. With the real CLI."""

import base64
import json

import pytest
import requests
import yaml

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
    base = workspace.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"]
    requests.post(
        f"{base}v1/projects/local-project/secrets?secretId=docker-hub",
        json={"replication": {"automatic": {}}},
        headers=workspace.identity,
        timeout=60,
    )
    data = base64.b64encode(token.encode()).decode()
    added = requests.post(
        f"{base}v1/{SECRET}:addVersion", json={"payload": {"data": data}}, headers=workspace.identity, timeout=60
    )
    added.raise_for_status()


def up(workspace, version, *, expect):
    path = workspace.folder / "project" / f"Pulumi.{STACK}.yaml"
    settings = yaml.safe_load(path.read_text())
    settings["config"]["gemma-serving:dockerHub"] = {
        "username": "someone",
        "tokenSecret": f"{SECRET}/versions/{version}",
    }
    path.write_text(yaml.safe_dump(settings))
    return workspace.pulumi("up", "--yes", "--stack", STACK, *TARGETS, expect=expect)


def test_the_repository_pulls_with_the_account_and_the_token_is_nowhere(workspace):
    accounts = {"images": {"docker_hub_accounts": {"someone": CANARY}}, "iam": {"lag_s": 120}}
    workspace.change_scenario(accounts)
    add_token(workspace, "a wrong token")
    add_token(workspace, CANARY)
    workspace.pulumi("stack", "init", STACK)
    refused = up(workspace, 1, expect=None)
    assert refused.code != 0
    assert "Upstream credentials are not valid" in refused.text
    assert "gemma-serving:dockerHub. Check that username is the account, and that tokenSecret is" in refused.text
    done = up(workspace, 2, expect=0)
    resources = json.loads(workspace.state(STACK))["checkpoint"]["latest"]["resources"]
    (repository,) = [found for found in resources if found["type"] == "gcp:artifactregistry/repository:Repository"]
    credentials = repository["inputs"]["remoteRepositoryConfig"]["upstreamCredentials"]["usernamePasswordCredentials"]
    assert (credentials["username"], credentials["passwordSecretVersion"]) == ("someone", f"{SECRET}/versions/2")
    for text in (workspace.state(STACK), refused.text, done.text):
        assert CANARY not in text
    workspace.pulumi("preview", "--expect-no-changes", "--stack", STACK, *TARGETS)
    workspace.script("teardown", "--stack", STACK, "--yes")
