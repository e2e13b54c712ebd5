"""Cloud Billing v1: the billing account of a project, and the price catalog.

The local cloud bills nothing; its projects have an account to resemble real ones. The catalog has the SKUs of accelerators, Cloud Run and disks
that a stack uses, and similar SKUs of other products.
Descriptions, usage types and units are Google's, as public programs and bills quote them (ledger/prices.toml). Ids, dates and the summary of
each price show that the catalog is simulated. Google has about 32,000 SKUs of Compute Engine; here a page has at most 50, so a client
that reads one page only is noticed.
"""

from collections.abc import Iterator
from decimal import Decimal
from functools import cache

from localcloud.json_values import JsonObject, packaged, part, parts
from localcloud.rest.call import Call, Handler
from localcloud.rest.errors import CloudError
from localcloud.services.service import ApiService, listing, method
from localcloud.world.catalog import list_prices
from localcloud.world.cloud import Cloud

_MOST = 5000
"""Maximum page size ("Defaults to 5000" in the discovery document)."""
_PAGE = 50
_NANOS = 10**9
_BASES = {
    "h": ("s", 3600, "hour"),
    "s": ("s", 1, "second"),
    "GiBy.s": ("By.s", 2**30, "gibibyte second"),
    "GiBy.mo": ("By.s", 2**30 * 30 * 86_400, "gibibyte month"),
}
"""Base unit, factor and words of a unit."""
_ACCOUNT = "billingAccounts/000000-000000-000000"


def handlers(cloud: Cloud) -> dict[str, Handler]:
    """Return the methods of projects and the catalog."""
    return {**_BillingProjects(cloud).handlers(), **_BillingServices(cloud).handlers()}


class _BillingServices(ApiService):
    prefix = "cloudbilling.services"

    @method("skus.list")
    def list_skus(self, call: Call) -> JsonObject:
        """Return the SKUs of a service with their latest prices."""
        service = call.name.removeprefix("services/")
        if service not in part(_catalog(), "services"):
            raise CloudError.not_found(f"Service {service} not found.")
        _check(call)
        currency = call.query.get("currencyCode") or "USD"
        if currency != "USD" or call.query.get("startTime") or call.query.get("endTime"):
            raise CloudError.unimplemented("The local cloud has the latest prices in USD only.")
        skus = [(str(sku["skuId"]), sku) for sku in _skus() if str(sku["name"]).startswith(f"services/{service}/")]
        return listing(call.query, "skus", sorted(skus, key=lambda pair: pair[0]), default=_PAGE, maximum=_PAGE)


def _check(call: Call) -> None:
    size = call.query.get("pageSize")
    if size is not None and int(size) > _MOST:
        raise CloudError.field("page_size", f"Invalid page size {size}: it must be at most {_MOST}.")


@cache
def _catalog() -> JsonObject:
    return packaged("localcloud.services", "skus.json")


@cache
def _skus() -> tuple[JsonObject, ...]:
    return tuple(_numbered())


def _numbered() -> Iterator[JsonObject]:
    number = 0
    for row in parts(_catalog(), "skus"):
        prices = list_prices(str(row["price"])) if "price" in row else part(row, "usd")
        for region, usd in prices.items():
            number += 1
            yield _sku(f"0000-0000-{number:04X}", row, region, Decimal(str(usd)))


def _sku(name: str, row: JsonObject, region: str, usd: Decimal) -> JsonObject:
    city = part(_catalog(), "cities").get(region, region)
    service = str(row["service"])
    return {
        "name": f"services/{service}/skus/{name}",
        "skuId": name,
        "description": str(row["description"]).format(city=city, region=region),
        "category": {
            "serviceDisplayName": part(_catalog(), "services")[service],
            "resourceFamily": row["family"],
            "resourceGroup": row["group"],
            "usageType": row["usage"],
        },
        "serviceRegions": [region],
        "pricingInfo": [
            {
                "effectiveTime": "2026-11-01T00:00:00Z",
                "summary": "A simulated price of the local cloud.",
                "pricingExpression": _expression(str(row["unit"]), usd, row.get("free")),
                "currencyConversionRate": 1,
            }
        ],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "REGIONAL", "regions": [region]},
    }


def _expression(unit: str, usd: Decimal, free: float | None) -> JsonObject:
    base, factor, words = _BASES[unit]
    tiers = [(0, Decimal(0)), (free, usd)] if free else [(0, usd)]
    return {
        "usageUnit": unit,
        "usageUnitDescription": words,
        "baseUnit": base,
        "baseUnitConversionFactor": factor,
        "displayQuantity": 1,
        "tieredRates": [{"startUsageAmount": start, "unitPrice": _money(price)} for start, price in tiers],
    }


def _money(usd: Decimal) -> JsonObject:
    whole = int(usd)
    return {"currencyCode": "USD", "units": str(whole), "nanos": int((usd - whole) * _NANOS)}


class _BillingProjects(ApiService):
    prefix = "cloudbilling.projects"

    @method("getBillingInfo")
    def get_billing_info(self, call: Call) -> JsonObject:
        """Return the billing account of a project. Every project of the local cloud has it."""
        project = call.name.removeprefix("projects/")
        if self._store.get("projects", project) is None:
            raise CloudError.denied("The caller does not have permission")
        return {
            "name": f"projects/{project}/billingInfo",
            "projectId": project,
            "billingAccountName": _ACCOUNT,
            "billingEnabled": True,
        }
