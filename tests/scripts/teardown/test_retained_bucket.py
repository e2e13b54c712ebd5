"""What a kept bucket costs."""

from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.search_results import FoundResource
from gemma_serving.scripts.teardown.receipt import retained_bucket

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


def test_a_bucket_that_cannot_be_listed_has_no_price():
    kept = retained_bucket(Pages(error=GoogleListError(403, "no", "forbidden")), BUCKET)
    assert (kept.size_gib, kept.usd_per_month) == (None, None)
    assert kept.text == "bucket projects/_/buckets/b: of unknown size"
