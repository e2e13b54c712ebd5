"""IAM: strict etags, members that exist, permissions of the callers."""

import base64

import pytest

from localcloud.world import roles
from localcloud.world.policies import etag_of

P = "/projects/local-project"
PROJECT = f"/cloudresourcemanager/v1{P}"


def as_caller(client, email):
    token = client.session.post(client.base_url + "/admin/tokens", json={"email": email}, timeout=10).json()[
        "accessToken"
    ]
    return type(client)(client.base_url, token=token)


def test_a_stale_etag_conflicts_and_changes_nothing(own_client):
    first = own_client.ok("POST", f"{PROJECT}:getIamPolicy", {})
    assert first["etag"] == "BwX="
    binding = {"role": "roles/viewer", "members": ["user:a@example.com"]}
    second = own_client.ok(
        "POST", f"{PROJECT}:setIamPolicy", {"policy": {**first, "bindings": [*first["bindings"], binding]}}
    )
    assert second["etag"] == "BwY="
    status, message = own_client.error("POST", f"{PROJECT}:setIamPolicy", {"policy": first})
    assert status == 409
    assert "The request's ETag 'BwX=' did not match the current policy's ETag 'BwY='" in message
    assert binding in own_client.ok("POST", f"{PROJECT}:getIamPolicy", {})["bindings"]


def test_etags_of_all_generations_differ_as_bytes():
    decoded = [base64.b64decode(etag_of(generation)) for generation in range(300)]
    assert len(set(decoded)) == 300


def test_a_service_account_that_does_not_exist_cannot_be_granted_anything(own_client):
    policy = own_client.ok("POST", f"{PROJECT}:getIamPolicy", {})
    policy["bindings"].append(
        {"role": "roles/viewer", "members": ["serviceAccount:ghost@local-project.iam.gserviceaccount.com"]}
    )
    status, message = own_client.error("POST", f"{PROJECT}:setIamPolicy", {"policy": policy})
    assert (status, message) == (400, "Service account ghost@local-project.iam.gserviceaccount.com does not exist.")


@pytest.mark.parametrize(("role", "member"), [("viewer", "user:a@example.com"), ("roles/viewer", "a@example.com")])
def test_malformed_bindings_are_refused(own_client, role, member):
    assert (
        own_client.error(
            "POST", f"{PROJECT}:setIamPolicy", {"policy": {"bindings": [{"role": role, "members": [member]}]}}
        )[0]
        == 400
    )


def test_a_service_account_reads_the_secret_that_it_was_granted_and_no_other(own_client):
    email = own_client.ok("POST", f"/iam/v1{P}/serviceAccounts", {"accountId": "reader"})["email"]
    for name in ("mine", "other"):
        own_client.ok("POST", f"/secretmanager/v1{P}/secrets", {"replication": {"automatic": {}}}, secretId=name)
        own_client.ok("POST", f"/secretmanager/v1{P}/secrets/{name}:addVersion", {"payload": {"data": "eA=="}})
    grant = {
        "policy": {"bindings": [{"role": "roles/secretmanager.secretAccessor", "members": [f"serviceAccount:{email}"]}]}
    }
    own_client.ok("POST", f"/secretmanager/v1{P}/secrets/mine:setIamPolicy", grant)
    reader = as_caller(own_client, email)
    assert reader.ok("GET", f"/secretmanager/v1{P}/secrets/mine/versions/latest:access")["payload"]["data"] == "eA=="
    assert reader.error("GET", f"/secretmanager/v1{P}/secrets/other/versions/latest:access")[0] == 403
    assert reader.error("DELETE", f"/secretmanager/v1{P}/secrets/mine")[0] == 403


def test_a_bucket_reader_reads_and_does_not_write(own_client):
    email = own_client.ok("POST", f"/iam/v1{P}/serviceAccounts", {"accountId": "reader"})["email"]
    own_client.ok("POST", "/storage/storage/v1/b", {"name": "weights"}, project="local-project")
    own_client.ok(
        "PUT",
        "/storage/storage/v1/b/weights/iam",
        {"bindings": [{"role": "roles/storage.objectViewer", "members": [f"serviceAccount:{email}"]}]},
    )
    reader = as_caller(own_client, email)
    assert reader.ok("GET", "/storage/storage/v1/b/weights/o")["items"] == []
    assert reader.error("POST", "/upload/storage/v1/b/weights/o", {"x": 1}, uploadType="media", name="x")[0] == 403


def test_public_members_are_refused_where_access_prevention_is_enforced(own_client):
    own_client.ok(
        "POST",
        "/storage/storage/v1/b",
        {"name": "closed", "iamConfiguration": {"publicAccessPrevention": "enforced"}},
        project="local-project",
    )
    policy = {"bindings": [{"role": "roles/storage.objectViewer", "members": ["allUsers"]}]}
    assert own_client.error("PUT", "/storage/storage/v1/b/closed/iam", policy)[0] == 412


def test_roles_grant_by_pattern():
    assert roles.grants("roles/editor", "storage.objects.get")
    assert not roles.grants("roles/editor", "secretmanager.versions.access")
    assert roles.grants("roles/run.invoker", "run.routes.invoke")
    assert not roles.grants("roles/run.invoker", "run.services.get")
    assert not roles.grants("roles/unknown", "run.services.get")
    assert roles.permission_of("run.projects.locations.services.setIamPolicy") == "run.services.setIamPolicy"
