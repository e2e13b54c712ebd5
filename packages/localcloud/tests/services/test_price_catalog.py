"""The price catalog: Google's shapes, pages, refusals, and prices that say that they are simulated."""

from localcloud.tests.conftest import ALICE, PROJECT, PROJECT_POLICY, Client, grant

SKUS = "/cloudbilling/v1/services/6F81-5844-456A/skus"


def test_refusals(client):
    assert client.error("GET", "/cloudbilling/v1/services/0000-0000-0000/skus")[0] == 404
    assert client.error("GET", SKUS, pageSize=5001)[0] == 400
    assert client.error("GET", SKUS, pageToken="nonsense")[0] == 400
    assert client.error("GET", SKUS, currencyCode="EUR") == (501, "The local cloud has the latest prices in USD only.")


def test_the_catalog_is_public_but_its_calls_count_for_a_project(own_cloud):
    owner = Client(own_cloud.base_url, own_cloud.token)
    alice = owner.as_caller(ALICE.removeprefix("user:"), **{"x-goog-user-project": PROJECT})
    assert alice.call("GET", SKUS)[1]["error"]["details"][0]["reason"] == "USER_PROJECT_DENIED"
    grant(owner, PROJECT_POLICY, "roles/serviceusage.serviceUsageConsumer")
    assert alice.ok("GET", SKUS)["skus"]
    owner.ok("POST", f"/serviceusage/v1/projects/{PROJECT}/services/cloudbilling.googleapis.com:disable", {})
    assert alice.call("GET", SKUS)[1]["error"]["details"][0]["reason"] == "SERVICE_DISABLED"
