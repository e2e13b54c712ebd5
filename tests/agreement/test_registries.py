"""Which images exist, who may pull them, Docker Hub's limits, and what the registries answer."""

import base64
import json
import re
from pathlib import Path

import pytest
import requests

from gemma_serving.planning.data.images import IMAGES
from localcloud.services.registries import parse
from localcloud.tests.conftest import grant
from localcloud.world.scenario import Images

ROOT = Path(__file__).parents[2]
P = "projects/local-project"
REPOSITORIES = f"/artifactregistry/v1/{P}/locations/us-east4/repositories"
SERVICES = f"/run/v2/{P}/locations/us-east4/services"
OPENAI, TPU = (text.partition("@")[2] for text in Images().existing[:2])
NOWHERE = "sha256:" + "0" * 64
REMOTE = {
    "format": "DOCKER",
    "mode": "REMOTE_REPOSITORY",
    "remoteRepositoryConfig": {"dockerRepository": {"publicRepository": "DOCKER_HUB"}},
}
AGENT = "gcp-sa-artifactregistry.iam.gserviceaccount.com"


def repository(client, name="hub", body=REMOTE):
    client.ok("POST", REPOSITORIES, body, repositoryId=name)
    return f"us-east4-docker.pkg.dev/local-project/{name}"


def deploy(client, image, name="try"):
    operation = client.ok("POST", SERVICES, {"template": {"containers": [{"image": image}]}}, serviceId=name)
    return client.ok("POST", f"/run/v2/{operation['name']}:wait", {"timeout": "20s"})


def ask(client, reference, method="GET", token="", machine="vm-1", **options):
    """Ask a registry for a manifest as docker does."""
    found = parse(reference)
    path = f"/registry/{found.host}/v2/{found.name}/manifests/{found.digest or found.tag}"
    headers = {
        "X-Localcloud-Client": machine,
        **({} if token is None else {"Authorization": f"Bearer {token or client.token}"}),
    }
    return requests.request(method, client.base_url + path, headers=headers, timeout=60, **options)


def refusal(answer):
    assert answer.status_code >= 400
    (error,) = answer.json()["errors"]
    return answer.status_code, error["code"], error["message"]


def scenario(client, **images):
    client.ok("PUT", "/admin/scenario", {"images": images}, merge="true")


def secret(client, name="hub-token", value="right"):
    client.ok("POST", f"/secretmanager/v1/{P}/secrets", {"replication": {"automatic": {}}}, secretId=name)
    data = base64.b64encode(value.encode()).decode()
    client.ok("POST", f"/secretmanager/v1/{P}/secrets/{name}:addVersion", {"payload": {"data": data}})
    return f"{P}/secrets/{name}/versions/1"


def grant_to_agent(client, cloud):
    member = f"serviceAccount:service-{cloud.cloud.project_number('local-project')}@{AGENT}"
    grant(client, f"/secretmanager/v1/{P}/secrets/hub-token", "roles/secretmanager.secretAccessor", member=member)


def with_account(version, username="someone", **config):
    credentials = {"usernamePasswordCredentials": {"username": username, "passwordSecretVersion": version}}
    upstream = {**REMOTE["remoteRepositoryConfig"], "upstreamCredentials": credentials, **config}
    return {**REMOTE, "remoteRepositoryConfig": upstream}


def test_the_images_of_the_stacks_exist_by_default():
    listed = {(found.name, found.digest) for found in map(parse, Images().existing)}
    assert {(image.repository, image.digest) for image in IMAGES.values()} <= listed


