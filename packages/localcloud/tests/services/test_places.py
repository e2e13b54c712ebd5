"""What a search for resources relies on: each API lists its own locations, and an API that is off hides its resources."""

import pytest

PROJECT = "local-project"


@pytest.mark.parametrize(
    ("path", "some"),
    [
        ("/run/v1", {"us-east4", "europe-west1"}),
        ("/artifactregistry/v1", {"us-east4", "us"}),
        ("/tpu/v2alpha1", {"us-east5-a", "asia-northeast1-b"}),
    ],
)
def test_an_api_lists_its_locations_on_pages(client, path, some):
    found, token = set(), None
    while token != "":
        page = client.ok(
            "GET", f"{path}/projects/{PROJECT}/locations", pageSize=5, **({"pageToken": token} if token else {})
        )
        assert len(page["locations"]) <= 5
        found |= {item["locationId"] for item in page["locations"]}
        token = page.get("nextPageToken", "")
    assert some <= found


def test_the_second_version_of_cloud_run_lists_no_locations(client):
    assert client.call("GET", f"/run/v2/projects/{PROJECT}/locations")[0] == 404


def test_an_api_that_was_turned_off_hides_its_resources_and_keeps_them(own_client):
    secrets = "/secretmanager/v1/projects/local-project/secrets"
    own_client.ok("POST", secrets, {"replication": {"automatic": {}}}, secretId="kept")
    switch = "/serviceusage/v1/projects/local-project/services/secretmanager.googleapis.com"
    own_client.ok("POST", f"{switch}:disable", {})
    assert own_client.error("GET", secrets)[0] == 403
    own_client.ok("POST", f"{switch}:enable", {})
    assert [item["name"].rpartition("/")[2] for item in own_client.ok("GET", secrets)["secrets"]] == ["kept"]
