"""The price catalog: Google's shapes, pages, refusals, and prices that say that they are simulated."""

import os

import pytest
from google.oauth2.credentials import Credentials
from googleapiclient import discovery
from googleapiclient.errors import HttpError

from localcloud.tests.conftest import ALICE, PROJECT, PROJECT_POLICY, Client, grant

SKUS = "/cloudbilling/v1/services/6F81-5844-456A/skus"


def all_skus(client, service="6F81-5844-456A", **query):
    found, token = [], {}
    while True:
        page = client.ok("GET", f"/cloudbilling/v1/services/{service}/skus", **query, **token)
        found.append(page["skus"])
        if "nextPageToken" not in page:
            return found
        token = {"pageToken": page["nextPageToken"]}


def price_of(skus, description):
    (sku,) = [sku for sku in skus if sku["description"] == description]
    return sku, sku["pricingInfo"][0]["pricingExpression"]


def test_googles_client_reads_every_page(shared_cloud):
    os.environ.setdefault("GOOGLE_API_USE_CLIENT_CERTIFICATE", "false")
    client = discovery.build(
        "cloudbilling",
        "v1",
        credentials=Credentials(token=shared_cloud.token),
        client_options={"api_endpoint": f"{shared_cloud.base_url}/cloudbilling/"},
        static_discovery=True,
    )
    request, skus, pages = client.services().skus().list(parent="services/6F81-5844-456A", pageSize=5000), [], 0
    while request is not None:
        answer = request.execute()
        skus, pages = skus + answer["skus"], pages + 1
        request = client.services().skus().list_next(request, answer)
    assert pages > 1
    assert len({sku["skuId"] for sku in skus}) == len(skus) > 50
    with pytest.raises(HttpError) as refused:
        client.services().skus().list(parent="services/0000-0000-0000").execute()
    assert refused.value.status_code == 404


def test_units_tiers_and_usage_types_are_googles_and_prices_say_that_they_are_simulated(client):
    compute = [sku for page in all_skus(client) for sku in page]
    flex, expression = price_of(compute, "DWS Defined Duration V6e running in Columbus")
    assert (flex["serviceRegions"], flex["category"]["usageType"]) == (["us-east5"], "OnDemand")
    assert flex["pricingInfo"][0]["summary"] == "A simulated price of the local cloud."
    assert expression["tieredRates"] == [
        {"startUsageAmount": 0, "unitPrice": {"currencyCode": "USD", "units": "1", "nanos": 350_000_000}}
    ]
    spot, _ = price_of(compute, "TpuV6e attached to Spot Preemptible VMs running in Columbus")
    assert spot["category"]["usageType"] == "Preemptible"
    run = [sku for page in all_skus(client, "152E-C115-5142") for sku in page]
    _, memory = price_of(run, "Services Memory (Instance-based billing) in us-east4")
    assert (memory["usageUnit"], memory["baseUnit"], memory["baseUnitConversionFactor"]) == ("GiBy.s", "By.s", 2**30)
    assert [tier["unitPrice"]["nanos"] for tier in memory["tieredRates"]] == [0, 2000]


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
