"""Prices in US dollars: each with region, date and URL, and overridable as a whole or in part.

gemma_serving/planning/data/prices.json has the shipped prices: Google's list prices, and those that only public documents report. A region
without a known price uses the highest known one, marked as `Price.is_assumed`. A contract, a credit or a commitment changes a price: pass your own.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any, Final, Literal, cast

from msgspec import Struct, convert, field
from msgspec.structs import replace

from gemma_serving.planning.data.tables import Table, data_file
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.numbers import is_number
from gemma_serving.planning.units import HOUR_S

MAX_AGE_DAYS: Final = 180
"""Age above which a price is reported as old. No price was found that changed between two dates: v6e flex-start was $1.35 on 2026-08-10 and
2026-10-02 (prices.json), an L4 of Cloud Run $0.67 per hour in April 2026 (brandonseppa.com/2026/04, "GPU inference without the cluster") and on
2026-09-19. That is thin, but the bill shows the date of the prices in every preview, regardless of their age."""
MAX_SPOT_AGE_DAYS: Final = 60
"""The same for spot prices, which change up to once every 30 days (Cloud TPU pricing)."""
_SPOT: Final = "_spot_"
_REGION: Final = re.compile(r"([a-z]+-[a-z]+\d+)(-[a-z])?")
_DATE: Final = re.compile(r"\d{4}-\d{2}(-\d{2})?")
UNDATED: Final = "date unknown"
EVERYWHERE: Final = ""
"""Region of a price that is the same everywhere."""


class PriceSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Source of a price, and the date at which it was valid."""

    url: str
    as_of: str
    """YYYY-MM-DD; "" for a page that was read on an unrecorded day (UNDATED)."""
    note: str = ""


class PriceRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of one region."""

    usd: float
    source: str
    """The name of its source."""


class Sku(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Description of a price in Google's price catalog, one SKU per region.

    Spellings of TPU SKUs: https://github.com/xbill9/gemma4-dev/blob/4cf2d8b/gce-vllm-v5e1-2b/server.py, read from the catalog on 2026-08-06.
    Cloud Run's and the disk's are quoted in public bills; prices of GPUs with zonal redundancy are assumed
    (packages/localcloud/ledger/prices.toml).
    """

    service: str
    description: str
    """Regular expression of the whole description."""
    usage: str
    unit: str


class ListPrice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shipped price, by region or by the pair of continents for traffic."""

    what: str
    usual: float
    """Price if no region is set."""
    regions: Mapping[str, PriceRow]
    """Regions without an entry have no known price; prices are never guessed from a neighbor."""
    sku: Sku | None = None
    """None for a machine of Compute Engine, which is the sum of several SKUs, and for the cents of a bill. A refresh does not read these."""


SOURCES: Final[Mapping[str, PriceSource]] = Table(
    lambda: convert(data_file("prices.json")["sources"], dict[str, PriceSource])
)
PRICES: Final[Mapping[str, ListPrice]] = Table(
    lambda: convert(data_file("prices.json")["prices"], dict[str, ListPrice])
)
"""By key of the price file."""


class Price(Struct, frozen=True, kw_only=True):
    """A price in use."""

    key: str
    """The key of the price file."""
    region: str
    """The requested region; "" if none was set."""
    usd: float
    as_of: str
    """YYYY-MM-DD or YYYY-MM; "" if the source has no date."""
    url: str
    """Source URL; "" for a price from the price file."""
    kind: Literal["own", "list", "reported"] = "list"
    """`own`: from a price file that the user wrote. `list`: Google's. `reported`: from another public document, which quotes Google."""
    is_assumed: bool = False
    """True if the region's price is unknown, so this is the highest known one."""
    missed_on: str = ""
    """Date of a refresh that found no price in Google's catalog for this region; "" if there was none."""
    is_unclear: bool = False
    """True if that refresh found several SKUs with different prices."""

    def age_days(self, today: str) -> int | None:
        """Return its age; None if it has no date. A month without a day counts from its first day."""
        return None if not self.as_of else (date.fromisoformat(today) - _day(self.as_of)).days

    @property
    def max_age_days(self) -> int:
        """Age above which it is old."""
        return MAX_SPOT_AGE_DAYS if _SPOT in self.key else MAX_AGE_DAYS

    def is_old(self, today: str) -> bool:
        """Return whether it is older than `max_age_days`, or without a date."""
        age_days = self.age_days(today)
        return age_days is None or age_days > self.max_age_days


class CatalogRead(Struct, frozen=True, kw_only=True):
    """Values that a refresh read from Google's price catalog (`gemma plan prices`)."""

    url: str
    keys: frozenset[str]
    """Keys that were searched in every region. A region without one of them has no such price."""
    unclear: frozenset[tuple[str, str]] = frozenset()
    """Keys and regions with several matching SKUs of different prices; no price was chosen."""


