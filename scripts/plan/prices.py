"""`gemma plan prices`: refresh the prices from Google's price catalog, and show the changes.

Cloud Billing Catalog API, v1 `services.skus.list`. gemma_serving/planning/data/prices.json states which SKU is which price.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from gemma_serving.cloud.caller import caller_of
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError, endpoint
from gemma_serving.cloud.price_file import REFRESHED, stored_book
from gemma_serving.cloud.simulated import is_simulated
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.engine.atomic_file import replace_file
from gemma_serving.engine.runner import project_folder
from gemma_serving.planning.data.prices import LIST_PRICES, PRICES, PriceBook, Sku, region_of
from gemma_serving.scripts.cli.command import print_progress, print_text
from gemma_serving.scripts.cli.tables import console, paragraph
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.stacks.loading import project_from_environment
from gemma_serving.stacks.planned import today

_API: Final = "cloudbilling"
_ROLE: Final = "roles/serviceusage.serviceUsageConsumer"
"""A call of the catalog needs no permission but the use of its quota project."""
_SERVICES: Final[Mapping[str, str]] = {"Compute Engine": "6F81-5844-456A", "Cloud Run": "152E-C115-5142"}
"""Ids of services. Cloud TPU's own has v2 to v4 only; v5e and newer are SKUs of Compute Engine."""
_SECONDS: Final[Mapping[str, int]] = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "mo": 30 * 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class SkuPrice:
    """The price of one SKU in the price list's unit, None if it cannot be read, and both as text."""

    sku: str
    usd: float | None
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogPrices:
    """Results of a whole reading of the catalog, by key and region."""

    found: Mapping[tuple[str, str], SkuPrice]
    unclear: Mapping[tuple[str, str], Sequence[str]]
    """Text: several SKUs with different prices, or one that cannot be read. None of them is chosen."""
    skus: int

    @property
    def keys(self) -> set[str]:
        """Keys with a SKU in any region."""
        return {key for key, _ in (*self.found, *self.unclear)}

    @property
    def missing(self) -> Sequence[str]:
        """Keys without a SKU in any region: renamed, or no longer sold."""
        return [key for key, price in PRICES.items() if price.sku and key not in self.keys]


def refresh_prices(stack: str | None, project: str | None, *, dry_run: bool, as_json: bool) -> ExitCode:
    """Read the catalog, write the price file, and show what changed.

    Raises CommandRefusedError before any call if the user wrote the file's prices, and ScriptError if the catalog cannot be read. Then
    nothing is written.
    """
    path, before = project_folder() / REFRESHED, stored_book(project_folder())
    if before is not None and before.catalog is None:
        raise CommandRefusedError(
            f"{REFRESHED} has prices that you wrote, and a refresh replaces the file. Rename it and set gemma-serving:prices to its new name."
        )
    found = _read(project or (stack_settings(stack).project if stack else project_from_environment()))
    changes = _changes(found, before or LIST_PRICES)
    day = today()
    if not dry_run:
        replace_file(path, json.dumps(_document(found, day), indent=1) + "\n")
    (_print_json if as_json else _show)(found, changes, day, dry_run=dry_run)
    return ExitCode.DONE


def _read(project: str | None) -> CatalogPrices:
    if project is None:
        raise CommandRefusedError("No project set. Pass STACK or --project ID, or set GOOGLE_CLOUD_PROJECT.")
    caller = caller_of(project)
    print_progress("plan", "reading Google's price catalog")
    try:
        return read_catalog(caller.google)
    except GoogleListError as error:
        detail, command = caller.refusal(_API, _ROLE, error)
        fix = f" Run `{command}`, wait a minute and try again." if command else ""
        raise ScriptError(f"{detail.rstrip('.')}. Nothing was written.{fix}") from None


def read_catalog(api: GoogleApi) -> CatalogPrices:
    """Return all prices of the planner in the catalog. Every page of every service is read first, so the result is never half a catalog.

    Raises ScriptError if a page cannot be read, or if a service has none of the wanted SKUs.
    """
    matches, total = dict[tuple[str, str], list[SkuPrice]](), 0
    for name, service in _SERVICES.items():
        wanted = {key: price.sku for key, price in PRICES.items() if price.sku and price.sku.service == name}
        read, before = 0, len(matches)
        for page in api.pages(_API, f"v1/services/{service}/skus?currencyCode=USD&pageSize=5000"):
            for sku in map(as_mapping, as_sequence(page.get("skus"))):
                read += 1
                for key, which in wanted.items():
                    _match(sku, key, which, matches)
            print_progress("plan", f"read {read:,} SKUs of {name}")
        if len(matches) == before:
            raise ScriptError(f"None of the {read:,} SKUs of {name} is a price of the planner. Nothing was written.")
        total += read
    # Google lists some SKUs twice. With the same price, they agree.
    agreed = {place for place, each in matches.items() if each[0].usd and len({one.usd for one in each}) == 1}
    unclear = {place: [one.said for one in each] for place, each in matches.items() if place not in agreed}
    return CatalogPrices(found={place: matches[place][0] for place in agreed}, unclear=unclear, skus=total)