class TestExistence:
    @pytest.mark.parametrize(
        "image",
        [
            f"{{repository}}/vllm/vllm-openai@{NOWHERE}",
            "{repository}/vllm/vllm-openai:nightly",
            f"{{repository}}/vllm/vllm-opanai@{OPENAI}",
            "docker.io/nobody/nothing",
            "us-docker.pkg.dev/another-project/r/x",
            "us-east4-docker.pkg.dev/local-project/norepo/x",
        ],
    )
    def test_a_revision_of_an_image_that_does_not_exist_fails_in_cloud_runs_words(self, own_client, image):
        image = image.format(repository=repository(own_client))
        error = deploy(own_client, image)["error"]
        revision = own_client.ok("GET", f"{SERVICES}/try")["latestCreatedRevision"].rpartition("/")[2]
        said = f"Revision '{revision}' is not ready and cannot serve traffic. Image '{image}' not found."
        assert (error["code"], error["message"]) == (5, said)
        assert "latestReadyRevision" not in own_client.ok("GET", f"{SERVICES}/try")

    def test_an_image_of_docker_hub_exists_through_a_remote_repository_and_is_kept_there(self, own_client):
        image = f"{repository(own_client)}/vllm/vllm-openai@{OPENAI}"
        assert "error" not in deploy(own_client, image)
        assert own_client.ok("GET", "/admin/images")["repositories"] == [image]
        scenario(own_client, existing=[], docker_hub_pulls=0)
        assert "error" not in deploy(own_client, image, "again")

    def test_cloud_run_does_not_say_that_docker_hub_refused(self, own_client):
        image = f"{repository(own_client)}/vllm/vllm-openai@{OPENAI}"
        scenario(own_client, docker_hub_pulls=0)
        assert deploy(own_client, image)["error"]["message"].endswith(f"Image '{image}' not found.")

    def test_a_pushed_image_exists_until_its_repository_goes(self, own_client):
        target = repository(own_client, "mine", {"format": "DOCKER"}) + "/a/b"
        assert ask(own_client, f"{target}:v1", "PUT", json={"digest": NOWHERE}).status_code == 201
        assert ask(own_client, f"{target}:v1").headers["Docker-Content-Digest"] == NOWHERE
        assert "error" not in deploy(own_client, f"{target}@{NOWHERE}")
        own_client.ok("DELETE", f"{REPOSITORIES}/mine")
        repository(own_client, "mine", {"format": "DOCKER"})
        assert refusal(ask(own_client, f"{target}:v1"))[:2] == (404, "MANIFEST_UNKNOWN")

    def test_an_image_of_ones_own_repository_can_be_listed_by_the_scenario(self, own_client):
        image = "us-east4-docker.pkg.dev/local-project/mine/server:v1"
        scenario(own_client, existing=[image])
        assert "not found" in deploy(own_client, image)["error"]["message"]
        repository(own_client, "mine", {"format": "DOCKER"})
        assert "error" not in deploy(own_client, image, "again")

    def test_a_push_needs_a_standard_repository(self, own_client):
        hub = repository(own_client)
        assert refusal(ask(own_client, f"{hub}/a:1", "PUT", json={"digest": NOWHERE}))[1] == "UNSUPPORTED"
        nowhere = hub.replace("/hub", "/nowhere")
        assert refusal(ask(own_client, f"{nowhere}/a:1", "PUT", json={"digest": NOWHERE}))[1] == "NAME_UNKNOWN"

    def test_the_manifest_of_an_unknown_image_is_refused_in_artifact_registrys_words(self, own_client):
        hub = repository(own_client)
        assert refusal(ask(own_client, f"{hub}/vllm/vllm-tpu@{NOWHERE}")) == (
            404,
            "MANIFEST_UNKNOWN",
            f'Failed to fetch "{NOWHERE}".',
        )

    def test_images_can_be_added_while_the_cloud_runs(self, own_client):
        image = "someone/server:1"
        assert "not found" in deploy(own_client, image)["error"]["message"]
        own_client.ok("POST", "/admin/images", {"images": [image]})
        assert "error" not in deploy(own_client, image, "again")
        assert own_client.error("POST", "/admin/images", {"images": ["Bad Name"]})[0] == 400

    def test_the_call_of_the_page_adds_the_image_to_rehearse(self, own_client):
        page = (ROOT / "docs" / "upgrade-vllm.md").read_text()
        ((path, body),) = re.findall(r'^curl "\$LOCALCLOUD_URL(\S+)" .* --json \'(.*)\'$', page, re.MULTILINE)
        given = json.loads(body.replace("sha256:...", NOWHERE))
        (image,) = given["images"]
        assert "not found" in deploy(own_client, image)["error"]["message"]
        own_client.ok("POST", path, given)
        assert "error" not in deploy(own_client, image, "again")