class PriceBook(Struct, frozen=True, kw_only=True):
    """Prices of everything that a deployment is billed for: custom prices, then refreshed ones, then shipped ones."""

    as_of: str = ""
    """Date of the custom prices."""
    catalog: CatalogRead | None = None
    """Origin of the custom prices if a refresh wrote them; None if the user did."""
    refreshed: "PriceBook | None" = None
    """Prices that precede the shipped ones."""
    everywhere: Mapping[str, float] = field(default_factory=dict[str, float])
    """Custom prices for every region, by key."""
    regions: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """Custom prices by region."""

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> "PriceBook":
        """Return the shipped prices with some replaced: for every region at the top level, for one below `regions`. A refresh writes `catalog`.

        Raises PlanningError for an unknown key, or a price that is not a positive number.
        """
        flat = {key: value for key, value in given.items() if key not in {"as_of", "catalog", "regions"}}
        regions = given.get("regions", {})
        if not isinstance(regions, Mapping):
            raise PlanningError(
                f'The price file has "regions" {regions!r}. Write regions with their prices, such as '
                '{"us-east5": {"v6e_spot_usd_per_chip_hour": 1.4}}.'
            )
        everywhere = _checked(flat)
        by_region = {
            str(region): _checked_region(str(region), prices)
            for region, prices in cast("Mapping[object, object]", regions).items()
        }
        as_of = _checked_date(given["as_of"]) if "as_of" in given else ""
        return cls(as_of=as_of, everywhere=everywhere, regions=by_region, catalog=_catalog(given.get("catalog")))

    def price(self, key: str, place: str | None = None) -> Price:
        """Return a price in a zone or region: the custom one, the refreshed one, the shipped one, then the highest known one.

        Without a location, or with an invalid one, return the price without a region.
        """
        region = region_of(place) or ""
        for book in self._books():
            price = book.regions.get(region, {}).get(key) or book.everywhere.get(key)
            if price is not None:
                return _price_in(book, key, region, price)
        listed = self._list_price(key, region)
        for book in self._books():
            if region and book.catalog is not None and key in book.catalog.keys:
                return replace(listed, missed_on=book.as_of, is_unclear=(key, region) in book.catalog.unclear)
        return listed

    def _books(self) -> "tuple[PriceBook, ...]":
        return (self,) if self.refreshed is None else (self, self.refreshed)

    def _list_price(self, key: str, region: str) -> Price:
        rows = PRICES[key].regions
        found = rows.get(region) or rows.get(EVERYWHERE)
        if found is not None:
            return self._listed(key, region, found)
        if region:
            known = [self._listed(key, region, row) for row in rows.values()]
            for book in self._books():
                refreshed = book.regions.values() if book.catalog else ()
                known += [_price_in(book, key, region, prices[key]) for prices in refreshed if key in prices]
            return replace(max(known, key=lambda price: (price.usd, price.as_of)), is_assumed=True)
        usual = PRICES[key].usual
        nearest = min(rows.values(), key=lambda row: abs(row.usd - usual))
        return self._listed(key, region, replace(nearest, usd=usual))

    def known(self, key: str, place: str | None = None) -> Price | None:
        """Return a price as `price` does; None if the list has no such price anywhere."""
        return self.price(key, place) if key in PRICES else None

    def tpu_chip_hour(self, generation: str, provisioning: str, place: str | None = None) -> Price | None:
        """Return the price of one chip per hour; None if none is known. A reservation is billed like standard capacity."""
        return self.known(_chip_key(generation, provisioning), place)

    def gce_hour(self, accelerator: str) -> Price | None:
        """Return the price per hour of one machine with this accelerator, in us-central1; None if none is known."""
        return self.known(f"gce_{_in_key(accelerator)}_usd_per_hour", "us-central1")

    def between_regions(self, source: str, target: str) -> Price:
        """Return the price per GiB from one region to another, by continent; traffic within a region is free."""
        key = "between_regions_usd_per_gib"
        if source == target:
            return Price(key=key, region=target, usd=0.0, as_of="", url="")
        if key in self.everywhere:
            return self.price(key)
        rows = PRICES[key].regions
        known = rows.get("-".join(sorted((continent_of(source), continent_of(target)))))
        highest = max(rows.values(), key=lambda row: row.usd)
        return replace(self._listed(key, f"{source} to {target}", known or highest), is_assumed=known is None)

    @staticmethod
    def _listed(key: str, region: str, row: PriceRow) -> Price:
        source = SOURCES[row.source]
        kind = "list" if source.url.startswith("https://cloud.google.com/") else "reported"
        return Price(key=key, region=region, usd=row.usd, as_of=source.as_of, url=source.url, kind=kind)


LIST_PRICES: Final = PriceBook()


def price_words(prices: Iterable[Price]) -> str:
    """Return what prices are, with the oldest date: "reported prices (2026-08-10)" if at least one is only reported."""
    used = [*prices]
    if not used:
        return "known prices"
    kind = next(kind for kind in ("reported", "list", "own") if any(price.kind == kind for price in used))
    return f"{kind} prices ({min(price.as_of for price in used) or UNDATED})"


