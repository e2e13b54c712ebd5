"""Refresh the prices from Google's price catalog, and show the changes."""

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cloud.caller import GoogleCaller, caller_of
from cloud.google_api import GoogleListError, UnansweredError, endpoint
from cloud.price_file import REFRESHED, stored_book
from cloud.simulated import is_simulated
from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from engine.atomic_file import replace_file
from engine.runner import project_folder
from planning.data.prices import LIST_PRICES, PRICES, Price, PriceBook
from scripts.cli.command import say
from scripts.cli.settings import stack_settings
from scripts.cli.tables import FittedTable, console, paragraph, table
from scripts.plan.price_catalog import API, CURRENCY, CatalogPrices, read_catalog, wanted_prices
from scripts.plan.prices_options import PricesOptions
from stacks.loading import project_from_environment

_QUIET_S: Final = 2.0
"""Seconds without progress. Reading Compute Engine's SKUs takes longer."""
_ROLE: Final = "roles/serviceusage.serviceUsageConsumer"
"""A call of the catalog needs no permission but the use of its quota project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceChange:
    """A price that differs from the one that the planner used so far."""

    key: str
    region: str
    before: Price | None
    """None if it was unknown."""
    usd: float | None
    """None if the catalog no longer has it."""
    sku: str
    """Id of the SKU; "" without one."""

    def to_json(self) -> dict[str, object]:
        """Return the change as JSON types."""
        before = self.before
        return {
            "key": self.key,
            "region": self.region,
            "before_usd": before.usd if before else None,
            "before_as_of": (before.as_of or None) if before else None,
            "usd": self.usd,
            "sku": self.sku or None,
        }


def refresh_prices(options: PricesOptions) -> ExitCode:
    """Read the catalog, write the price file, and show what changed.

    Raises CommandRefusedError before any call, and ScriptError if the catalog cannot be read; then nothing is written.
    """
    folder = project_folder()
    before = _replaceable(folder)
    found = _read(_caller(options))
    today = datetime.now(UTC).date().isoformat()
    changes = _changes(found, before or LIST_PRICES)
    if not options.dry_run:
        replace_file(folder / REFRESHED, _text(found, today))
    if options.as_json:
        print(json.dumps(_report(found, changes, today, wrote=not options.dry_run), allow_nan=False))
    else:
        _show(found, changes)
        say("plan", _ending(found, changes, today, wrote=not options.dry_run))
    return ExitCode.DONE


def _replaceable(folder: Path) -> PriceBook | None:
    """Return the earlier refreshed prices, None without any. Raises CommandRefusedError for a file that the user wrote."""
    book = stored_book(folder)
    if book is not None and book.catalog is None:
        raise CommandRefusedError(
            f"{REFRESHED} has prices that you wrote, and a refresh replaces the file. Rename it and set gemma-serving:prices to its new name."
        )
    return book


def _caller(options: PricesOptions) -> GoogleCaller:
    settings = stack_settings(options.stack, project=options.project) if options.stack else None
    project = options.project or (settings.project if settings else project_from_environment())
    if project is None:
        raise CommandRefusedError("No project set. Pass --stack NAME or --project ID, or set GOOGLE_CLOUD_PROJECT.")
    return caller_of(project)


def _read(caller: GoogleCaller) -> CatalogPrices:
    started_s = time.monotonic()
    waiting = threading.Timer(_QUIET_S, say, ("plan", "reading Google's price catalog"))
    waiting.daemon = True
    waiting.start()

    def progress(service: str, skus: int) -> None:
        if time.monotonic() - started_s > _QUIET_S:
            say("plan", f"read {skus:,} SKUs of {service}")

    try:
        return read_catalog(caller.google, wanted_prices(PRICES), progress)
    except GoogleListError as error:
        detail, command = caller.refusal(API, _ROLE, error)
        fix = f" Run `{command}`, wait a minute and try again." if command else ""
        raise ScriptError(
            f"Cannot read Google's price catalog: {detail.rstrip('.')}. Nothing was written.{fix}"
        ) from None
    except UnansweredError as error:
        raise ScriptError(f"Cannot read Google's price catalog, so nothing was written: {error}") from None
    finally:
        waiting.cancel()


def _changes(found: CatalogPrices, known: PriceBook) -> Sequence[PriceChange]:
    """Return the prices that differ from the known ones, by key and region: new, changed, and no longer in the catalog."""
    changes: list[PriceChange] = []
    for (key, region), price in found.found.items():
        before = known.price(key, region)
        before = None if before.is_assumed else before
        if before is None or before.usd != price.usd:
            changes.append(PriceChange(key=key, region=region, before=before, usd=price.usd, sku=price.sku))
    for key, region in _gone(found, known):
        changes.append(PriceChange(key=key, region=region, before=known.price(key, region), usd=None, sku=""))
    return sorted(changes, key=lambda one: (one.key, one.region))


def _gone(found: CatalogPrices, known: PriceBook) -> set[tuple[str, str]]:
    """Return the known prices that the catalog does not have, of keys that it has in other regions."""
    covered = {key for key, _ in (*found.found, *found.unclear)}
    listed = {(key, region) for key in covered for region in PRICES[key].regions if region}
    read = {(key, region) for region, prices in known.regions.items() for key in prices}
    return {
        (key, region)
        for key, region in (read or listed)
        if key in covered and (key, region) not in found.found and (key, region) not in found.unclear
    }


def _text(found: CatalogPrices, today: str) -> str:
    """Return the price file: one region per line, so that a commit shows what changed."""
    regions: dict[str, dict[str, float]] = {}
    skus: dict[str, dict[str, str]] = {}
    for (key, region), price in sorted(found.found.items()):
        if price.usd is not None:
            regions.setdefault(region, {})[key] = price.usd
            skus.setdefault(region, {})[key] = price.sku
    unclear: dict[str, list[str]] = {}
    for key, region in sorted(found.unclear):
        unclear.setdefault(region, []).append(key)
    keys = sorted({key for key, _ in (*found.found, *found.unclear)})
    catalog = {"url": f"{endpoint(API)}v1/services", "currency": CURRENCY, "keys": keys, "unclear": unclear}
    head = f'{{\n "as_of": {json.dumps(today)},\n "catalog": {json.dumps(catalog)[:-1]}, "skus": {_lines(skus)}}},\n'
    return f'{head} "regions": {_lines(regions)}\n}}\n'


def _lines(regions: Mapping[str, object]) -> str:
    rows = ",\n".join(f"  {json.dumps(region)}: {json.dumps(row)}" for region, row in sorted(regions.items()))
    return f"{{\n{rows}\n }}"


def _report(found: CatalogPrices, changes: Sequence[PriceChange], today: str, *, wrote: bool) -> dict[str, Any]:
    return {
        "simulated": is_simulated(),
        "file": REFRESHED,
        "written": wrote,
        "as_of": today,
        "skus": found.skus,
        "prices": len(found.found),
        "changes": [one.to_json() for one in changes],
        "unclear": [
            {"key": key, "region": region, "skus": [str(one) for one in each]}
            for (key, region), each in sorted(found.unclear.items())
        ],
        "missing": list(found.missing),
    }


def _show(found: CatalogPrices, changes: Sequence[PriceChange]) -> None:
    out = console(sys.stdout)
    shown = [one for one in changes if one.before is not None]
    if shown:
        out.print(changed_table(shown))
    for (key, region), each in sorted(found.unclear.items()):
        listed = LIST_PRICES.price(key, region)
        used = f"the {'highest known' if listed.is_assumed else 'shipped'} price counts, ${listed.usd:g}"
        paragraph(out, f"{key} in {region} is unclear, so {used}: {' and '.join(map(str, each))}.")
    if found.missing:
        paragraph(out, f"No SKU was found for {', '.join(found.missing)}. The shipped prices count.")


def changed_table(changes: Sequence[PriceChange]) -> FittedTable:
    """Return a table with the prices that were known before."""
    headings = ("price, USD", "region", "before", "date", "now", "change", "SKU")
    numbers = ("before", "now", "change")
    rows = table(
        "Changed prices", headings, whole=("region", "date", "SKU"), numbers=numbers, least=("SKU", "date", "change")
    )
    for one in changes:
        rows.add_row(*_row(one))
    return rows


def _row(change: PriceChange) -> tuple[str, ...]:
    before, usd = change.before, change.usd
    earlier = (f"{before.usd:g}", before.as_of or "undated") if before else ("", "")
    percent = f"{(usd / before.usd - 1) * 100:+.1f} %" if before and usd else ""
    return (change.key, change.region, *earlier, "absent" if usd is None else f"{usd:g}", percent, change.sku)


def _ending(found: CatalogPrices, changes: Sequence[PriceChange], today: str, *, wrote: bool) -> str:
    new = sum(one.before is None for one in changes)
    different = len(changes) - new
    said = f"{different} changed" if different else "none changed"
    added = f", {new} new" if new else ""
    file = f"wrote {REFRESHED}" if wrote else "nothing was written (--dry-run)"
    where = " (local cloud, simulated)" if is_simulated() else ""
    return f"{len(found.found):,} prices of {today} from {found.skus:,} SKUs{where}, {said}{added}; {file}"
