"""A bucket that stays after a teardown: how large it is, and what it costs in a month."""

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
class KeptBucket:
    """A bucket that a teardown leaves on purpose."""

    resource: FoundResource
    size_gib: float | None
    """Size of its objects; None if they cannot be listed."""

    @property
    def usd_per_month(self) -> float | None:
        """What it costs in a month at the list price of its place (planning/data/prices.json); None if its size is not known."""
        if self.size_gib is None:
            return None
        return self.size_gib * LIST_PRICES.price("bucket_usd_per_gib_month", self.resource.location).usd

    @property
    def text(self) -> str:
        """What a person reads."""
        usd = self.usd_per_month
        cost = "of unknown size" if usd is None else f"{self.size_gib:.2f} GiB, {usd:.2f} USD a month at list prices"
        return f"{self.resource.kind} {self.resource.name}: {cost}"


def kept_bucket(api: GoogleApi, resource: FoundResource) -> KeptBucket:
    """Return a bucket with the size of its objects."""
    try:
        pages = list(api.pages("storage", _OBJECTS.format(name=resource.id)))
    except (GoogleListError, ScriptError):
        return KeptBucket(resource=resource, size_gib=None)
    items = [as_mapping(item) for page in pages for item in as_sequence(page.get("items"))]
    return KeptBucket(resource=resource, size_gib=sum(int(str(item.get("size") or 0)) for item in items) / GIB)
