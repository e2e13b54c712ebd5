"""What a kept bucket costs."""

import pytest

from cloud.found import FoundResource
from cloud.google_api import GoogleListError
from contracts.labels import Ownership
from planning.data.prices import LIST_PRICES
from scripts.teardown.receipt import retained_bucket

GIB = 1024**3
BUCKET = FoundResource(
    kind="bucket",
    name="projects/_/buckets/b",
    command="gcloud storage rm --recursive gs://b",
    location="us-east4",
    owner=Ownership(project="gemma-serving", stack="x"),
)


class Pages:
    """An API that answers these sizes in pages, or refuses."""

    def __init__(self, *pages, error=None):
        self.found, self.error, self.asked = pages, error, []

    def pages(self, api, path):
        self.asked.append((api, path))
        if self.error:
            raise self.error
        yield from ({"items": [{"size": str(size)} for size in page]} for page in self.found)


def test_a_kept_bucket_has_its_size_and_its_price():
    api = Pages((10 * GIB, 5 * GIB), (GIB,), ())
    kept = retained_bucket(api, BUCKET)
    price = LIST_PRICES.price("bucket_usd_per_gib_month", "us-east4").usd
    assert (kept.size_gib, kept.usd_per_month) == (16.0, pytest.approx(16 * price))
    assert kept.text == f"bucket projects/_/buckets/b: 16.00 GiB, {16 * price:.2f} USD per month at list prices"
    assert api.asked == [("storage", "storage/v1/b/b/o?fields=nextPageToken,items/size&maxResults=1000")]


def test_a_bucket_that_cannot_be_listed_has_no_price():
    kept = retained_bucket(Pages(error=GoogleListError(403, "no", "forbidden")), BUCKET)
    assert (kept.size_gib, kept.usd_per_month) == (None, None)
    assert kept.text == "bucket projects/_/buckets/b: of unknown size"