def _match(sku: Mapping[str, object], key: str, which: Sku, matches: dict[tuple[str, str], list[SkuPrice]]) -> None:
    described = str(sku.get("description") or "")
    usage = as_mapping(sku.get("category")).get("usageType")
    if usage != which.usage or not re.fullmatch(which.description, described, re.IGNORECASE):
        return
    usd = _usd_per(which.unit, sku)
    said = "no price" if usd is None else f"${usd:g}"
    price = SkuPrice(
        sku=str(sku.get("skuId")), usd=usd, said=f'"{described}" ({sku.get("skuId")}): {said} per {which.unit}'
    )
    for region in map(str, as_sequence(sku.get("serviceRegions"))):
        if region_of(region) == region:
            matches.setdefault((key, region), []).append(price)


def _usd_per(unit: str, sku: Mapping[str, object]) -> float | None:
    """Return the first price that is not 0, in US dollars per `unit`; None without one."""
    expression: Mapping[str, object] = {}
    for version in as_sequence(sku.get("pricingInfo")):
        expression = as_mapping(as_mapping(version).get("pricingExpression"))
    wanted, _, wanted_time = unit.rpartition(".")
    given, _, given_time = str(expression.get("usageUnit")).rpartition(".")
    if wanted != given or given_time not in _SECONDS:
        return None
    tiers = [as_mapping(tier) for tier in as_sequence(expression.get("tieredRates"))]
    for tier in sorted(tiers, key=lambda tier: float(str(tier.get("startUsageAmount") or 0))):
        price = as_mapping(tier.get("unitPrice"))
        usd = Decimal(str(price.get("units") or 0)) + Decimal(str(price.get("nanos") or 0)) / 10**9
        if usd > 0:
            return float(round(usd * _SECONDS[wanted_time] / _SECONDS[given_time], 15))
    return None


def _changes(found: CatalogPrices, known: PriceBook) -> Sequence[Mapping[str, Any]]:
    """Return the prices that differ from the known ones, by key and region: new, changed, and no longer in the catalog."""
    earlier = {(key, region) for region, prices in known.regions.items() for key in found.keys & prices.keys()}
    changes: list[Mapping[str, Any]] = []
    for key, region in sorted({*found.found, *earlier} - found.unclear.keys()):
        before, now = known.price(key, region), found.found.get((key, region))
        usd, sku = (now.usd, now.sku) if now else (None, None)
        old, dated = (None, None) if before.is_assumed else (before.usd, before.as_of or None)
        if usd != old:
            was = {"before_usd": old, "before_as_of": dated}
            changes.append({"key": key, "region": region, **was, "usd": usd, "sku": sku})
    return changes


def _document(found: CatalogPrices, today: str) -> dict[str, Any]:
    regions = dict[str, Any]()
    skus = dict[str, Any]()
    unclear = dict[str, Any]()
    for (key, region), price in sorted(found.found.items(), key=lambda one: one[0]):
        regions.setdefault(region, {})[key] = price.usd
        skus.setdefault(region, {})[key] = price.sku
    for key, region in sorted(found.unclear):
        unclear.setdefault(region, []).append(key)
    catalog = {"url": f"{endpoint(_API)}v1/services", "currency": "USD", "keys": sorted(found.keys)}
    return {"as_of": today, "catalog": {**catalog, "unclear": unclear, "skus": skus}, "regions": regions}


def _print_json(found: CatalogPrices, changes: Sequence[Mapping[str, Any]], today: str, *, dry_run: bool) -> None:
    report = {
        "simulated": is_simulated(),
        "file": REFRESHED,
        "written": not dry_run,
        "as_of": today,
        "skus": found.skus,
        "prices": len(found.found),
        "changes": changes,
        "unclear": [{"key": key, "region": region, "skus": each} for (key, region), each in found.unclear.items()],
        "missing": found.missing,
    }
    print_text(json.dumps(report, allow_nan=False))


def _show(found: CatalogPrices, changes: Sequence[Mapping[str, Any]], today: str, *, dry_run: bool) -> None:
    out = console(sys.stdout)
    shown = [one for one in changes if one["before_usd"] is not None]
    for one in shown:
        now = f"${one['usd']:g} (SKU {one['sku']})" if one["usd"] else "absent"
        paragraph(out, f"{one['key']} in {one['region']}: ${one['before_usd']:g} of {one['before_as_of']}, now {now}.")
    for (key, region), each in found.unclear.items():
        usd = LIST_PRICES.price(key, region).usd
        paragraph(out, f"{key} in {region} is unclear, so the shipped price counts, ${usd:g}: {' and '.join(each)}.")
    if found.missing:
        paragraph(out, f"No SKU was found for {', '.join(found.missing)}. The shipped prices count.")
    simulated = " (local cloud, simulated)" if is_simulated() else ""
    said = f"{len(found.found):,} prices of {today} from {found.skus:,} SKUs{simulated}, {len(shown) or 'none'} changed"
    print_progress("plan", f"{said}; {'nothing was written (--dry-run)' if dry_run else f'wrote {REFRESHED}'}")
