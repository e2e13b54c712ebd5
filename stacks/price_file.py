"""Custom price file of a stack: JSON in the format of `planning.data.prices`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from planning.data.prices import PriceBook
from planning.errors import PlanningError
from planning.numbers import read_json

ROOT: Final = Path(__file__).resolve().parents[1]
"""Folder of the settings file. Relative paths start here."""


def book_of(path: str | None) -> PriceBook | None:
    """Return the prices of the file that the settings name, or None without one.

    Raises:
        PlanningError: if the file cannot be read or is invalid.
    """
    if path is None:
        return None
    try:
        document = read_json((ROOT / path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanningError(
            f"Cannot read the price file {path}: {error.strerror}. Set gemma-serving:prices to a path relative to Pulumi.yaml."
        ) from None
    except ValueError as error:
        raise PlanningError(f"The price file {path} is not JSON: {error}.") from None
    if not isinstance(document, dict):
        raise PlanningError(f"The price file {path} is invalid: expected one JSON object.")
    return PriceBook.from_mapping(cast("Mapping[str, object]", document))
