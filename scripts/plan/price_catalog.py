"""Google's price catalog: which SKU is which price of the planner, in its unit, by region.

Cloud Billing Catalog API, v1 `services.skus.list`. It filters by service only, so a service's SKUs are all read (Compute Engine has about 32,000)
and matched by their description and usage type. Spellings of TPU SKUs, with similar SKUs that are another product (reserved, calendar mode,
capacity optimized, committed): https://github.com/xbill9/gemma4-dev/blob/4cf2d8b/gce-vllm-v5e1-2b/server.py, read from the catalog on 2026-08-06.
Cloud Run's and the disk's are quoted in public bills; those of its GPUs with zonal redundancy are assumed (packages/localcloud/ledger/prices.toml).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import isclose
from typing import Final

from cloud.google_api import GoogleApi
from contracts.errors import ScriptError
from contracts.fields import as_mapping, as_sequence
from planning.data.prices import region_of

API: Final = "cloudbilling"
CURRENCY: Final = "USD"
_PAGE: Final = 5000
"""SKUs per page: the API's maximum."""
_TOLERANCE: Final = 0.01
"""Allowed difference between the catalog's conversion factor and the size of its unit."""
_BYTES: Final[Mapping[str, int]] = {"By": 1, "KiBy": 2**10, "MiBy": 2**20, "GiBy": 2**30, "TiBy": 2**40, "GBy": 10**9}
_SECONDS: Final[Mapping[str, int]] = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "mo": 30 * 86_400}
"""Units of time. A month of the catalog has 30 days: its factor of GiBy.mo to By.s is 2^30 x 2,592,000."""


class CatalogError(ScriptError):
    """The catalog was read and cannot be used as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One price of the price list, and the SKUs that have it, one per region."""

    key: str
    service: str
    """Id of the service, such as 6F81-5844-456A."""
    description: str
    """Regular expression of the whole description."""
    usage_type: str
    unit: str
    """Unit of the price list, as the catalog spells it."""


_COMPUTE_ENGINE: Final = "6F81-5844-456A"
_CLOUD_RUN: Final = "152E-C115-5142"
SERVICES: Final[Mapping[str, str]] = {_COMPUTE_ENGINE: "Compute Engine", _CLOUD_RUN: "Cloud Run"}
"""Cloud TPU's own service has v2 to v4 only; v5e and newer are SKUs of Compute Engine."""
_TPU: Final[Mapping[str, tuple[str, str]]] = {
    "standard": (r"Tpu{0} running in .+", "OnDemand"),
    "flex_start": (r"DWS Defined Duration {0} running in .+", "OnDemand"),
    "spot": (r"Tpu{0} attached to Spot Preemptible VMs running in .+", "Preemptible"),
    "commitment_1y": (r"Commitment v1: Tpu{0} running in .+ for 1 Year", "Commit1Yr"),
    "commitment_3y": (r"Commitment v1: Tpu{0} running in .+ for 3 Years?", "Commit3Yr"),
}
_GPU: Final[Mapping[str, str]] = {
    "": r"NVIDIA {0} GPU with no zonal redundancy( in .+)?",
    "_redundant": r"NVIDIA {0} GPU( with zonal redundancy)?( in .+)?",
}


def wanted_prices(known: Iterable[str]) -> tuple[Wanted, ...]:
    """Return how to find each known key that the catalog has as one SKU per region. Machines of Compute Engine are sums of several."""
    made = (*_chip_hours(), *_of_instances(), _disk())
    keys = set(known)
    return tuple(each for each in made if each.key in keys)


def _chip_hours() -> Iterator[Wanted]:
    for generation in ("v5e", "v5p", "v6e"):
        for kind, (spelled, usage) in _TPU.items():
            yield Wanted(
                key=f"{generation}_{kind}_usd_per_chip_hour",
                service=_COMPUTE_ENGINE,
                description=spelled.format(generation.capitalize()),
                usage_type=usage,
                unit="h",
            )