def test_a_pull_needs_the_right_to_download(own_client, own_cloud):
    hub = repository(own_client)
    image = f"{hub}/vllm/vllm-tpu@{TPU}"
    assert refusal(ask(own_client, image, token=None))[:2] == (401, "DENIED")
    email = own_client.ok("POST", f"/iam/v1/{P}/serviceAccounts", {"accountId": "server"})["email"]
    token = own_client.ok("POST", "/admin/tokens", {"email": email})["accessToken"]
    status, _, message = refusal(ask(own_client, image, token=token))
    assert (status, "artifactregistry.repositories.downloadArtifacts" in message) == (403, True)
    binding = {"role": "roles/artifactregistry.reader", "members": [f"serviceAccount:{email}"]}
    own_client.ok("POST", f"{REPOSITORIES}/hub:setIamPolicy", {"policy": {"bindings": [binding]}})
    assert ask(own_client, image, token=token).status_code == 200
    assert refusal(ask(own_client, f"{hub}/a:1", "PUT", token=token, json={"digest": NOWHERE}))[0] == 403
    (pull,) = [pull for pull in own_client.ok("GET", "/admin/images")["pulls"] if pull["by"] == "vm-1"]
    assert (pull["image"], pull["location"], pull["cached"]) == (image, "us-east4", False)


class TestDockerHub:
    def test_one_address_gets_so_many_pulls_in_six_hours(self, own_client):
        scenario(own_client, docker_hub_pulls=2)
        image = f"vllm/vllm-tpu@{TPU}"
        assert ask(own_client, image, "HEAD").headers["ratelimit-remaining"] == "2;w=21600"
        answers = [ask(own_client, image) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        status, code, message = refusal(answers[-1])
        assert (status, code) == (429, "TOOMANYREQUESTS")
        assert message.startswith("You have reached your unauthenticated pull rate limit.")
        assert ask(own_client, image, machine="vm-2").status_code == 200
        own_client.ok("POST", "/admin/advance", {"seconds": 6 * 3600})
        assert ask(own_client, image).status_code == 200

    def test_a_remote_repository_that_is_over_the_limit_answers_502(self, own_client):
        hub = repository(own_client)
        scenario(own_client, docker_hub_pulls=0)
        status, _, message = refusal(ask(own_client, f"{hub}/vllm/vllm-tpu@{TPU}"))
        assert status == 502
        assert message.startswith(
            "Received invalid http status code 429 from external repository; url=https://registry-1"
        )

    def test_an_account_whose_secret_the_service_agent_cannot_read_is_refused(self, own_client, own_cloud):
        scenario(own_client, docker_hub_accounts={"someone": "right"})
        body = with_account(secret(own_client))
        status, message = own_client.error("POST", REPOSITORIES, body, repositoryId="hub")
        assert status == 403
        assert f"@{AGENT} on resource '{P}/secrets/hub-token/versions/1'" in message
        grant_to_agent(own_client, own_cloud)
        repository(own_client, body=body)

    @pytest.mark.parametrize("username", ["someone", "nobody"])
    def test_credentials_that_docker_hub_refuses_are_refused_unless_they_are_not_tried(
        self, own_client, own_cloud, username
    ):
        scenario(own_client, docker_hub_accounts={"someone": "another"})
        version = secret(own_client)
        own_client.ok("GET", REPOSITORIES)
        grant_to_agent(own_client, own_cloud)
        body = with_account(version, username)
        assert "401" in own_client.error("POST", REPOSITORIES, body, repositoryId="hub")[1]
        hub = repository(own_client, body=with_account(version, username, disableUpstreamValidation=True))
        assert refusal(ask(own_client, f"{hub}/vllm/vllm-tpu@{TPU}"))[0] == 502
