"""Price files: the price file of a stack's settings, and `prices.json` in the project's folder, which `gemma plan prices` writes.

Both are JSON in the format of `planning.data.prices`. A price of the stack's file precedes a refreshed one, which precedes the shipped price.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from msgspec.structs import replace

from gemma_serving.cloud.model_files import PROJECT
from gemma_serving.cloud.simulated import is_simulated
from gemma_serving.contracts.settings_files import read_regular
from gemma_serving.planning.data.prices import LIST_PRICES, PriceBook
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.numbers import read_json

CATALOG_URL: Final = "https://cloudbilling.googleapis.com/v1/services"
"""Google's price catalog. Prices read from another URL are simulated."""
REFRESHED: Final = "prices.json"
"""File with refreshed prices in the project's folder. It needs no setting, and can be committed."""


def book_of(path: str | None, folder: Path = PROJECT) -> PriceBook | None:
    """Return the prices of the file that the settings name, with the refreshed ones; None without either. Raises PlanningError."""
    if path is None:
        return refreshed_book(folder)
    book = _book(path, folder)
    return book if folder / path == folder / REFRESHED else with_refreshed(book, folder)


def with_refreshed(book: PriceBook, folder: Path = PROJECT) -> PriceBook:
    """Return a user's prices with the refreshed ones. Raises PlanningError."""
    return replace(book, refreshed=refreshed_book(folder))


def refreshed_book(folder: Path = PROJECT) -> PriceBook | None:
    """Return the prices of `prices.json`; None without such a file. Raises PlanningError, even for prices of a local cloud outside of one."""
    book = stored_book(folder)
    if book is not None and book.catalog is not None and book.catalog.url != CATALOG_URL and not is_simulated():
        raise PlanningError(
            f"{REFRESHED} has simulated prices of a local cloud. Run `gemma plan prices` or delete the file."
        )
    return book


def stored_book(folder: Path = PROJECT) -> PriceBook | None:
    """Return the prices of `prices.json`, simulated or not; None without such a file. Raises PlanningError."""
    return _book(REFRESHED, folder) if (folder / REFRESHED).is_file() else None


def list_prices(folder: Path = PROJECT) -> PriceBook:
    """Return the prices for resources that exist, without a stack's own: the refreshed ones, then the shipped ones.

    A file that cannot be used is ignored, because a teardown and the guard must not depend on it; every plan reports it.
    """
    try:
        book = refreshed_book(folder)
    except PlanningError:
        return LIST_PRICES
    return book if book is not None and book.catalog is not None else LIST_PRICES


def _book(path: str, folder: Path) -> PriceBook:
    try:
        document = read_json(read_regular(folder / path))
    except OSError as error:
        raise PlanningError(
            f"Cannot read the price file {path}: {error.strerror}. Set gemma-serving:prices to a path relative to Pulumi.yaml."
        ) from None
    except ValueError as error:
        raise PlanningError(f"The price file {path} is not JSON: {error}.") from None
    if not isinstance(document, dict):
        raise PlanningError(f"The price file {path} is invalid: expected one JSON object.")
    return PriceBook.from_mapping(cast("Mapping[str, object]", document))