def _of_instances() -> Iterator[Wanted]:
    for part, name, unit in (("vcpu", "CPU", "s"), ("gib", "Memory", "GiBy.s")):
        described = rf"Services {name} \(Instance-based billing\) in .+"
        yield _of_cloud_run(f"cloud_run_{part}_usd_per_s", described, unit)
    for gpu, name in (("l4", "L4"), ("rtx_pro_6000", "RTX Pro 6000")):
        for redundancy, described in _GPU.items():
            yield _of_cloud_run(f"cloud_run_{gpu}{redundancy}_usd_per_s", described.format(name), "s")


def _of_cloud_run(key: str, description: str, unit: str) -> Wanted:
    return Wanted(key=key, service=_CLOUD_RUN, description=description, usage_type="OnDemand", unit=unit)


def _disk() -> Wanted:
    return Wanted(
        key="disk_usd_per_gib_month",
        service=_COMPUTE_ENGINE,
        description=r"Balanced PD Capacity( in .+)?",
        usage_type="OnDemand",
        unit="GiBy.mo",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SkuPrice:
    """The price of one SKU in the price list's unit."""

    sku: str
    """Its id."""
    description: str
    usd: float | None
    """None if the SKU has a price that cannot be read."""
    problem: str = ""
    """Why it cannot be read."""

    def __str__(self) -> str:
        return f'"{self.description}" ({self.sku}): {self.problem or f"${self.usd:g}"}'


@dataclass(slots=True, kw_only=True)
class CatalogPrices:
    """What a whole reading of the catalog found."""

    found: dict[tuple[str, str], SkuPrice] = field(default_factory=dict[tuple[str, str], SkuPrice])
    """By key and region."""
    unclear: dict[tuple[str, str], tuple[SkuPrice, ...]] = field(
        default_factory=dict[tuple[str, str], tuple[SkuPrice, ...]]
    )
    """Several SKUs with different prices, or one that cannot be read. None of them is chosen."""
    missing: tuple[str, ...] = ()
    """Keys without a matching SKU in any region: renamed, or no longer sold."""
    skus: int = 0
    """How many SKUs were read."""


def read_catalog(api: GoogleApi, wanted: Sequence[Wanted], progress: Callable[[str, int], None]) -> CatalogPrices:
    """Return the wanted prices. Every page of every service is read first, so the result is never half a catalog.

    `progress` is called after each page with the service and the number of its SKUs so far.

    Raises:
        GoogleListError, ScriptError: if a page cannot be read.
        CatalogError: if the prices are in another currency, or a service has none of the wanted SKUs.
    """
    matches: dict[tuple[str, str], list[SkuPrice]] = {}
    total = 0
    for service in dict.fromkeys(each.service for each in wanted):
        of_service = [(each, re.compile(each.description, re.IGNORECASE)) for each in wanted if each.service == service]
        read, before = 0, len(matches)
        for page in api.pages(API, f"v1/services/{service}/skus?currencyCode={CURRENCY}&pageSize={_PAGE}"):
            skus = [as_mapping(sku) for sku in as_sequence(page.get("skus"))]
            for sku in skus:
                _match(sku, of_service, matches)
            read += len(skus)
            progress(SERVICES[service], read)
        if len(matches) == before:
            raise CatalogError(
                f"None of the {read:,} SKUs of {SERVICES[service]} is a price that the planner uses. Nothing was written, because "
                "Google may have renamed them."
            )
        total += read
    return _sorted(matches, wanted, total)


def _match(
    sku: Mapping[str, object],
    wanted: Iterable[tuple[Wanted, re.Pattern[str]]],
    matches: dict[tuple[str, str], list[SkuPrice]],
) -> None:
    described, category = str(sku.get("description") or ""), as_mapping(sku.get("category"))
    for each, pattern in wanted:
        if category.get("usageType") == each.usage_type and pattern.fullmatch(described):
            price = _price(sku, each.unit)
            for region in map(str, as_sequence(sku.get("serviceRegions"))):
                if region_of(region) == region:
                    matches.setdefault((each.key, region), []).append(price)


def _sorted(
    matches: Mapping[tuple[str, str], Sequence[SkuPrice]], wanted: Sequence[Wanted], skus: int
) -> CatalogPrices:
    prices = CatalogPrices(skus=skus)
    for place, each in matches.items():
        # Google lists some SKUs twice. With the same price, they agree.
        if each[0].usd is not None and len({one.usd for one in each}) == 1:
            prices.found[place] = each[0]
        else:
            prices.unclear[place] = tuple(each)
    seen = {key for key, _ in matches}
    prices.missing = tuple(each.key for each in wanted if each.key not in seen)
    return prices


def _price(sku: Mapping[str, object], unit: str) -> SkuPrice:
    """Return the price of a SKU per `unit`. Raises CatalogError for another currency."""
    name, described = str(sku.get("skuId") or ""), str(sku.get("description") or "")
    try:
        return SkuPrice(sku=name, description=described, usd=_usd_per(unit, sku))
    except ValueError as error:
        return SkuPrice(sku=name, description=described, usd=None, problem=str(error))


def _usd_per(unit: str, sku: Mapping[str, object]) -> float:
    """Return the price in US dollars per `unit`. Raises ValueError with what is wrong with the SKU, and CatalogError."""
    versions = as_sequence(sku.get("pricingInfo"))
    if not versions:
        raise ValueError("no price")
    expression = as_mapping(as_mapping(versions[-1]).get("pricingExpression"))
    usage = str(expression.get("usageUnit") or "")
    wanted, given = _size(unit), _size(usage)
    if wanted is None or given is None or wanted[0] != given[0]:
        raise ValueError(f"priced per {usage or 'an unknown unit'}, expected {unit}")
    _check_factor(expression, given)
    usd = _first_charged(expression) * wanted[1] / given[1]
    if usd <= 0:
        raise ValueError("a price of 0")
    return float(round(usd, 15))


def _size(unit: str) -> tuple[tuple[bool, bool], int] | None:
    """Return whether a unit counts bytes and time, and its size in bytes, seconds or byte-seconds; None for any other unit."""
    size, of_bytes, of_time = 1, False, False
    for word in unit.split("."):
        if word in _BYTES and not of_bytes:
            size, of_bytes = size * _BYTES[word], True
        elif word in _SECONDS and not of_time:
            size, of_time = size * _SECONDS[word], True
        else:
            return None
    return (of_bytes, of_time), size


def _check_factor(expression: Mapping[str, object], given: tuple[tuple[bool, bool], int]) -> None:
    """Raise ValueError if the catalog's own conversion to its base unit contradicts the size of its unit."""
    factor, base = expression.get("baseUnitConversionFactor"), _size(str(expression.get("baseUnit") or ""))
    if not isinstance(factor, int | float) or base is None:
        return
    if base[0] != given[0] or not isclose(factor * base[1], given[1], rel_tol=_TOLERANCE):
        raise ValueError(
            f"{expression.get('usageUnit')} is {factor:g} {expression.get('baseUnit')}, expected {given[1] / base[1]:g}"
        )


def _first_charged(expression: Mapping[str, object]) -> Decimal:
    """Return the price of the first tier that is not free. Free amounts are per billing account and month, so a plan does not count on them."""
    tiers = [as_mapping(tier) for tier in as_sequence(expression.get("tieredRates"))]
    tiers.sort(key=lambda tier: float(str(tier.get("startUsageAmount") or 0)))
    prices = [_money(as_mapping(tier.get("unitPrice"))) for tier in tiers]
    return next((price for price in prices if price > 0), Decimal(0))


def _money(price: Mapping[str, object]) -> Decimal:
    currency = price.get("currencyCode")
    if currency != CURRENCY:
        raise CatalogError(
            f"Google returned prices in {currency or 'an unknown currency'}, expected {CURRENCY}. Nothing was written."
        )
    return Decimal(str(price.get("units") or 0)) + Decimal(str(price.get("nanos") or 0)) / 10**9