class HourlyPart(Struct, frozen=True, kw_only=True):
    """A time-based part of the bill of one instance, machine or slice."""

    name: str
    amount: float
    """Units of `price` per hour."""
    unit: str
    price: Price

    @property
    def usd_per_hour(self) -> float:
        """Cost per hour."""
        return self.amount * self.price.usd


def slice_parts(
    book: PriceBook, *, generation: str, chips: int, provisioning: str, place: str | None
) -> tuple[HourlyPart, ...]:
    """Return the cost of a slice per hour; nothing if no price of its chips is known. The plan, the teardown and the guard all use it."""
    price = book.tpu_chip_hour(generation, provisioning, place)
    if price is None:
        return ()
    name = f"{chips} {generation} chip{'s' if chips > 1 else ''}, {provisioning}"
    return (HourlyPart(name=name, amount=chips, unit="chip-hour", price=price),)


def instance_parts(
    book: PriceBook, *, gpu: str | None, vcpu: float, memory_gib: float, zonal_redundancy: bool, place: str | None
) -> tuple[HourlyPart, ...]:
    """Return the cost of one Cloud Run instance per hour; nothing if no price of its GPU is known. The plan, the teardown and the guard all use it."""
    cpu, memory = book.price("cloud_run_vcpu_usd_per_s", place), book.price("cloud_run_gib_usd_per_s", place)
    parts = (
        HourlyPart(name=f"{vcpu:g} vCPU", amount=vcpu * HOUR_S, unit="vCPU-s", price=cpu),
        HourlyPart(name=f"{memory_gib:g} GiB", amount=memory_gib * HOUR_S, unit="GiB-s", price=memory),
    )
    if gpu is None:
        return parts
    redundant = "_redundant" if zonal_redundancy else ""
    price = book.known(f"cloud_run_{_in_key(gpu)}{redundant}_usd_per_s", place)
    return () if price is None else (HourlyPart(name=f"1 {gpu}", amount=HOUR_S, unit="GPU-s", price=price), *parts)


def _price_in(book: PriceBook, key: str, region: str, usd: float) -> Price:
    """Return a custom or refreshed price of a book."""
    url = book.catalog.url if book.catalog else ""
    kind = "list" if book.catalog else "own"
    return Price(key=key, region=region, usd=usd, as_of=book.as_of, url=url, kind=kind)


def region_of(place: str | None) -> str | None:
    """Return the region of a zone or region; None for any other text."""
    found = _REGION.fullmatch(place or "")
    return found[1] if found else None


def continent_of(region: str) -> str:
    """Return the continent of a region or zone as Google's names have it; "us" for the whole of North America."""
    name = region.partition("-")[0]
    return "us" if name == "northamerica" else name


def _chip_key(generation: str, provisioning: str) -> str:
    kind = "standard" if provisioning == "reservation" else provisioning.replace("-", "_")
    return f"{generation}_{kind}_usd_per_chip_hour"


def _in_key(accelerator: str) -> str:
    return accelerator.lower().replace(" ", "_").replace("-", "_")


def _day(text: str) -> date:
    return date.fromisoformat(text if len(text) > len("YYYY-MM") else f"{text}-01")


def _checked(given: Mapping[str, object]) -> dict[str, float]:
    """Return prices that are positive numbers with known keys. Raises PlanningError for others."""
    for key, value in given.items():
        if key not in PRICES:
            known = ", ".join(sorted((*PRICES, "as_of", "regions")))
            raise PlanningError(f'The price file has the unknown key "{key}". Allowed: {known}.')
        if not (is_number(value) and value > 0):
            raise PlanningError(f'The price "{key}" is {value!r}; it must be a number above 0, in US dollars.')
    return {key: float(cast("float", value)) for key, value in given.items()}


def _checked_region(region: str, prices: object) -> dict[str, float]:
    if region_of(region) != region or not isinstance(prices, Mapping):
        raise PlanningError(
            f'The price file has "{region}" below "regions". Write a region with its prices, such as '
            '"us-east5": {"v6e_spot_usd_per_chip_hour": 1.4}.'
        )
    return _checked(cast("Mapping[str, object]", prices))


def _catalog(given: object) -> CatalogRead | None:
    """Return the origin that a refresh wrote. Raises PlanningError for any other content."""
    if given is None:
        return None
    try:
        block = cast("Mapping[str, Any]", given)
        unclear = {(str(key), str(region)) for region, keys in block["unclear"].items() for key in keys}
        return CatalogRead(url=str(block["url"]), keys=frozenset(map(str, block["keys"])), unclear=frozenset(unclear))
    except (AttributeError, KeyError, TypeError):
        raise PlanningError(
            'The price file has an invalid "catalog". Only `gemma plan prices` writes it. Remove the key or the file.'
        ) from None


def _checked_date(given: object) -> str:
    text = str(given)
    try:
        if _DATE.fullmatch(text):
            _day(text)
            return text
    except ValueError:
        pass
    raise PlanningError(f'The price file has "as_of" {given!r}. Write a date such as "2026-11-20" or "2026-11".')
