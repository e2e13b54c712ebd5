"""The stand-in and the local cloud together: a repository that pulls with an account of Docker Hub."""

import asyncio
import base64

import grpc.aio
import pytest

from localcloud.plugins.rest import LocalCloudTransport
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import SCENARIO, Client
from localcloud.tests.plugins.harness import engine
from localcloud.world.scenario import Images

P = "projects/local-project"
API = "artifactregistry.googleapis.com"


def inputs(version):
    credentials = {"username": "someone", "passwordSecretVersion": f"{P}/secrets/hub/versions/{version}"}
    return {
        "repositoryId": "hub",
        "location": "us-east4",
        "project": "local-project",
        "format": "DOCKER",
        "mode": "REMOTE_REPOSITORY",
        "remoteRepositoryConfig": {
            "dockerRepository": {"publicRepository": "DOCKER_HUB"},
            "upstreamCredentials": {"usernamePasswordCredentials": credentials},
        },
    }


@pytest.fixture
def cloud():
    images = Images(docker_hub_accounts={"someone": "right"})
    with idle_cloud.start(scenario=SCENARIO.model_copy(update={"images": images})) as started:
        client = Client(started.base_url, started.token)
        client.ok("POST", f"/secretmanager/v1/{P}/secrets", {"replication": {"automatic": {}}}, secretId="hub")
        for token in (b"wrong", b"right"):
            payload = {"payload": {"data": base64.b64encode(token).decode()}}
            client.ok("POST", f"/secretmanager/v1/{P}/secrets/hub:addVersion", payload)
        yield started


def test_the_agent_is_made_then_granted_then_the_repository_takes_the_account(cloud):
    async def refused(attached, version):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await attached.up("gcp:artifactregistry/repository:Repository", "image", inputs(version))
        return error.value.details()

    async def scenario():
        async with engine(
            LocalCloudTransport(cloud.base_url), token=cloud.token, project="local-project", region="us-east4"
        ) as attached:
            identity = {"service": API, "project": "local-project"}
            agent = await attached.up("gcp:projects/serviceIdentity:ServiceIdentity", "agent", identity)
            assert agent.id == f"{P}/services/{API}"
            denied = await refused(attached, 2)
            assert f"denied for service account {agent.state['email']}" in denied
            grant = {
                "secretId": f"{P}/secrets/hub",
                "role": "roles/secretmanager.secretAccessor",
                "member": agent.state["member"],
            }
            await attached.up("gcp:secretmanager/secretIamMember:SecretIamMember", "grant", grant)
            assert "Upstream credentials are not valid" in await refused(attached, 1)
            made = await attached.up("gcp:artifactregistry/repository:Repository", "image", inputs(2))
            kept = made.state["remoteRepositoryConfig"]["upstreamCredentials"]["usernamePasswordCredentials"]
            assert kept["passwordSecretVersion"].endswith("/versions/2")

    asyncio.run(scenario())
