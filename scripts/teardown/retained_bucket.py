"""Size and monthly cost of a bucket that a teardown retains."""

from dataclasses import dataclass
from typing import Final

from cloud.found import FoundResource
from cloud.google_api import GoogleApi, GoogleListError
from contracts.errors import ScriptError
from contracts.fields import as_mapping, as_sequence
from planning.data.prices import LIST_PRICES
from planning.units import GIB

_OBJECTS: Final = "storage/v1/b/{name}/o?fields=nextPageToken,items/size&maxResults=1000"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedBucket:
    """A bucket that a teardown retains on purpose."""

    resource: FoundResource
    size_gib: float | None
    """Total size of its objects; None if they cannot be listed."""

    @property
    def usd_per_month(self) -> float | None:
        """Cost per month at the list price of its location (planning/data/prices.json); None if its size is unknown."""
        if self.size_gib is None:
            return None
        return self.size_gib * LIST_PRICES.price("bucket_usd_per_gib_month", self.resource.location).usd

    @property
    def text(self) -> str:
        """The bucket with its size and cost, for the receipt as text."""
        usd = self.usd_per_month
        cost = "of unknown size" if usd is None else f"{self.size_gib:.2f} GiB, {usd:.2f} USD per month at list prices"
        return f"{self.resource.kind} {self.resource.name}: {cost}"


def retained_bucket(api: GoogleApi, resource: FoundResource) -> RetainedBucket:
    """Return a bucket with the total size of its objects."""
    try:
        pages = list(api.pages("storage", _OBJECTS.format(name=resource.id)))
    except (GoogleListError, ScriptError):
        return RetainedBucket(resource=resource, size_gib=None)
    items = [as_mapping(item) for page in pages for item in as_sequence(page.get("items"))]
    return RetainedBucket(resource=resource, size_gib=sum(int(str(item.get("size") or 0)) for item in items) / GIB)
