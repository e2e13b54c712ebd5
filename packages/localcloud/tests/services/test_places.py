"""What a search for resources relies on: each API lists its own locations, and grants of a deleted account stay under another name."""

import pytest

PROJECT = "local-project"
POLICY = f"/cloudresourcemanager/v1/projects/{PROJECT}"


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


def test_a_deleted_account_keeps_its_grants_under_another_name_and_they_have_no_effect(own_client):
    account = own_client.ok("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "short-lived"})
    policy = own_client.ok("POST", f"{POLICY}:getIamPolicy", {})
    policy["bindings"].append({"role": "roles/viewer", "members": [f"serviceAccount:{account['email']}"]})
    own_client.ok("POST", f"{POLICY}:setIamPolicy", {"policy": policy})
    own_client.ok("DELETE", f"/iam/v1/{account['name']}")
    after = own_client.ok("POST", f"{POLICY}:getIamPolicy", {})
    (binding,) = [item for item in after["bindings"] if item["role"] == "roles/viewer"]
    assert binding["members"] == [f"deleted:serviceAccount:{account['email']}?uid={account['uniqueId']}"]
    again = own_client.ok("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "short-lived"})
    assert again["email"] == account["email"]
    assert own_client.ok("POST", f"{POLICY}:getIamPolicy", {})["bindings"] == after["bindings"]
    own_client.ok("POST", f"{POLICY}:setIamPolicy", {"policy": after})


def test_an_api_that_was_turned_off_hides_its_resources_and_keeps_them(own_client):
    secrets = "/secretmanager/v1/projects/local-project/secrets"
    own_client.ok("POST", secrets, {"replication": {"automatic": {}}}, secretId="kept")
    switch = "/serviceusage/v1/projects/local-project/services/secretmanager.googleapis.com"
    own_client.ok("POST", f"{switch}:disable", {})
    assert own_client.error("GET", secrets)[0] == 403
    own_client.ok("POST", f"{switch}:enable", {})
    assert [item["name"].rpartition("/")[2] for item in own_client.ok("GET", secrets)["secrets"]] == ["kept"]
