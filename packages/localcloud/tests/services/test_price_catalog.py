"""The price catalog: Google's shapes, pages, refusals, and prices that say that they are simulated."""

import os

import pytest
from google.oauth2.credentials import Credentials
from googleapiclient import discovery
from googleapiclient.errors import HttpError

SKUS = "/cloudbilling/v1/services/6F81-5844-456A/skus"


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


def test_refusals(client):
    assert client.error("GET", "/cloudbilling/v1/services/0000-0000-0000/skus")[0] == 404
    assert client.error("GET", SKUS, pageSize=5001)[0] == 400
    assert client.error("GET", SKUS, pageToken="nonsense")[0] == 400
    assert client.error("GET", SKUS, currencyCode="EUR") == (501, "The local cloud has the latest prices in USD only.")
