"""A policy that still names a deleted account rejects the new one, and the program names the command that removes it."""

import asyncio

import pulumi
import pytest
import requests

from localcloud.environment import API_OVERRIDES
from localcloud.tests import idle_cloud
from localcloud.world.scenario import OperationDurations, Scenario
from stacks.project import propagation

PROJECT, LOCATION = "local-project", "us-east4"
EMAIL = f"gemma-x@{PROJECT}.iam.gserviceaccount.com"
OTHER = f"other-account@{PROJECT}.iam.gserviceaccount.com"
MEMBER, KEPT = f"serviceAccount:{EMAIL}", "user:alice@example.com"
PLACE = f"projects/{PROJECT}/locations/{LOCATION}"
SERVICE = {"template": {"containers": [{"image": "us-docker.pkg.dev/cloudrun/container/hello"}]}}
ACCOUNT = f"iam/v1/projects/{PROJECT}/serviceAccounts"

HOLDERS = {
    "gcp:projects/iAMMember:IAMMember": (
        {"project": PROJECT, "role": "roles/logging.logWriter"},
        "POST",
        f"cloudresourcemanager/v1/projects/{PROJECT}",
    ),
    "gcp:serviceaccount/iAMMember:IAMMember": (
        {"serviceAccountId": f"projects/{PROJECT}/serviceAccounts/{OTHER}", "role": "roles/iam.serviceAccountUser"},
        "POST",
        f"{ACCOUNT}/{OTHER}",
    ),
    "gcp:secretmanager/secretIamMember:SecretIamMember": (
        {"project": PROJECT, "secretId": f"projects/{PROJECT}/secrets/s", "role": "roles/secretmanager.secretAccessor"},
        "GET",
        f"secretmanager/v1/projects/{PROJECT}/secrets/s",
    ),
    "gcp:storage/bucketIAMMember:BucketIAMMember": (
        {"bucket": "models", "role": "roles/storage.objectViewer"},
        "",
        "storage/storage/v1/b/models/iam",
    ),
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": (
        {"project": PROJECT, "location": LOCATION, "repository": "r", "role": "roles/artifactregistry.reader"},
        "GET",
        f"artifactregistry/v1/{PLACE}/repositories/r",
    ),
    "gcp:cloudrunv2/serviceIamMember:ServiceIamMember": (
        {"project": PROJECT, "location": LOCATION, "name": f"{PLACE}/services/s", "role": "roles/run.invoker"},
        "GET",
        f"run/v2/{PLACE}/services/s",
    ),
}


class World:
    """Resources with policies, and an account with a grant on each."""

    def __init__(self, started):
        self.started = started
        for api in ("iam", "secretmanager", "storage", "artifactregistry", "run", "cloudresourcemanager"):
            self.send("POST", f"serviceusage/v1/projects/{PROJECT}/services/{api}.googleapis.com:enable", {})
        self.send("POST", ACCOUNT, {"accountId": "other-account"})
        self.send("POST", f"secretmanager/v1/projects/{PROJECT}/secrets?secretId=s", {"replication": {"automatic": {}}})
        self.send("POST", f"storage/storage/v1/b?project={PROJECT}", {"name": "models", "location": "US-EAST4"})
        self.send("POST", f"artifactregistry/v1/{PLACE}/repositories?repositoryId=r", {"format": "DOCKER"})
        self.send("POST", f"run/v2/{PLACE}/services?serviceId=s", SERVICE)

    def send(self, verb, path, body=None):
        headers = {"Authorization": f"Bearer {self.started.token}"}
        url = f"{self.started.base_url}/{path}"
        answer = requests.request(verb, url, json=body, headers=headers, timeout=60)
        if not answer.ok:
            raise RuntimeError(answer.json()["error"]["message"])
        return answer.json() if answer.content else {}

    def make_account(self):
        self.send("POST", ACCOUNT, {"accountId": "gemma-x"})

    def delete_account(self):
        self.send("DELETE", f"{ACCOUNT}/{EMAIL}")

    def policy(self, type_):
        _, verb, path = HOLDERS[type_]
        if not verb:
            return self.send("GET", f"{path}?optionsRequestedPolicyVersion=3")
        if verb == "GET":
            return self.send("GET", f"{path}:getIamPolicy?options.requestedPolicyVersion=3")
        return self.send("POST", f"{path}:getIamPolicy", {})

    def members(self, type_):
        return {member for binding in self.policy(type_).get("bindings", []) for member in binding["members"]}

    def grant(self, type_, member=MEMBER):
        """Add a member as the provider does: read, change, write."""
        inputs, verb, path = HOLDERS[type_]
        policy = self.policy(type_)
        bindings = [*policy.get("bindings", []), {"role": inputs["role"], "members": [member]}]
        body = {**policy, "bindings": bindings}
        if verb:
            self.send("POST", f"{path}:setIamPolicy", {"policy": body})
        else:
            self.send("PUT", path, body)


@pytest.fixture
def world():
    with idle_cloud.start(scenario=Scenario(operations=OperationDurations(instant=True))) as started:
        yield World(started)


@pytest.fixture(autouse=True)
def endpoints(world, monkeypatch):
    for api, path in API_OVERRIDES.items():
        monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}", f"{world.started.base_url}/{path}")
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", world.started.token)
    monkeypatch.setattr(pulumi, "get_stack", lambda: "x")


def failed(type_, errors):
    inputs = {**HOLDERS[type_][0], "member": MEMBER}
    return pulumi.ErrorHookArgs("urn", "", "n", type_, new_inputs=inputs, failed_operation="create", errors=errors)


@pytest.fixture
def refused(world):
    """Make the account again with its grants deleted, and return what Google says to one of a type."""

    def refuse(type_):
        world.make_account()
        world.grant(type_)
        world.grant(type_, KEPT)
        world.delete_account()
        world.make_account()
        with pytest.raises(RuntimeError, match="Inconsistent representation of deleted member") as caught:
            world.grant(type_)
        return str(caught.value)

    return refuse


@pytest.mark.parametrize("type_", HOLDERS)
def test_google_s_refusal_names_the_command_that_removes_the_grant(world, refused, monkeypatch, type_):
    told = []
    monkeypatch.setattr(pulumi.log, "warn", told.append)
    error = refused(type_)
    before = world.members(type_)
    assert not asyncio.run(propagation._Waits(PROJECT).again(failed(type_, [error])))
    (deleted,) = (member for member in before if member.startswith("deleted:"))
    assert f" --member='{deleted}' --role={HOLDERS[type_][0]['role']}`, then `pulumi up --stack x`." in told[0]
    assert world.members(type_) == before


def test_the_command_is_whole(refused, monkeypatch):
    type_, told = "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember", []
    monkeypatch.setattr(pulumi.log, "warn", told.append)
    error = refused(type_)
    asyncio.run(propagation._Waits(PROJECT).again(failed(type_, [error])))
    command = (
        f"gcloud artifacts repositories remove-iam-policy-binding r --location=us-east4 --project={PROJECT} --member="
    )
    assert f"Run `{command}" in told[0]
