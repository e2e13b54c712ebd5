"""Cloud Run v1, the form in which gcloud reads and deletes services, shows the services of version 2."""

import pytest
import requests

from localcloud.rest.discovery import load
from localcloud.tests.conftest import Client

PARENT = "projects/local-project/locations/us-east4"
SERVICE = {
    "labels": {"team": "ml"},
    "template": {
        "containers": [
            {
                "image": "docker.io/x",
                "args": ["--port=8000"],
                "env": [{"name": "A", "value": "b"}],
                "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
            }
        ]
    },
}


@pytest.fixture
def deployed(own_client: Client) -> Client:
    own_client.ok("POST", f"/run/v2/{PARENT}/services", SERVICE, serviceId="svc")
    return own_client


def regional(client: Client, verb: str, path: str, region: str = "us-east4") -> requests.Response:
    """A request as gcloud sends it, with the region before the host."""
    host = client.base_url.removeprefix("http://")
    headers = {"Authorization": f"Bearer {client.token}", "Host": f"{region}-{host}"}
    url = f"{client.base_url}/run/apis/serving.knative.dev/v1/namespaces/local-project/{path}"
    return client.session.request(verb, url, headers=headers, timeout=30)


def undescribed(schema: str, value: object, path: str = "") -> list[str]:
    """Fields of an answer that the discovery document does not have."""
    schemas = load("run.v1").schemas

    def walk(described, item, at):
        described = schemas[described["$ref"]] if "$ref" in described else described
        if isinstance(item, list):
            return [each for entry in item for each in walk(described.get("items", {}), entry, at)]
        if not isinstance(item, dict) or "properties" not in described:
            return []
        known = described["properties"]
        unknown = [f"{at}.{key}" for key in item if key not in known]
        return unknown + [
            each for key in item.keys() & known.keys() for each in walk(known[key], item[key], f"{at}.{key}")
        ]

    return walk({"$ref": schema}, value, path)


def test_a_service_has_the_same_content_in_the_form_of_version_1(deployed: Client):
    newer = deployed.ok("GET", f"/run/v2/{PARENT}/services/svc")
    older = regional(deployed, "GET", "services/svc").json()
    assert undescribed("Service", older) == []
    assert older["metadata"]["labels"] == {"team": "ml", "cloud.googleapis.com/location": "us-east4"}
    assert older["metadata"]["uid"] == newer["uid"]
    assert older["status"]["url"] == newer["uri"]
    (container,) = older["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["args"]) == ("docker.io/x", ["--port=8000"])
    assert container["env"] == [{"name": "A", "value": "b"}]
    ready = next(found for found in older["status"]["conditions"] if found["type"] == "Ready")
    assert ready["status"] == "True"
    assert older["status"]["latestReadyRevisionName"] == newer["latestReadyRevision"].rpartition("/")[2]


def test_all_regions_are_listed_with_a_dash_and_one_region_by_its_host(deployed: Client):
    listed = deployed.ok("GET", "/run/v1/projects/local-project/locations/-/services")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["svc"]
    assert undescribed("ListServicesResponse", listed) == []
    assert len(regional(deployed, "GET", "services").json()["items"]) == 1
    assert regional(deployed, "GET", "services", "us-central1").json()["items"] == []


def test_a_service_deleted_in_version_1_is_gone_in_version_2(deployed: Client):
    assert regional(deployed, "DELETE", "services/svc", "us-central1").status_code == 404
    assert regional(deployed, "DELETE", "services/svc").json()["status"] == "Success"
    assert deployed.error("GET", f"/run/v2/{PARENT}/services/svc")[0] == 404
    assert regional(deployed, "GET", "services/svc").status_code == 404


def test_namespaces_have_no_global_endpoint_and_services_are_made_in_version_2(deployed: Client):
    services = "/run/apis/serving.knative.dev/v1/namespaces/local-project/services"
    assert deployed.error("GET", services)[0] == 404
    assert deployed.error("POST", f"/run/v1/{PARENT}/services", {"kind": "Service"})[0] == 501


def test_the_permission_is_that_of_version_2(deployed: Client):
    token = deployed.ok("POST", "/admin/tokens", {"email": "alice@other.iam.gserviceaccount.com"})["accessToken"]
    answer = regional(Client(deployed.base_url, token=token), "DELETE", "services/svc")
    assert answer.status_code == 403
    assert "run.services.delete" in answer.json()["error"]["message"]
